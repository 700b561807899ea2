"""Loaders that divide their samples, and loaders of another batch size, keep what their owners made them for."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import pytest
import torch
from loader_classes import Counted, Numbers, Sevens, Stream, contents
from loaders import applied, both_ways
from proposals import CATALOG
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    get_worker_info,
)

from advisor.errors import RefusedError
from advisor.step.loaders import divides_samples

# --- datasets that divide their samples -----------------------------------------------------------------------


class Divided(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        return iter(torch.arange(12.0)[(info.id if info else 0) :: (info.num_workers if info else 1)])


class Wrapped(IterableDataset):
    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return iter(self.inner)


class ByHelper(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(12.0)[part_of_worker()])


def part_of_worker():
    info = torch.utils.data.get_worker_info()
    return slice(info.id if info else 0, None, info.num_workers if info else 1)


def seeded(worker_id):
    random.seed(worker_id)


def dividing(count, worker_id):
    get_worker_info().dataset.first = worker_id * count


@pytest.mark.parametrize(
    ("dataset", "init", "divides"),
    [
        (Divided(), None, True),
        (Wrapped(Divided()), None, True),
        (Wrapped([Stream(), Divided()]), None, True),
        (ByHelper(), None, True),
        (Stream(), functools.partial(dividing, 6), True),
        (Stream(), lambda worker: dividing(6, worker), True),
        (Stream(), None, False),
        (Wrapped(Stream()), None, False),
        (Stream(), seeded, False),
    ],
)
def test_a_dataset_that_asks_for_its_worker_is_told_from_one_that_does_not(dataset, init, divides):
    assert divides_samples(DataLoader(dataset, worker_init_fn=init)) is divides


def test_one_worker_of_a_stream_yields_it_in_its_order():
    loader = DataLoader(Stream(), batch_size=4)
    changed = applied("num_workers", 1, loader)
    assert [batch.tolist() for batch in changed] == [batch.tolist() for batch in loader]


@pytest.mark.process
@both_ways
def test_several_workers_of_a_divided_stream_yield_each_sample_once(change):
    changed = change("num_workers", 2, DataLoader(Divided(), batch_size=3))
    assert sorted(torch.cat(list(changed)).tolist()) == list(range(12))


# --- batch sizes ----------------------------------------------------------------------------------------------


@both_ways
def test_the_share_of_a_distributed_sampler_is_kept(change):
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False)
    changed = change("batch_size", 6, DataLoader(Numbers(), batch_size=4, sampler=sampler, drop_last=True))
    assert changed.sampler is sampler
    assert [labels for _, labels in contents(changed)] == [[1, 3, 1, 3, 1, 3]] * 2


class Backwards(BatchSampler):
    def __iter__(self):
        return iter(list(super().__iter__())[::-1])


@both_ways
def test_a_batch_sampler_of_another_class_keeps_it(change):
    loader = DataLoader(Numbers(), batch_size=4)
    object.__setattr__(loader, "batch_sampler", Backwards(range(24), 4, False))
    changed = change("batch_size", 12, loader)
    assert type(changed.batch_sampler) is Backwards
    assert [inputs[0] for inputs, _ in contents(changed)] == [[12.0], [0.0]]
    assert len(loader) == 6


def test_a_class_of_its_own_gets_larger_batches():
    changed = applied("batch_size", 8, Sevens(Numbers(), batch_size=4))
    assert [len(inputs) for inputs, _ in changed] == [8, 8, 8]
    assert len(changed) == 3


def test_refusing_a_batch_size_changes_nothing_else():
    from advisor.recipe import Components
    from advisor.recipe.plan import StepPlan
    from advisor.records import Mode

    loader = Counted(TensorDataset(torch.zeros(8)), batch_size=2)
    parts = Components(nn.Linear(1, 1), None, loader, StepPlan(Mode.TRAIN, "cpu"), batch_size=2)
    with pytest.raises(RefusedError):
        CATALOG["batch_size"].apply(parts, 4)
    assert (parts.batch_size, parts.data) == (2, loader)
