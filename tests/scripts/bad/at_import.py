"""A module that trains when it is imported, and has a build() after that."""

import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10**9):
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()


def build():
    return model
