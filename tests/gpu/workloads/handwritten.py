"""A perceptron whose activation is written out by hand: one pass over memory for each of its operations.

``small``: for a processor.
"""

import math

import torch
from torch import nn

WIDTH, BLOCKS, BATCH = 1024, 6, 16384
SMALL_WIDTH, SMALL_BATCH = 256, 2048


class Gelu(nn.Module):
    """The tanh form of GELU, times a sigmoid gate."""

    def forward(self, hidden):
        inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden * hidden * hidden)
        return 0.5 * hidden * (1.0 + torch.tanh(inner)) * torch.sigmoid(hidden)


def build():
    return _training(WIDTH, BATCH)


def small():
    return _training(SMALL_WIDTH, SMALL_BATCH)


def _training(width, samples):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), Gelu()) for _ in range(BLOCKS)))
    batch = (torch.randn(samples, width), torch.randn(samples, width))
    return model, batch, nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-3)
