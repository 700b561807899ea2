"""ViT-S/16 of timm's, trained by AdamW."""

import timm
import torch
from torch import nn

NAME, SIDE, BATCH, CLASSES = "vit_small_patch16_224", 224, 64, 1000


def build():
    batch = (torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,)))
    return (
        timm.create_model(NAME, num_classes=CLASSES),
        batch,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
    )
