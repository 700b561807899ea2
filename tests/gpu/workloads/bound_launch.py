"""A hundred layers of width 16 on a batch of 4: a step that is bound by the host's calls and launches."""

import torch
from torch import nn

WIDTH, LAYERS, BATCH = 16, 100, 4


def build():
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    batch = (torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    return nn.Sequential(*layers), batch, nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-2)
