"""Captured steps that read numbers off tensors of the host, with the device "meta" in the place of a GPU."""

import warnings

import numpy as np
import pytest
import torch
from graph_stand_in import RecordedGraph
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.graph import GraphedStep
from advisor.step.graphed_own_step import GraphedOwnStep
from advisor.step.step import OwnStep, TrainStep

META = torch.device("meta")
WEIGHTS = torch.tensor([1.0, 2.0], dtype=torch.float64)
WEIGHT = torch.tensor(1.0, dtype=torch.float64)
COUNT = torch.tensor([1])
MANY = torch.ones(100_000, dtype=torch.float64)
MODEL = nn.Linear(3, 2, device=META)
MODEL.register_buffer("scale", torch.ones(2, dtype=torch.float64))
# The tensors that are written to, and what reads them.
READS = {
    "tolist": (WEIGHTS, lambda: WEIGHTS.tolist()[0]),
    "item": (WEIGHTS, lambda: 2 * WEIGHTS[0].item()),
    "a method": (WEIGHTS, WEIGHTS[0].item),
    "float": (WEIGHT, lambda: float(WEIGHT)),
    "int": (COUNT, lambda: int(COUNT)),
    "index": (COUNT, lambda: [1.0, 2.0, 3.0][COUNT]),
    "numpy": (WEIGHTS, lambda: WEIGHTS.numpy()[0]),
    "iteration": (WEIGHTS, lambda: sum(float(one) for one in WEIGHTS)),
    "asarray": (WEIGHTS, lambda: np.asarray(WEIGHTS).sum()),
    "truth": (WEIGHTS, lambda: 1.0 if (WEIGHTS > 1.5).all() else 2.0),
    "as a number of an operator": (WEIGHT, lambda: WEIGHT),
    "of many": (MANY, lambda: 2 * MANY[0].item()),
    "of a layer": (MODEL.scale, lambda: MODEL.scale.tolist()[0]),
}


class GraphOnMeta(RecordedGraph):
    """A capture runs what the host computes, and a replay nothing of it. The device computes nothing at all."""

    def capture(self, call, generators=()):
        self.captures += 1
        self.result = call()


@pytest.fixture(autouse=True)
def written_back(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # which knows no such device
    before = [(tensor, tensor.clone()) for tensor in (WEIGHTS, WEIGHT, COUNT, MANY, MODEL.scale)]
    yield
    for tensor, values in before:
        tensor.copy_(values)


def step_of(factor):
    """A captured training step whose loss is multiplied by what ``factor`` gives."""
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)

    def loss(model, batch):
        return model(batch).square().mean() * factor()

    step = TrainStep(MODEL, optimizer, loss, StepPlan(mode="train", device="meta"))
    return GraphedStep(step, GraphOnMeta())


def own_step_of(factor):
    """A captured step of the user's own with such a loss."""
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        value = MODEL(batch).square().mean() * factor()
        value.backward()
        optimizer.step()
        return value

    own = OwnStep(step, MODEL, StepPlan(mode="train", device="meta"))
    return GraphedOwnStep(own, GraphOnMeta())


def run(step, count):
    for _ in range(count):
        step(torch.ones(4, 3, device=META))


@pytest.mark.parametrize("make", [step_of, own_step_of])
@pytest.mark.parametrize("name", READS)
def test_a_write_to_a_tensor_of_the_host_is_noticed_however_python_reads_it(name, make):
    tensor, read = READS[name]
    step = make(read)
    run(step, 8)
    assert step.captured, getattr(step, "refusal", step.patience.reason)
    tensor.mul_(2)
    run(step, 1)
    assert not step.captured
    run(step, 8)
    assert step.graph.captures == 2


@pytest.mark.parametrize("make", [step_of, own_step_of])
def test_a_write_by_an_array_that_shares_the_memory_is_noticed(make):
    step = make(lambda: WEIGHTS.tolist()[0])
    run(step, 8)
    WEIGHTS.numpy()[0] = 5.0
    run(step, 1)
    assert not step.captured


def counted():
    COUNT.add_(1)
    return 1.0


def test_a_step_that_counts_on_the_host_is_not_captured_for_a_graph_would_not_count():
    step = step_of(counted)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(step, 60)
    assert COUNT.item() == 61
    assert not step.graph.captures
    assert "a tensor of the host was written to" in str(seen[-1].message)


def test_a_table_that_the_device_reads_is_followed_by_copies():
    step = step_of(lambda: WEIGHTS.to(META).sum())
    for _ in range(12):
        WEIGHTS.mul_(1.5)
        run(step, 1)
    assert step.captured
    assert step.graph.captures == 1
