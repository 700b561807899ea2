"""Workers that a setting adds hear between epochs of the values that a dataset reads, and have files of their own."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from loaders import applied, both_ways
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from advisor.errors import RefusedError
from advisor.portable.worker_samples import DRAWN_ON, REMEMBERED
from advisor.recipe.rebuild import loader_with, loader_with_workers
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


def epochs(loader, change):
    found = []
    for epoch in range(3):
        found += [batch.tolist() for batch in loader]
        change(2 + epoch)
    return found


@pytest.mark.parametrize("place", PLACES)
@both_ways
def test_a_value_that_the_loop_changes_is_heard_of(change, place, monkeypatch):
    def loader():
        data, set_to = place(monkeypatch)
        return DataLoader(data, batch_size=4), set_to

    expected = epochs(*loader())
    plain, set_to = loader()
    assert epochs(change("num_workers", 1, plain), set_to) == expected


def test_workers_share_a_value_and_live_on_when_it_changes_between_epochs(monkeypatch):
    data, set_to = in_a_shared_value(monkeypatch)
    loader = loader_with_workers(DataLoader(data, batch_size=4), 1)
    found = []
    for epoch in range(3):
        list(loader)
        found.append(loader._iterator._workers[0].pid)
        set_to(epoch)
    assert len(set(found)) == 1


# --- samplers, threads, files ---------------------------------------------------------------------------------


def read(loader, change):
    """The batches of a loop that changes something after every second one."""
    found = []
    torch.manual_seed(2)
    for epoch in range(3):
        for turn, batch in enumerate(loader):
            found.append(batch.tolist())
            if turn % 2:
                change(loader, turn + epoch)
    return found


class Weighted(Sampler):
    def __init__(self):
        self.weights = torch.ones(24)

    def __len__(self):
        return 24

    def __iter__(self):
        return iter(torch.multinomial(self.weights, 24, replacement=True).tolist())


@both_ways
def test_a_sampler_that_decides_as_an_epoch_begins_may_be_told_meanwhile(change):
    def add(loader, turn):
        loader.sampler.weights[turn] += 3

    expected = read(DataLoader(Numbered(float), batch_size=4, sampler=Weighted()), add)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert read(change("num_workers", 2, DataLoader(Numbered(float), 4, sampler=Weighted())), add) == expected


@both_ways
def test_a_worker_that_a_thread_of_an_executor_started_ends_well(change):
    loader = change("num_workers", 1, DataLoader(Numbered(float), batch_size=4))
    loader = change("persistent_workers", False, loader)

    def exit_codes():
        iterator = iter(loader)
        workers = iterator._workers
        assert len(list(iterator)) == 6
        return [worker.exitcode for worker in workers]

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(exit_codes).result() == [0]


def test_a_name_of_the_loop_that_is_an_attribute_of_the_dataset_is_no_change_of_it():
    """Code lists what stands behind a dot among its names, and a loop in a script has its own as global ones."""
    names = {"__name__": "script", "torch": torch, "loader_with": loader_with}
    exec(
        """
from torch.utils.data import DataLoader, Dataset

class Pairs(Dataset):
    step = 1
    def __len__(self): return 8
    def __getitem__(self, index): return torch.ones(1) * index, self.step

loader = loader_with(DataLoader(Pairs(), batch_size=4), num_workers=1, persistent_workers=True)
started, step, ones = set(), 0, None
for epoch in range(3):
    for ones, index in loader:
        step += 1
    started.add(loader._iterator._workers[0].pid)
""",
        names,
    )
    assert names["step"] == 6
    assert len(names["started"]) == 1


@both_ways
def test_an_iterator_outlives_its_loader(change):
    iterator = iter(change("num_workers", 1, DataLoader(Numbered(float), batch_size=4, shuffle=True)))
    assert sorted(value for batch in iterator for value in batch.tolist()) == list(range(24))


class Reading(Dataset):
    """Seeks and reads in a file that was opened when it was made."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.file.seek(index)
        time.sleep(0.005)  # in which another worker would move the position that they share
        return self.file.read(1)[0]


@both_ways
def test_workers_do_not_move_one_another_s_position_in_an_open_file(change, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(16)))
    with path.open("rb", buffering=0) as file:
        loader = change("num_workers", 2, DataLoader(Reading(file), batch_size=1))
        assert [int(value) for value in loader] == list(range(16))
        assert loader.worker_init_fn is None


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
