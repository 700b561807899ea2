"""Captured steps beside plain loops on the CPU, where a stand-in records operators in place of a CUDA graph."""

import copy
from functools import partial

import pytest
import torch
from graph_stand_in import RecordedGraph
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.graph import GraphedStep
from advisor.step.step import TrainStep

STEPS = 14


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        # No bias before the normalisation: its gradient is rounding alone, which Adam would blow up to full steps.
        self.first, self.norm, self.last = nn.Linear(6, width, bias=False), nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.scale = 1.0

    def forward(self, x):
        return self.scale * self.last(torch.relu(self.norm(self.first(x))))


def net():
    torch.manual_seed(0)
    return Net()


def batches(count=STEPS, size=5):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 6, generator=generator), torch.arange(size) % 3) for _ in range(count)]


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, **{"lr": 0.1, "momentum": 0.9, "fused": True, **options})


def adam(parameters, **options):
    return torch.optim.AdamW(parameters, **{"lr": 0.01, "fused": True, **options})


def of_model(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def plain(model, optimizer, loss):
    """A step of a plain loop; ``loss`` is of a model and a batch."""

    def step(batch):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def captured(step, **stand_in):
    """A step that is captured by the stand-in, which is made anew for each graph; ``graphs`` are those made."""
    graphs = []
    found = GraphedStep(step, graph=lambda _: graphs.append(RecordedGraph(**stand_in)) or graphs[-1])
    found.graphs = graphs
    return found


def graphed(model, optimizer, loss=of_model, *, of_host=(), **plan):
    return captured(TrainStep(model, optimizer, loss, StepPlan(mode="train", device="cpu", **plan)), of_host=of_host)


def run(step, data, change=lambda at: None):
    """The losses of a step over batches; ``change(at)`` is called before each."""
    losses = []
    for at, batch in enumerate(data):
        change(at)
        losses.append(float(step(batch)))
    return losses


def both(change=lambda at, model, optimizer: None, *, make=sgd, data=None, loss=of_model, **plan):
    """Losses and states of a plain loop and of a captured step, and that step; ``change`` is called before each."""
    found = []
    for make_step in (plain, partial(graphed, **plan)):
        model = net()
        optimizer = make(model.parameters())
        step = make_step(model, optimizer, loss)
        losses = run(step, data or batches(), lambda at, model=model, optimizer=optimizer: change(at, model, optimizer))
        found.append((losses, copy.deepcopy(model.state_dict())))
    return found, step


def agree(found):
    (losses, state), (others, other_state) = found
    assert others == pytest.approx(losses, rel=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(other_state[name], value, rtol=1e-4, atol=1e-6)
