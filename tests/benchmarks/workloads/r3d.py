"""A 3-D ResNet-18 on short clips: convolutions over time and space."""

import torch
from torch import nn
from torchvision.models.video import r3d_18

FRAMES, SIDE, BATCH, CLASSES = 16, 112, 8, 101


def build():
    batch = (torch.randn(BATCH, 3, FRAMES, SIDE, SIDE), torch.randint(CLASSES, (BATCH,)))
    return (
        r3d_18(weights=None, num_classes=CLASSES),
        batch,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    )
