"""Swin-tiny from timm with stochastic depth, AdamW."""

import timm
import torch
from torch import nn

NAME, SIDE, CLASSES, BATCH = "swin_tiny_patch4_window7_224", 224, 1000, 64


def build():
    model = timm.create_model(NAME, num_classes=CLASSES, drop_path_rate=0.2)
    batch = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,))
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return model, batch, loss, lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.05)
