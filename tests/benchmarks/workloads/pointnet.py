"""Point clouds: a PointNet with two transforms that it learns, made on the host in each step, Adam."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

POINTS, CLASSES, BATCH = 1024, 40, 64


def pointwise(*widths):
    parts = []
    for inputs, outputs in pairwise(widths):
        parts += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*parts)


def dense(*widths):
    parts = []
    for inputs, outputs in pairwise(widths):
        parts += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*parts)


class Transform(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.points = pointwise(size, 64, 128, 1024)
        self.cloud = nn.Sequential(dense(1024, 512, 256), nn.Linear(256, size * size))

    def forward(self, x):
        found = self.cloud(self.points(x).amax(2))
        return found.view(len(x), self.size, self.size) + torch.eye(self.size).to(x.device)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_points, self.of_features = Transform(3), Transform(64)
        self.first = pointwise(3, 64)
        self.second = nn.Sequential(pointwise(64, 128), nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024))
        last = nn.Linear(512, 256), nn.Dropout(0.3), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, CLASSES)
        self.head = nn.Sequential(dense(1024, 512), *last)

    def forward(self, x):
        x = self.first(torch.bmm(self.of_points(x), x))
        turned = self.of_features(x)
        return self.head(self.second(torch.bmm(turned, x)).amax(2)), turned


def turned_loss(output, target):
    logits, turned = output
    unit = torch.eye(turned.shape[1], device=turned.device)[None]
    off = torch.norm(torch.bmm(turned, turned.transpose(1, 2)) - unit, dim=(1, 2)).mean()
    return functional.cross_entropy(logits, target) + 0.001 * off


def build():
    batch = torch.randn(BATCH, 3, POINTS), torch.randint(CLASSES, (BATCH,))
    return PointNet(), batch, turned_loss, lambda p: torch.optim.Adam(p, lr=1e-3)
