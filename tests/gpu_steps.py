"""A small model on the GPU, its batches and optimizers, and its step as the public API makes it."""

import torch
from graphed_steps import STEPS, Net

from advisor.step.tuning import Tuning

CAPTURED = {"step.cuda_graph": True}


def net():
    torch.manual_seed(0)
    return Net(16).cuda()


def batches(count=STEPS, size=8):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 6, generator=generator), torch.arange(size) % 3) for _ in range(count)]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def by_api(settings, model, optimizer, loss):
    tuning = Tuning(settings)
    model, optimizer = tuning.prepare(model, optimizer)
    return model, optimizer, tuning.train_step(model, optimizer, loss)
