"""Super-resolution: a residual network without norms that doubles the sides of images, Adam."""

import torch
from torch import nn

WIDTH, BLOCKS, SIDE, BATCH = 96, 16, 96, 16


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        first, second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.layers = nn.Sequential(first, nn.ReLU(inplace=True), second)

    def forward(self, x):
        return x + 0.1 * self.layers(x)


class Edsr(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.body = nn.Sequential(*[Residual() for _ in range(BLOCKS)], nn.Conv2d(WIDTH, WIDTH, 3, padding=1))
        grow = nn.Conv2d(WIDTH, 4 * WIDTH, 3, padding=1)
        self.tail = nn.Sequential(grow, nn.PixelShuffle(2), nn.Conv2d(WIDTH, 3, 3, padding=1))

    def forward(self, x):
        x = self.head(x)
        return self.tail(x + self.body(x))


def build():
    batch = torch.rand(BATCH, 3, SIDE, SIDE), torch.rand(BATCH, 3, 2 * SIDE, 2 * SIDE)
    return Edsr(), batch, nn.L1Loss(), lambda p: torch.optim.Adam(p, lr=1e-4)
