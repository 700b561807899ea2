"""Large linear layers for one sample at a time: inference that is bound by reading the weights."""

import torch
from torch import nn

import advisor

WIDTH, BLOCKS = 8192, 8


def build():
    blocks = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(BLOCKS)]
    return advisor.Workload(nn.Sequential(*blocks), lambda size: torch.randn(size, WIDTH), mode="infer")
