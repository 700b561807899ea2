"""Forks, and lets the child train."""

import os

import torch

child = os.fork()
if child == 0:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()
os.waitpid(child, 0)
