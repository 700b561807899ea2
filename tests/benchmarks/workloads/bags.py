"""A click model: bags of embeddings for each feature beside dense features, an MLP over all, Adam."""

import torch
from torch import nn

TABLES, ROWS, WIDTH, BAG, DENSE, BATCH = 16, 100_000, 64, 20, 13, 16384


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="mean") for _ in range(TABLES))
        self.bottom = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, WIDTH), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear((TABLES + 1) * WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, dense, bags):
        found = [table(bags[:, index]) for index, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(dense), *found], dim=1)).squeeze(1)


def build():
    batch = (torch.randn(BATCH, DENSE), torch.randint(ROWS, (BATCH, TABLES, BAG)), torch.randint(2, (BATCH,)).float())
    return Clicks(), batch, nn.BCEWithLogitsLoss(), lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
