"""Differential equations, Adam: a Fourier neural operator, and a physics-informed network."""

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH, MODES, LAYERS, SIDE, BATCH = 32, 12, 4, 85, 20


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        size = (WIDTH, WIDTH, MODES, MODES)
        self.low = nn.Parameter(torch.rand(size, dtype=torch.cfloat) / WIDTH**2)
        self.high = nn.Parameter(torch.rand(size, dtype=torch.cfloat) / WIDTH**2)

    def forward(self, x):
        waves = torch.fft.rfft2(x)
        result = torch.zeros_like(waves)
        result[:, :, :MODES, :MODES] = torch.einsum("bixy,ioxy->boxy", waves[:, :, :MODES, :MODES], self.low)
        result[:, :, -MODES:, :MODES] = torch.einsum("bixy,ioxy->boxy", waves[:, :, -MODES:, :MODES], self.high)
        return torch.fft.irfft2(result, s=x.shape[-2:])


class Operator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, WIDTH)
        self.spectral = nn.ModuleList(Spectral() for _ in range(LAYERS))
        self.local = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(LAYERS))
        self.last = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, 1))

    def forward(self, x):
        batch, rows, columns, _ = x.shape
        down = torch.linspace(0, 1, rows, device=x.device).view(1, rows, 1, 1).expand(batch, rows, columns, 1)
        along = torch.linspace(0, 1, columns, device=x.device).view(1, 1, columns, 1).expand(batch, rows, columns, 1)
        x = self.first(torch.cat([x, down, along], -1)).permute(0, 3, 1, 2)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = functional.gelu(spectral(x) + local(x))
        return self.last(x.permute(0, 2, 3, 1))


def fourier():
    fields = torch.randn(2, BATCH, SIDE, SIDE, 1)
    return Operator(), tuple(fields), nn.MSELoss(), lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-4)


def equation_loss(model, batch):
    """Burgers' equation: second derivatives of the output are in the loss."""
    points, starts, wanted = batch
    points = points.detach().requires_grad_(True)
    field = model(points)
    (slope,) = torch.autograd.grad(field.sum(), points, create_graph=True)
    along, over_time = slope[:, :1], slope[:, 1:]
    bend = torch.autograd.grad(along.sum(), points, create_graph=True)[0][:, :1]
    rest = over_time + field * along - (0.01 / math.pi) * bend
    return rest.square().mean() + (model(starts) - wanted).square().mean()


def physics():
    width, points, starts = 128, 2 * torch.rand(20_000, 2) - 1, torch.rand(500, 2)
    hidden = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), *hidden, nn.Linear(width, 1))
    starts[:, 1] = 0
    batch = points, starts, -torch.sin(math.pi * starts[:, :1])
    return model, batch, equation_loss, lambda p: torch.optim.Adam(p, lr=1e-3)
