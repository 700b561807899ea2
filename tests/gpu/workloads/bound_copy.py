"""Batches of 256 MiB in pageable memory for a model that takes their mean: a step that copies to the GPU.

The dataset's items are whole batches that lie in memory already, so that nothing is collated and nobody waits for them.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS, COLUMNS, BATCHES = 1024, 2**16, 4


class Batches(Dataset):
    def __init__(self):
        self.inputs = [torch.randn(ROWS, COLUMNS) for _ in range(BATCHES)]
        self.targets = torch.randint(10, (BATCHES, ROWS))

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.head(inputs.view(len(inputs), 64, -1).mean(dim=2))


def build():
    loader = DataLoader(Batches(), batch_size=None)
    return Mean(), loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-2)
