"""ResNet-18 in inference on images of 128 by 128 pixels."""

import torch
import torchvision

BATCH, SIZE = 8, 128


def build():
    return torchvision.models.resnet18().eval(), torch.randn(BATCH, 3, SIZE, SIZE)
