"""Batches that are objects with tensors, and a step that fails on a later one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.step import TrainStep
from advisor.trial.measurement.draws import Feed
from advisor.trial.measurement.probe import probe_training
from advisor.trial.timed_loop import stepper
from advisor.workloads.batches import batches_in_data
from advisor.workloads.loop import GivenBatches

PLAN = StepPlan(mode=Mode.TRAIN, device="cpu")
PAIR = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))


@dataclass
class Graph:
    nodes: torch.Tensor
    edges: torch.Tensor


def train_step():
    model = nn.Linear(4, 3)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), PLAN)


def given(batches) -> GivenBatches:
    loader = batches_in_data(batches, [])
    assert isinstance(loader, GivenBatches)
    return loader


@pytest.mark.parametrize("count", [1, 3])
def test_objects_that_hold_tensors_are_batches(count):
    graphs = [Graph(torch.ones(3 + number), torch.ones(2, 5)) for number in range(count)]
    assert list(given(graphs)) == graphs
    assert batches_in_data((graphs[0], PAIR[1]), []) == (graphs[0], PAIR[1]), "inputs and a target"


def test_what_fails_on_a_later_batch_stays_the_error_that_it_is():
    wrong = (PAIR[0], PAIR[1] + 9)
    with pytest.raises(IndexError, match="out of bounds"):
        probe_training(train_step(), [PAIR, wrong], 0)
    with pytest.raises(IndexError, match="out of bounds"):
        stepper(train_step(), Feed(given([PAIR, PAIR, wrong])), 1)(3)
