"""Steps that are bound by one thing each, at sizes for a GPU."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2)


class Slow(Dataset):
    """A sample takes 4 ms."""

    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((64,), float(index % 7)), index % 10


def data():
    """A dataset that takes its time, loaded in the training process."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, DataLoader(Slow(), batch_size=16), nn.CrossEntropyLoss(), sgd


def launches():
    """A hundred layers of width 16 on a batch of 4."""
    layers = [layer for _ in range(100) for layer in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers), (torch.randn(4, 16), torch.randn(4, 16)), nn.MSELoss(), sgd


class Chain(nn.Module):
    """A chain of additions and products."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 1.001), requires_grad=False)

    def forward(self, inputs):
        for _ in range(10):
            inputs = inputs * self.scale + 0.5
        return inputs


def memory():
    """One tensor of 512 MiB, far more than caches hold; in inference."""
    return Chain(4096).eval(), torch.randn(2**15, 4096)


def products():
    """Four square layers on a batch as large, in float32."""
    width = 8192
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])
    batch = (torch.randn(width, width), torch.randn(width, width))
    return model, batch, nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-3)


class Batches(Dataset):
    """Whole batches of 256 MiB that lie in memory already, so that nothing is collated and nobody waits for them."""

    def __init__(self):
        self.inputs = [torch.randn(1024, 2**16) for _ in range(4)]
        self.targets = torch.randint(10, (4, 1024))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.head(inputs.view(len(inputs), 64, -1).mean(dim=2))


def copies():
    """Large batches in pageable memory for a model that takes their mean."""
    return Mean(), DataLoader(Batches(), batch_size=None), nn.CrossEntropyLoss(), sgd
