"""Attention over long sequences with wide heads, where the kernel of the attention takes most of the step."""

import torch
from torch import nn
from torch.nn import functional

HEADS, HEAD_WIDTH, BLOCKS, LENGTH, BATCH = 16, 128, 2, 8192, 2
WIDTH = HEADS * HEAD_WIDTH


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        batch, length, _ = hidden.shape
        heads = self.project(self.norm(hidden)).view(batch, length, 3, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        return hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


def build():
    batch = (torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH))
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    return model, batch, nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-3)
