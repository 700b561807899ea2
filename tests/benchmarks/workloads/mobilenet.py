"""MobileNetV3 of torchvision's on synthetic images: depthwise convolutions, bound by memory and launches."""

import torch
import torchvision
from torch import nn

BATCH, SIDE, CLASSES = 128, 224, 1000


def build():
    batch = (torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,)))
    return (
        torchvision.models.mobilenet_v3_large(num_classes=CLASSES),
        batch,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=4e-5),
    )
