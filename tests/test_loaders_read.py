"""Workers that a setting adds hear of the values that a dataset reads, wherever these stand."""

import multiprocessing
import os
import random
import sys
import types
import warnings

import pytest
import torch
from loaders import applied, both_ways
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from advisor.errors import RefusedError
from advisor.recipe.rebuild import loader_with, loader_with_workers
from advisor.step.worker_samples import DRAWN_ON, REMEMBERED
from advisor.trial.measurement.draws import side_effects_undone

pytestmark = pytest.mark.process
OPTIONS = "options_of_a_dataset"


class Numbered(Dataset):
    """Samples by a function of their index."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor(float(self.make(index)))


class Sized(Numbered):
    size = 1

    @staticmethod
    def of_class(index):
        return index * Sized.size

    @property
    def options(self):
        return sys.modules[OPTIONS]


def in_a_class(monkeypatch):
    monkeypatch.setattr(Sized, "size", 1)
    return Sized(Sized.of_class), lambda to: setattr(Sized, "size", to)


def in_the_environment(monkeypatch):
    monkeypatch.setenv("SIZE_OF_A_TEST", "1")
    data = Numbered(lambda index: index * int(os.environ["SIZE_OF_A_TEST"]))
    return data, lambda to: os.environ.__setitem__("SIZE_OF_A_TEST", str(to))


def in_a_module(monkeypatch):
    module = types.ModuleType(OPTIONS)
    module.size, module.__file__ = 1, __file__
    monkeypatch.setitem(sys.modules, OPTIONS, module)
    import options_of_a_dataset

    return Numbered(lambda index: index * options_of_a_dataset.size), lambda to: setattr(module, "size", to)


def in_a_variable_around(monkeypatch):
    sizes = [1]
    return Numbered(lambda index: index * sizes[0]), lambda to: sizes.__setitem__(0, to)


def in_a_tensor_around(monkeypatch):
    size = torch.ones(()).share_memory_()
    return Numbered(lambda index: index * size), size.fill_


def in_a_shared_value(monkeypatch):
    shared = multiprocessing.Value("i", 1)
    return Numbered(lambda index: index * shared.value), lambda to: setattr(shared, "value", to)


PLACES = (in_a_class, in_the_environment, in_a_module, in_a_variable_around, in_a_tensor_around, in_a_shared_value)


def epochs(loader, change, every_batch):
    found = []
    for epoch in range(3):
        for turn, batch in enumerate(loader):
            found.append(batch.tolist())
            if every_batch:
                change(2 + turn + epoch)
        change(2 + epoch)
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("every_batch", [False, True])
@both_ways
def test_a_value_that_the_loop_changes_is_heard_of(change, place, every_batch, monkeypatch):
    def loader():
        data, set_to = place(monkeypatch)
        return DataLoader(data, batch_size=4), set_to

    expected = epochs(*loader(), every_batch)
    plain, set_to = loader()
    tuned = change("num_workers", 1, plain)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert epochs(tuned, set_to, every_batch) == expected
    assert any("while it reads" in str(one.message) for one in told) == every_batch


def test_workers_share_a_value_and_live_on_when_it_changes_between_epochs(monkeypatch):
    data, set_to = in_a_shared_value(monkeypatch)
    loader = loader_with_workers(DataLoader(data, batch_size=4), 1)
    found = []
    for epoch in range(3):
        list(loader)
        found.append(loader._iterator._workers[0].pid)
        set_to(epoch)
    assert len(set(found)) == 1


# --- samplers that decide as they go ----------------------------------------------------------------------------


class ByWeights(Sampler):
    """Asks for the heaviest sample, by weights that the loop changes."""

    def __init__(self, weights):
        self.weights = weights

    def __len__(self):
        return 12

    def __iter__(self):
        for _ in range(len(self)):
            yield max(range(24), key=self.weights.__getitem__)


class Drawing(Sampler):
    def __init__(self):
        pass

    def __len__(self):
        return 16

    def __iter__(self):
        for _ in range(len(self)):
            yield random.randrange(24)


def order(loader, weights):
    found = []
    for _ in range(2):
        for batch in loader:
            found.append(batch.tolist())
            weights[int(batch[0])] -= 1.0
    return found


@both_ways
def test_a_sampler_that_reads_what_the_loop_decides_is_not_read_ahead(change):
    def loader_and_weights():
        weights = [float(number % 5) for number in range(24)]
        return DataLoader(Numbered(float), batch_size=2, sampler=ByWeights(weights)), weights

    plain, weights = loader_and_weights()
    expected = order(plain, weights)
    plain, weights = loader_and_weights()
    with pytest.warns(UserWarning, match="while it reads the loader"):
        assert order(change("num_workers", 2, plain), weights) == expected


def test_a_sampler_that_draws_from_batch_to_batch_is_read_ahead_and_that_is_said():
    loader = loader_with_workers(DataLoader(Numbered(float), batch_size=2, sampler=Drawing()), 1)
    with pytest.warns(UserWarning, match="the sampler draws random numbers from batch to batch"):
        assert sum(map(len, loader)) == 16


def test_an_order_that_is_decided_at_once_is_read_ahead_from_the_first_batch():
    loader = loader_with_workers(DataLoader(Numbered(float), batch_size=2, shuffle=True), 1)
    batches = iter(loader)
    next(batches)
    assert len(batches.kept.given) >= 2


# --- workers that there were already ----------------------------------------------------------------------------


def counted():
    seen = []
    return lambda index: len(seen.append(index) or seen)


@both_ways
def test_samples_that_depend_on_earlier_ones_end_with_their_workers(change):
    def loader():
        return DataLoader(Numbered(counted()), batch_size=4, num_workers=1)

    def two_epochs(of):
        return [batch.tolist() for _ in range(2) for batch in of]

    expected = two_epochs(loader())
    if change is applied:
        with pytest.raises(RefusedError, match=REMEMBERED):
            change("persistent_workers", True, loader())
    else:
        with pytest.warns(UserWarning, match=REMEMBERED):
            assert two_epochs(change("persistent_workers", True, loader())) == expected
    with pytest.warns(UserWarning, match=REMEMBERED):
        assert not change("num_workers", 2, loader()).persistent_workers


def test_that_samples_are_drawn_on_is_said():
    loader = DataLoader(Numbered(lambda index: torch.rand(())), batch_size=4, num_workers=1)
    with pytest.warns(UserWarning, match=DRAWN_ON):
        assert loader_with(loader, persistent_workers=True).persistent_workers


# --- what reading leaves ----------------------------------------------------------------------------------------


class Counting(Numbered):
    hits = 0

    def __getitem__(self, index):
        self.hits += 1
        return super().__getitem__(index)


def test_that_a_count_stays_in_the_workers_is_said():
    with pytest.warns(UserWarning, match=r"Counting\.hits is changed by reading samples"):
        loader_with_workers(DataLoader(Counting(float), batch_size=4), 1)


def test_another_collate_function_finds_the_samples_of_a_batch_that_was_read_at_once():
    pairs = torch.utils.data.TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = applied("batched_reads", True, DataLoader(pairs, batch_size=4))
    usual = list(DataLoader(pairs, batch_size=4))
    loader.collate_fn = lambda samples: default_collate([(2 * value, number) for value, number in samples])
    assert [batch[0].tolist() for batch in loader] == [(2 * batch[0]).tolist() for batch in usual]


def test_what_is_read_around_a_dataset_is_no_global_name_afterwards(monkeypatch):
    data, _ = in_a_module(monkeypatch)
    before = dict(globals())
    with side_effects_undone(DataLoader(data, batch_size=4)):
        pass
    assert globals().keys() == before.keys()
