"""A dataset that takes 4 ms a sample, loaded in the training process: a step that waits for its input."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH, SAMPLES = 64, 16, 640
SAMPLE_S = 0.004


class Slow(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return torch.full((WIDTH,), float(index % 7)), index % 10


def build():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    loader = DataLoader(Slow(), batch_size=BATCH)
    return model, loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-2)
