"""Trains for hours in a process of a pool, which starts as a new interpreter."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch


def worker():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(worker).result()
