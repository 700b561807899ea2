"""ResNet-18 on images of 32 by 32 pixels at batch 128: many short kernels."""

import torch
import torchvision
from torch import nn

BATCH, CLASSES = 128, 10


def build():
    batch = (torch.randn(BATCH, 3, 32, 32), torch.randint(CLASSES, (BATCH,)))
    return (
        torchvision.models.resnet18(num_classes=CLASSES),
        batch,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4),
    )
