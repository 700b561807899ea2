"""A chain of additions and products over one large tensor, in inference: a step that moves bytes and nothing else.

The tensor has 512 MiB where there is a GPU and 64 MiB where there is none, far more than caches hold.
"""

import torch
from torch import nn

WIDTH, LINKS = 4096, 10


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 1.001), requires_grad=False)

    def forward(self, inputs):
        for _ in range(LINKS):
            inputs = inputs * self.scale + 0.5
        return inputs


def build():
    rows = 2**15 if torch.cuda.is_available() else 2**12
    return Chain().eval(), torch.randn(rows, WIDTH)
