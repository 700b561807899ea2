"""Segmentation of volumes: a 3-D U-Net with instance norms, cross entropy and Dice, SGD with Nesterov momentum."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, SIDE, CLASSES, BATCH = 32, 64, 4, 2


def layers(inputs, outputs):
    parts = []
    for channels in (inputs, outputs):
        parts += [nn.Conv3d(channels, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True)]
        parts += [nn.LeakyReLU(0.01, inplace=True)]
    return nn.Sequential(*parts)


class UNet3d(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.bottom = layers(1, WIDTH), layers(WIDTH, 2 * WIDTH), layers(2 * WIDTH, 4 * WIDTH)
        self.pool = nn.MaxPool3d(2)
        self.grow2 = nn.ConvTranspose3d(4 * WIDTH, 2 * WIDTH, 2, 2)
        self.grow1 = nn.ConvTranspose3d(2 * WIDTH, WIDTH, 2, 2)
        self.up2, self.up1 = layers(4 * WIDTH, 2 * WIDTH), layers(2 * WIDTH, WIDTH)
        self.head = nn.Conv3d(WIDTH, CLASSES, 1)

    def forward(self, x):
        high = self.down1(x)
        low = self.down2(self.pool(high))
        low = self.up2(torch.cat([self.grow2(self.bottom(self.pool(low))), low], 1))
        return self.head(self.up1(torch.cat([self.grow1(low), high], 1)))


def dice_loss(logits, target):
    guess = logits.softmax(1)
    truth = functional.one_hot(target, CLASSES).permute(0, 4, 1, 2, 3).to(guess.dtype)
    common, all_of = (guess * truth).sum((0, 2, 3, 4)), guess.sum((0, 2, 3, 4)) + truth.sum((0, 2, 3, 4))
    return functional.cross_entropy(logits, target) + 1 - (2 * common / (all_of + 1e-5)).mean()


def build():
    volumes, labels = torch.randn(BATCH, 1, SIDE, SIDE, SIDE), torch.randint(CLASSES, (BATCH, SIDE, SIDE, SIDE))
    options = {"lr": 0.01, "momentum": 0.99, "nesterov": True, "weight_decay": 3e-5}
    return UNet3d(), (volumes, labels), dice_loss, lambda p: torch.optim.SGD(p, **options)
