"""Twelve blocks of Linear(256), LayerNorm, GELU: a step that is bound by the host's launches."""

import torch
from torch import nn

WIDTH, BLOCKS, BATCH = 256, 12, 256


def build():
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(BLOCKS)]
    )
    batch = (torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    return model, batch, nn.MSELoss(), lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
