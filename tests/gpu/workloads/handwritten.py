"""A perceptron whose activation is written out by hand: one pass over memory for each of its operations."""

import math

import torch
from torch import nn

WIDTH, BLOCKS, BATCH = 1024, 6, 16384


class Gelu(nn.Module):
    """The tanh form of GELU, times a sigmoid gate."""

    def forward(self, hidden):
        inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden * hidden * hidden)
        return 0.5 * hidden * (1.0 + torch.tanh(inner)) * torch.sigmoid(hidden)


def build():
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), Gelu()) for _ in range(BLOCKS)]
    batch = (torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    return nn.Sequential(*blocks), batch, nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-3)
