"""A recommender: 26 embedding tables of 100,000 rows and an MLP, dense gradients, Adam: a step that moves bytes."""

import torch
from torch import nn

TABLES, ROWS, WIDTH, BATCH = 26, 100_000, 32, 4096


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in range(TABLES))
        self.mlp = nn.Sequential(
            nn.Linear(TABLES * WIDTH, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, rows):
        looked_up = [table(rows[:, index]) for index, table in enumerate(self.tables)]
        return self.mlp(torch.cat(looked_up, dim=1)).squeeze(1)


def build():
    batch = (torch.randint(ROWS, (BATCH, TABLES)), torch.randint(2, (BATCH,)).float())
    return Recommender(), batch, nn.BCEWithLogitsLoss(), lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
