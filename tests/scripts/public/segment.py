"""As a U-Net with a dice loss: a progress bar, two losses added up, an evaluation in some rounds."""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, random_split


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes):
        super().__init__()
        self.n_classes = n_classes
        self.down = nn.Conv2d(n_channels, 8, 3, padding=1)
        self.up = nn.Conv2d(8, n_classes, 3, padding=1)

    def forward(self, x):
        return self.up(F.relu(self.down(x)))


def dice_loss(input, target, epsilon=1e-6):
    inter = 2 * (input * target).sum(dim=(-1, -2))
    sets_sum = input.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    return 1 - ((inter + epsilon) / (sets_sum + epsilon)).mean()


@torch.inference_mode()
def evaluate(net, dataloader, device):
    net.eval()
    score = sum(dice_loss(net(b['image'].to(device)).softmax(1)[:, 1], b['mask'].float()) for b in dataloader)
    net.train()
    return score / len(dataloader)


def train_model(model, device, epochs=2, batch_size=4):
    data = [{'image': torch.randn(3, 8, 8), 'mask': torch.randint(2, (8, 8))} for _ in range(24)]
    train_set, val_set = random_split(data, [20, 4], generator=torch.Generator().manual_seed(0))
    loader_args = dict(batch_size=batch_size, num_workers=0)
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)
    optimizer = optim.RMSprop(model.parameters(),
                              lr=1e-3, weight_decay=1e-8, momentum=0.9, foreach=True)
    criterion = nn.CrossEntropyLoss() if model.n_classes > 1 else nn.BCEWithLogitsLoss()
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        for batch in train_loader:
            images, true_masks = batch['image'], batch['mask']
            images = images.to(device=device, dtype=torch.float32)
            true_masks = true_masks.to(device=device, dtype=torch.long)

            masks_pred = model(images)
            loss = criterion(masks_pred, true_masks)
            loss += dice_loss(  # of the foreground
                F.softmax(masks_pred, dim=1)[:, 1].float(),
                true_masks.float(),
            )

            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            global_step += 1
            print('loss', loss.item())
            if global_step % 4 == 0:
                print('Validation Dice score: {}'.format(evaluate(model, val_loader, device)))


if __name__ == '__main__':
    torch.manual_seed(0)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    model = UNet(n_channels=3, n_classes=2)
    model = model.to(memory_format=torch.channels_last)
    model.to(device=device)
    train_model(model, device)
