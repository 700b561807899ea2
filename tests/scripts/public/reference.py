"""As the references of torchvision: the loop is in another file, which reads the loader through a logger of its own."""

import torch
from torch import nn

from reference_engine import evaluate, train_one_epoch


def load_data():
    images, labels = torch.randn(48, 3, 8, 8), torch.randint(4, (48,))
    return torch.utils.data.TensorDataset(images, labels)


def main(epochs=2):
    torch.manual_seed(0)
    device = torch.device("cpu")
    dataset = load_data()
    sampler = torch.utils.data.RandomSampler(dataset)
    data_loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=12,
        sampler=sampler,  # a distributed one on several GPUs
        num_workers=0,
        pin_memory=False,
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    model.to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch)
        lr_scheduler.step()
        evaluate(model, criterion, data_loader, device=device)


if __name__ == "__main__":
    main()
