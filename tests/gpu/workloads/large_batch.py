"""A perceptron on batches of 16,384 samples: few large products, and an optimizer for such batches."""

import torch
from torch import nn

WIDTH, BLOCKS, CLASSES, BATCH = 1024, 4, 100, 16384


def build():
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)]
    batch = (torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,)))
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES))
    return model, batch, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
