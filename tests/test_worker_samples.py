"""Loaders get workers only where these read the samples that a loader without workers reads."""

import collections
import itertools
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from exported_module import module_of
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from advisor.recipe.catalog import load_catalog
from advisor.recipe.rebuild import loader_with_workers
from advisor.step import worker_samples
from advisor.step.tuning import Tuning
from advisor.step.worker_samples import (
    DEPENDS_ON_EARLIER,
    DIFFERS_IN_WORKERS,
    DRAWN_IN_WORKERS,
    ORDER_OF_STREAM,
    SEEDED_ALIKE,
)

SETTINGS = {"data.num_workers": 2}


class Samples(Dataset):
    """Samples made by a function of their index."""

    def __init__(self, make=float):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([self.make(index), index]), index


def counted_in_a_list():
    seen = []
    return lambda index: float(len(seen.append(index) or seen))


def counted_by_itertools():
    counts = itertools.count()
    return lambda index: float(next(counts))


def counted_in_a_tensor():
    count = torch.zeros(())
    return lambda index: float(count.add_(1))


def mixed_with_earlier():
    kept = collections.deque(maxlen=3)
    return lambda index: float(sum(kept.append(index) or kept))


def counting_collate():
    calls = 0

    def collate(samples):
        nonlocal calls
        calls += 1
        inputs, labels = default_collate(samples)
        return inputs * calls, labels

    return collate


def drawn_from_its_own():
    generator = np.random.default_rng(0)
    return lambda index: float(generator.random())


def in_this_process_only(index):
    return float(get_worker_info() is None)


def seed_alike(worker):
    np.random.seed(0)


def by_numpy(index):
    return float(np.random.rand())


def of(make):
    return DataLoader(Samples(make), batch_size=4)


REFUSED = (
    pytest.param(lambda: of(counted_in_a_list()), DEPENDS_ON_EARLIER, id="list"),
    pytest.param(lambda: of(counted_by_itertools()), DEPENDS_ON_EARLIER, id="itertools"),
    pytest.param(lambda: of(counted_in_a_tensor()), DEPENDS_ON_EARLIER, id="tensor"),
    pytest.param(lambda: of(mixed_with_earlier()), DEPENDS_ON_EARLIER, id="deque"),
    pytest.param(
        lambda: DataLoader(Samples(), batch_size=4, collate_fn=counting_collate()), DEPENDS_ON_EARLIER, id="collate"
    ),
    pytest.param(lambda: of(drawn_from_its_own()), DEPENDS_ON_EARLIER, id="own generator"),
    pytest.param(lambda: of(in_this_process_only), DIFFERS_IN_WORKERS, id="worker info"),
    pytest.param(
        lambda: DataLoader(Samples(by_numpy), batch_size=4, worker_init_fn=seed_alike), SEEDED_ALIKE, id="seeded alike"
    ),
)


def prepared(way, loader):
    model = nn.Linear(2, 2)
    if way == "load":
        return Tuning(SETTINGS).prepare(model, loader)[1]
    return module_of(load_catalog(), SETTINGS, "infer").prepare(model, loader=loader)[2]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_workers_that_would_read_other_samples_are_left_out(make, reason):
    loader = make()
    with pytest.warns(UserWarning, match=reason):
        assert prepared("load", loader) is loader


@pytest.mark.parametrize(("make", "reason"), [REFUSED[0], REFUSED[-1]])
def test_so_they_are_by_the_exported_file(make, reason):
    loader = make()
    with pytest.warns(UserWarning, match=reason):
        assert prepared("file", loader) is loader


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(())])
def test_samples_that_draw_random_numbers_get_workers_and_a_warning(draw):
    with pytest.warns(UserWarning, match=DRAWN_IN_WORKERS):
        assert prepared("load", of(lambda index: float(draw()))).num_workers == 2


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from (torch.tensor([float(place)]) for place in range(first, 8, every))


def test_several_workers_of_a_stream_get_a_warning():
    with pytest.warns(UserWarning, match=ORDER_OF_STREAM):
        assert prepared("load", DataLoader(Stream(), batch_size=2)).num_workers == 2


class Fails(Dataset):
    """Its samples cannot be read here, or that takes for ever."""

    def __init__(self, waits):
        self.waits = waits

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.waits:
            threading.Event().wait()
        raise OSError("no such file")


@pytest.mark.parametrize("waits", [False, True])
def test_what_cannot_be_read_here_gets_its_workers_unchecked(waits, monkeypatch):
    monkeypatch.setattr(worker_samples, "LIMIT_S", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prepared("load", DataLoader(Fails(waits), batch_size=4)).num_workers == 2


def test_reading_on_trial_changes_nothing_here(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(64)))
    with path.open("rb") as file:
        seen = []

        def from_the_file(index):
            seen.append(index)
            file.seek(index)
            return float(file.read(1)[0])

        file.seek(5)
        state, loader = torch.get_rng_state(), of(from_the_file)
        with pytest.warns(UserWarning, match="seen is changed by reading samples") as told:
            assert loader_with_workers(loader, 2).num_workers == 2
        assert len(told) == 1
        assert seen == []
        assert file.tell() == 5
        assert torch.equal(torch.get_rng_state(), state)
