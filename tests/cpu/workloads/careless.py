"""Many small layers under deterministic algorithms and anomaly detection, with activations that are denormal."""

import torch
from torch import nn

WIDTH, BLOCKS, BATCH = 256, 8, 256


class Faint(nn.Module):
    """Numbers so small that the processor takes its slow path for them."""

    def forward(self, hidden):
        return hidden * 1e-39


def build():
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(BLOCKS)]
    model = nn.Sequential(Faint(), *blocks)
    batch = (torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    return model, batch, nn.MSELoss(), lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
