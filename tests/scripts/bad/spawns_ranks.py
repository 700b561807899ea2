"""Trains for hours in processes that torch.multiprocessing spawns."""

import torch


def worker(rank):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, nprocs=2)
