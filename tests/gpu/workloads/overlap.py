"""A perceptron whose launches take the host about as long as the GPU computes, fed from pinned memory: what waits for
a copy holds up the launches of the next step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BLOCKS, CLASSES, BATCH, BATCHES = 1024, 24, 100, 512, 64


class Batches(Dataset):
    """Whole batches that lie in memory: workers only hand them over."""

    def __init__(self):
        self.inputs = torch.randn(8, BATCH, WIDTH)
        self.targets = torch.randint(CLASSES, (8, BATCH))

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return self.inputs[index % 8], self.targets[index % 8]


def build():
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)]
    loader = DataLoader(Batches(), batch_size=None, num_workers=2, pin_memory=True, persistent_workers=True)
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES))
    return model, loader, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
