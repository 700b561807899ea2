"""As timm's train.py: factories choose the model, the optimizer and the loader, and a closure makes the update."""

import argparse

import torch
from torch import nn


def create_model(name, num_classes):
    if name == "tiny":
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 16), nn.GELU(), nn.Linear(16, num_classes))
    raise ValueError(name)


def create_optimizer_v2(model, opt, lr, weight_decay):
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return getattr(torch.optim, opt)(groups, lr=lr)


def create_loader(dataset, input_size, batch_size, is_training=False, num_workers=0):
    loader_args = dict(batch_size=batch_size, shuffle=is_training, num_workers=num_workers, drop_last=is_training)
    return torch.utils.data.DataLoader(dataset, **loader_args)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, device):
    model.train()
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(device), target.to(device)

        def _forward():
            output = model(input)
            return loss_fn(output, target)

        loss = _forward()
        optimizer.zero_grad()
        loss.backward()
        if args.clip_grad is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        print(f"Train: {epoch} [{batch_idx:>4d}] Loss: {loss.item():#.3g}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clip-grad", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(42)
    device = torch.device("cpu")
    model = create_model("tiny", num_classes=5)
    model.to(device=device)
    optimizer = create_optimizer_v2(model, "AdamW", lr=5e-3, weight_decay=0.05)
    dataset = torch.utils.data.TensorDataset(torch.randn(40, 3, 8, 8), torch.randint(5, (40,)))
    loader_train = create_loader(dataset, (3, 8, 8), 10, is_training=True)
    train_loss_fn = nn.CrossEntropyLoss().to(device=device)
    for epoch in range(2):
        train_one_epoch(epoch, model, loader_train, optimizer, train_loss_fn, args, device)


if __name__ == "__main__":
    main()
