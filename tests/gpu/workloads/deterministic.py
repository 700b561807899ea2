"""A segmentation network whose author has asked for deterministic algorithms: convolutions, and a bilinear enlargement
whose gradient has a slower deterministic form."""

import torch
from torch import nn

SIDE, BATCH, CLASSES = 128, 32, 20


def build():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    layers = [nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(64, CLASSES, 1)]
    batch = (torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH, SIDE, SIDE)))
    return (
        nn.Sequential(*layers),
        batch,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )
