"""A fully convolutional network on ResNet-50 that labels each pixel of images of 256 by 256."""

import torch
from torch.nn import functional
from torchvision.models.segmentation import fcn_resnet50

SIDE, BATCH, CLASSES = 256, 16, 21


def pixel_loss(output, target):
    return functional.cross_entropy(output["out"], target)


def build():
    model = fcn_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES)
    batch = (torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH, SIDE, SIDE)))
    return model, batch, pixel_loss, lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
