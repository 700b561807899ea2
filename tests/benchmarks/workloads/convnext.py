"""ConvNeXt-tiny of timm's: large depthwise convolutions, layer norms over channels, AdamW."""

import timm
import torch
from torch import nn

NAME, SIDE, BATCH, CLASSES = "convnext_tiny", 224, 32, 1000


def build():
    batch = (torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,)))
    return (
        timm.create_model(NAME, num_classes=CLASSES),
        batch,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
    )
