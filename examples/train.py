"""Train a small network on made-up images. It needs only PyTorch, and downloads nothing.

python examples/train.py --epochs 3
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(samples: int) -> TensorDataset:
    """Return images of 3 x 32 x 32: one of ten patterns plus noise, with the pattern's number as the label."""
    patterns = torch.randn(10, 3, 32, 32)
    labels = torch.randint(10, (samples,))
    return TensorDataset(patterns[labels] + 2 * torch.randn(samples, 3, 32, 32), labels)


def make_model(width: int) -> nn.Sequential:
    """Return a network of two convolutions and a linear layer."""
    first = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(4)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(2 * width * 4 * 4, 10))


def main() -> None:
    """Train for the epochs that the command line asks for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=32, help="channels of the first convolution")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(make_data(samples=2048), batch_size=args.batch_size, shuffle=True)
    model = make_model(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.3f}")


if __name__ == "__main__":
    main()
