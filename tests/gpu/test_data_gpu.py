"""The data that a trial's model saw, on its way to a GPU: pinned, copied ahead, transformed there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from advisor.experiment.judging.data import compare_data
from advisor.recipe.plan import StepPlan
from advisor.recipe.rebuild import loader_with, loader_with_workers
from advisor.records import DataPrint, Mode
from advisor.step.prefetch import loop_loader
from advisor.trial.measurement.data_prints import fingerprint_of, pinning_problem
from advisor.trial.measurement.draws import fingerprint_of_data, first_batches
from advisor.trial.measurement.feed import Feed

pytestmark = pytest.mark.gpu
SEED = 3
IMAGES = torch.rand(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Sevens(DataLoader):
    def __iter__(self):
        return ([images * 0 + 7, labels] for images, labels in super().__iter__())


@dataclass
class Pair:
    images: torch.Tensor
    labels: torch.Tensor


class Pinned(Pair):
    def pin_memory(self):
        return type(self)(self.images.pin_memory(), self.labels.pin_memory())


def as_(kind):
    return lambda samples: kind(torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples]))


def loader_of(cls=DataLoader, **options):
    return cls(TensorDataset(IMAGES, torch.arange(32)), batch_size=4, **options)


def seen(loader, **changes):
    plan = StepPlan(Mode.TRAIN, "cuda", **changes)
    batches = first_batches(loader, SEED, 3, plan=plan)
    feed = Feed(loop_loader(loader, plan), SEED)
    for _ in range(3):
        feed.next()
    data = fingerprint_of_data(loader, batches, SEED, plan, twice=True)
    return DataPrint(data.probed, feed.prints, data.random, data.loose)


@pytest.mark.parametrize("cls", [DataLoader, Sevens])
def test_pinned_and_copied_ahead_the_data_are_the_same(cls):
    plain = seen(loader_of(cls, shuffle=True))
    pinned = loader_with(loader_with_workers(loader_of(cls, shuffle=True), 1), pin_memory=True)
    assert type(pinned) is cls
    assert next(iter(loader_with(loader_of(), pin_memory=True)))[0].is_pinned()
    assert compare_data(seen(pinned, device_prefetch=True, non_blocking=True), plain) is None


def test_transforms_on_the_device_differ_by_rounding_only():
    plain = seen(loader_of())
    transformed = seen(loader_of(), device_transform=lambda batch: [batch[0] * (1 + 2**-20), batch[1]])
    assert compare_data(transformed, plain).rounded
    wrong = seen(loader_of(), device_transform=lambda batch: [batch[0] * 2, batch[1]])
    assert not compare_data(wrong, plain).rounded


@pytest.mark.parametrize("kind", [Pair, Pinned])
def test_pinning_reaches_what_it_is_said_to_reach(kind):
    batch = next(iter(loader_with(loader_of(collate_fn=as_(kind)), pin_memory=True)))
    assert batch.images.is_pinned() == (not pinning_problem(batch))
    assert fingerprint_of(batch) == fingerprint_of(as_(kind)([(IMAGES[i], torch.tensor(i)) for i in range(4)]))
