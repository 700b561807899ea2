"""Trains in processes of its own."""

import multiprocessing

import torch


def worker():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=worker)
    process.start()
    process.join()
