"""Contrastive learning: a ResNet-18 for small images sees two views of each, a loss over all pairs, Adam."""

import torch
from torch import nn
from torch.nn import functional
from torchvision.models import resnet18

WIDTH, SIDE, BATCH, TEMPERATURE = 512, 32, 256, 0.5


class TwoViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = resnet18(num_classes=WIDTH)
        self.features.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.features.maxpool = nn.Identity()
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 128))

    def forward(self, one, other):
        return functional.normalize(self.head(self.features(torch.cat([one, other]))), dim=1)


def pairs_loss(model, batch):
    found = model(*batch)
    count = len(found)
    alike = found @ found.T / TEMPERATURE
    alike = alike.masked_fill(torch.eye(count, dtype=torch.bool, device=found.device), float("-inf"))
    partner = (torch.arange(count, device=found.device) + count // 2) % count
    return functional.cross_entropy(alike, partner)


def build():
    views = torch.randn(BATCH, 3, SIDE, SIDE), torch.randn(BATCH, 3, SIDE, SIDE)
    return TwoViews(), views, pairs_loss, lambda p: torch.optim.Adam(p, lr=3e-4, weight_decay=1e-4)
