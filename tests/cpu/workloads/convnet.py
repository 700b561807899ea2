"""Convolutions with biases before batch norms on images of 64 by 64 pixels, trained by SGD."""

import torch
from torch import nn

WIDTHS, BATCH, SIZE, CLASSES = (32, 64, 128), 32, 64, 10


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        blocks, inputs = [], 3
        for width in WIDTHS:
            blocks += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
            inputs = width
        self.features = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, images):
        return self.head(self.features(images).mean(dim=(2, 3)))


def build():
    batch = (torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(CLASSES, (BATCH,)))
    return ConvNet(), batch, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
