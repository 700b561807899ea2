"""Large linear layers on a batch of 32 samples, with Adam and clipped gradients: what costs is the weights, their
gradients and the optimizer's state. ``many_rows``: as many samples as a layer has outputs, so that products cost."""

import torch
from torch import nn

import advisor

WIDTH, BLOCKS, BATCH = 8192, 4, 32


def build():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)])
    batch = (torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    return advisor.Workload(
        model, batch, nn.MSELoss(), lambda parameters: torch.optim.Adam(parameters, lr=1e-4), clip_grad=1.0
    )


def many_rows():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)])
    batch = (torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH))
    return model, batch, nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-4)
