"""A mobile network of timm's with squeeze-and-excitation, trained by RMSprop as its authors did."""

import timm
import torch
from torch import nn

NAME, SIDE, BATCH, CLASSES = "mobilenetv3_large_100", 224, 64, 1000


def build():
    batch = (torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,)))
    return (
        timm.create_model(NAME, num_classes=CLASSES),
        batch,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, alpha=0.9, eps=1e-3, momentum=0.9),
    )
