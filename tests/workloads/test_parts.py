"""The parts of a workload as people return them, and data that is no DataLoader."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from advisor import Workload
from advisor.errors import TargetError
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, TargetSpec
from advisor.step.step import make_step
from advisor.trial.measurement.draws import probe_batches
from advisor.workloads.normalise import normalise

SPEC = TargetSpec("t", ".")
NET = nn.Linear(8, 3)
SGD = torch.optim.SGD(NET.parameters(), lr=0.1)
BATCH = torch.randn(16, 8), torch.randint(3, (16,))
LOADER = DataLoader(TensorDataset(*BATCH), 8)
LOSS = functional.cross_entropy


class OwnLoss(nn.Module):
    """A loss that is a module of the person's own."""

    def forward(self, output, target):
        return functional.cross_entropy(output, target)


class AcceleratedScheduler:
    """Named and used like one, and no class of PyTorch's."""

    def step(self):
        """Do nothing."""


RETURNED = {
    "in the documented order": (NET, LOADER, LOSS, SGD),
    "the loss before the data": (NET, LOSS, LOADER, SGD),
    "the optimizer second": (NET, SGD, LOADER, LOSS),
    "the optimizer before the loss": (NET, LOADER, SGD, LOSS),
    "a module as the loss": (NET, OwnLoss(), LOADER, SGD),
    "a criterion first": (nn.CrossEntropyLoss(), NET, LOADER, SGD),
    "a scheduler too": (NET, LOADER, LOSS, SGD, StepLR(SGD, 1)),
    "another scheduler": (NET, LOADER, LOSS, SGD, ReduceLROnPlateau(SGD)),
    "usual names": {"net": NET, "train_loader": LOADER, "loss_fn": LOSS, "opt": SGD},
    "a scheduler by its kind": {"model": NET, "loader": LOADER, "loss": LOSS, "opt": SGD, "warmup": StepLR(SGD, 1)},
    "more names": {"model": NET, "train_dataloader": LOADER, "criterion": LOSS, "optim": SGD},
    "a scheduler that is wrapped": (NET, LOADER, LOSS, SGD, AcceleratedScheduler()),
}


@pytest.mark.parametrize("value", RETURNED.values(), ids=RETURNED)
def test_each_part_is_found(value):
    loop = normalise(value, SPEC)
    assert (loop.model, loop.data, loop.optimizer, loop.mode) == (NET, LOADER, SGD, Mode.TRAIN)
    assert loop.loss is LOSS or isinstance(loop.loss, OwnLoss | nn.CrossEntropyLoss)


def test_a_function_of_a_size_may_return_a_loader():
    def make(batch_size):
        return DataLoader(TensorDataset(*BATCH), batch_size)

    loop = normalise((NET, make, LOSS), replace(SPEC, batch_size=4))
    assert (type(loop.data), loop.batch_size, loop.make_batch) == (DataLoader, 4, None)


SQUARE = nn.Linear(4, 4)


def pair():
    return torch.randn(8, 4), torch.randn(8, 4)


def near(output, target):
    return (output - target).square().mean()


@pytest.mark.parametrize(
    ("data", "loss", "kind"),
    [
        ([pair() for _ in range(3)], near, tuple),
        ([{"x": pair()[0]} for _ in range(3)], lambda model, batch: model(batch["x"]).sum(), dict),
        ([pair()[0] for _ in range(5)], lambda model, batch: near(model(batch), batch), torch.Tensor),
    ],
    ids=["tuples", "mappings", "tensors"],
)
def test_a_list_of_batches_is_read_batch_by_batch(data, loss, kind):
    loop = normalise(Workload(SQUARE, data=data, loss=loss), SPEC)
    batches = probe_batches(loop.data, 0)
    assert len(batches) == len(data)
    assert all(type(batch) is kind for batch in batches)
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    assert all(bool(torch.isfinite(step(batch))) for batch in batches)


class Graph:
    """A batch that can be called, as PyTorch Geometric's ``Data`` can: it yields what it holds."""

    def __init__(self):
        self.x = torch.randn(8, 4)

    def __call__(self, *names):
        yield from vars(self).items()

    def to(self, device, **options):
        self.x = self.x.to(device, **options)
        return self


ONE_BATCH = {
    "a list of two": list(pair()),
    "a tuple": pair(),
    "a tuple of three": (*pair(), pair()[0]),
    "a list of three": [*pair(), pair()[0]],
    "parts of other forms": [list(pair()), [torch.randn(8), torch.randn(8)]],
    "input and target": [torch.randn(8, 4), torch.zeros(8)],
    "an object that can be called": Graph(),
}


@pytest.mark.parametrize("data", ONE_BATCH.values(), ids=ONE_BATCH)
def test_the_parts_of_one_batch_are_one_batch(data):
    for given in ({"loss": lambda model, batch: 0}, {"step": lambda batch: 0}):
        loop = normalise(Workload(SQUARE, data=data, **given), SPEC)
        assert loop.data is data
        assert loop.make_batch is None


def test_what_can_be_read_once_is_read_ahead_and_said():
    loop = normalise((SQUARE, (pair() for _ in range(3)), near), SPEC)
    assert len(list(loop.data)) == len(list(loop.data)) == 3
    assert any("can be read only once" in note for note in loop.notes)
    with pytest.raises(TargetError, match="yields no batch"):
        normalise((SQUARE, iter(()), near), SPEC)
