"""Data that is no DataLoader: which lists are batches, and which are the parts of one batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from advisor import Workload
from advisor.errors import TargetError
from advisor.recipe.plan import StepPlan
from advisor.records import TargetSpec
from advisor.step.step import make_step
from advisor.trial.measurement.draws import probe_batches
from advisor.workloads.normalise import normalise

SPEC = TargetSpec("t", ".")


class OneInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


def pair():
    return torch.randn(8, 4), torch.randn(8, 4)


def near(output, target):
    return (output - target).square().mean()


def restored(model, batch):
    return near(model(batch), batch)


@pytest.mark.parametrize(
    ("data", "loss", "kind"),
    [
        ([pair() for _ in range(3)], near, tuple),
        ([{"x": pair()[0]} for _ in range(3)], lambda model, batch: model(batch["x"]).sum(), dict),
        ([pair()[0] for _ in range(5)], restored, torch.Tensor),
    ],
    ids=["tuples", "mappings", "tensors"],
)
def test_a_list_of_batches_is_read_batch_by_batch(data, loss, kind):
    loop = normalise(Workload(OneInput(), data=data, loss=loss), SPEC)
    batches = probe_batches(loop.data, 0)
    assert len(batches) == len(data)
    assert all(type(batch) is kind for batch in batches)
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    assert all(bool(torch.isfinite(step(batch))) for batch in batches)


@pytest.mark.parametrize(
    "data",
    [list(pair()), pair(), [list(pair()), [torch.randn(8), torch.randn(8)]], [torch.randn(8, 4), torch.zeros(8)]],
    ids=["a list of two", "a tuple", "parts of other forms", "input and target"],
)
def test_a_list_of_the_parts_of_one_batch_is_one_batch(data):
    assert normalise(Workload(OneInput(), data=data, loss=near), SPEC).data is data


def test_a_tuple_of_inputs_is_one_batch_for_a_loss_that_calls_the_model():
    """As of a triplet loss."""

    def triplet(model, batch):
        anchor, near, far = batch
        return torch.nn.functional.triplet_margin_loss(model(anchor), model(near), model(far))

    data = tuple(pair()[0] for _ in range(3))
    assert normalise(Workload(OneInput(), data=data, loss=triplet), SPEC).data is data


class Graph:
    """A batch that can be called, as PyTorch Geometric's ``Data`` can: it yields what it holds."""

    def __init__(self):
        self.x = torch.randn(8, 4)

    def __call__(self, *names):
        yield from vars(self).items()

    def to(self, device, **options):
        self.x = self.x.to(device, **options)
        return self


def test_a_batch_that_can_be_called_is_no_function_that_makes_batches():
    data = Graph()
    loop = normalise(Workload(OneInput(), data=data, loss=lambda model, batch: model(batch.x).sum()), SPEC)
    assert loop.data is data
    assert loop.make_batch is None


@pytest.mark.parametrize(("count", "is_one_batch"), [(3, True), (8, False)], ids=["a triplet", "batches"])
def test_a_long_list_of_tensors_is_batches_for_a_step_of_ones_own(count, is_one_batch):
    data = [torch.randn(8, 4) for _ in range(count)]
    loop = normalise(Workload(OneInput(), data=data, step=lambda batch: batch), SPEC)
    assert (loop.data is data) is is_one_batch


def test_what_can_be_read_once_is_read_ahead_and_said():
    loop = normalise((OneInput(), (pair() for _ in range(3)), near), SPEC)
    assert len(list(loop.data)) == len(list(loop.data)) == 3
    assert any("can be read only once" in note for note in loop.notes)
    with pytest.raises(TargetError, match="yields no batch"):
        normalise((OneInput(), iter(()), near), SPEC)
