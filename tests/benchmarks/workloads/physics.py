"""A physics-informed network for Burgers' equation: second derivatives of its output are in the loss, Adam."""

import math

import torch
from torch import nn

WIDTH, LAYERS, POINTS, STARTS, VISCOSITY = 128, 8, 20_000, 500, 0.01 / math.pi


def equation_loss(model, batch):
    points, starts, wanted = batch
    points = points.detach().requires_grad_(True)
    field = model(points)
    (slope,) = torch.autograd.grad(field.sum(), points, create_graph=True)
    along, over_time = slope[:, :1], slope[:, 1:]
    bend = torch.autograd.grad(along.sum(), points, create_graph=True)[0][:, :1]
    rest = over_time + field * along - VISCOSITY * bend
    return rest.square().mean() + (model(starts) - wanted).square().mean()


def build():
    hidden = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), *hidden, nn.Linear(WIDTH, 1))
    points, starts = 2 * torch.rand(POINTS, 2) - 1, torch.rand(STARTS, 2)
    starts[:, 1] = 0
    batch = points, starts, -torch.sin(math.pi * starts[:, :1])
    return model, batch, equation_loss, lambda p: torch.optim.Adam(p, lr=1e-3)
