"""ResNet-50 on synthetic images, as a plain training script would build it."""

import torch
import torchvision
from torch import nn

BATCH = 64


def build():
    model = torchvision.models.resnet50()
    batch = (torch.randn(BATCH, 3, 224, 224), torch.randint(1000, (BATCH,)))
    return (model, batch, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9))
