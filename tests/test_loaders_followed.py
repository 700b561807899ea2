"""Workers that were added follow a loop that changes its data while it reads them, and have files of their own."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from loaders import applied, both_ways, by_code
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from advisor.recipe.rebuild import loader_with

SIZE = 1


class Scaling:
    strength = 1.0

    def __call__(self, value):
        return value * self.strength


class Joined:
    length = 1

    def __call__(self, samples):
        return torch.stack(samples).expand(-1, self.length)


class Sized(Dataset):
    def __init__(self):
        self.size, self.options, self.transforms = 1, {"offset": 0}, [Scaling()]
        self.weights = np.ones(24)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        value = torch.full((self.size * SIZE,), float(index + self.options["offset"]))
        return self.transforms[0](value * self.weights[index])


class Hardest(Sampler):
    """Asks for the sample with the largest loss, of those that the loop tells it."""

    def __init__(self):
        self.losses = [1.0] * 24

    def __len__(self):
        return 24

    def __iter__(self):
        for _ in range(len(self)):
            index = max(range(24), key=self.losses.__getitem__)
            self.losses[index] *= 0.5
            yield index


def resize(loader, turn):
    loader.dataset.size = 1 + turn % 3


def move(loader, turn):
    loader.dataset.options["offset"] = turn


def weigh(loader, turn):
    loader.dataset.weights[turn:] += 1


def strengthen(loader, turn):
    loader.dataset.transforms[0].strength = turn / 4


def lengthen(loader, turn):
    loader.collate_fn.length = 1 + turn


def change_a_global(loader, turn):
    globals()["SIZE"] = 1 + turn % 2


def tell_the_sampler(loader, turn):
    loader.sampler.losses[turn] += 1.0


def read(loader, change, epochs=2):
    """The batches of a loop that changes something after every second one."""
    globals()["SIZE"], found = 1, []
    torch.manual_seed(2)
    for epoch in range(epochs):
        for turn, batch in enumerate(loader):
            found.append(batch.tolist())
            if turn % 2:
                change(loader, turn + epoch)
    return found


@pytest.mark.parametrize(
    ("act", "named", "change"),
    [
        (resize, "Sized.size", applied),
        (resize, "Sized.size", by_code),
        (move, "Sized.options", applied),
        (weigh, "Sized.weights", applied),
        (strengthen, "Scaling.strength", applied),
        (lengthen, "Joined.length", applied),
        (change_a_global, "SIZE", by_code),
    ],
)
def test_what_the_loop_changes_within_an_epoch_holds_for_the_next_batch(change, act, named):
    def make():
        return DataLoader(Sized(), batch_size=4, shuffle=True, collate_fn=Joined() if act is lengthen else None)

    expected = read(make(), act)
    with pytest.warns(UserWarning, match=rf"the loop changes {named} while it reads the loader, .* without workers"):
        assert read(change("num_workers", 2, make()), act) == expected


def test_a_sampler_that_the_loop_tells_of_losses_is_not_read_ahead_any_further():
    loader = loader_with(DataLoader(Sized(), batch_size=4, sampler=Hardest()), num_workers=1)
    with pytest.warns(UserWarning, match=r"the loop changes Hardest\.losses while it reads"):
        found = read(loader, tell_the_sampler)
    assert len(found) == 12
    assert all(len(batch) == 4 for batch in found)


class Weighted(Sampler):
    def __init__(self):
        self.weights = torch.ones(24)

    def __len__(self):
        return 24

    def __iter__(self):
        return iter(torch.multinomial(self.weights, 24, replacement=True).tolist())


def test_a_sampler_that_decides_as_an_epoch_begins_may_be_told_meanwhile():
    def add(loader, turn):
        loader.sampler.weights[turn] += 3

    expected = read(DataLoader(Sized(), batch_size=4, sampler=Weighted()), add, epochs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert read(applied("num_workers", 2, DataLoader(Sized(), 4, sampler=Weighted())), add, epochs=3) == expected


def test_a_size_of_batches_that_is_changed_within_an_epoch_is_noticed():
    def shrink(loader, turn):
        loader.batch_sampler.batch_size = 2

    loader = loader_with(DataLoader(Sized(), batch_size=4), num_workers=1)
    with pytest.warns(UserWarning, match=r"the loop changes BatchSampler\.batch_size while it reads the loader"):
        found = read(loader, shrink, epochs=1)
    assert sorted(value for batch in found for (value,) in batch) == list(range(24))


@pytest.mark.parametrize(
    ("recipe", "value", "generator", "change"),
    [
        ("num_workers", 0, False, applied),
        ("num_workers", 0, True, by_code),
        ("persistent_workers", False, True, applied),
        ("persistent_workers", False, False, by_code),
    ],
)
def test_workers_that_lived_on_and_do_not_any_more_shuffle_every_epoch_as_before(change, recipe, value, generator):
    def make():
        own = torch.Generator().manual_seed(5) if generator else None
        return DataLoader(Sized(), 4, shuffle=True, num_workers=2, persistent_workers=True, generator=own)

    def nothing(loader, turn):
        torch.rand(1)

    expected = read(make(), nothing, epochs=3)
    changed = change(recipe, value, make())
    assert not changed.persistent_workers
    assert read(changed, nothing, epochs=3) == expected


@pytest.mark.parametrize(("change", "lives_on"), [(applied, True), (by_code, False)])
def test_threads_may_read_one_loader_at_a_time(change, lives_on):
    loader = change("num_workers", 1, DataLoader(Sized(), batch_size=4))
    if not lives_on:
        loader = change("persistent_workers", False, loader)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: len(list(loader)), range(3))) == [6, 6, 6]


@pytest.mark.parametrize(("change", "epochs_before"), [(applied, 1), (by_code, 0)])
def test_two_threads_that_start_an_epoch_at_a_time_have_one_each(change, epochs_before):
    """DataLoader keeps an epoch in an attribute for a moment, where a second thread may put its own."""
    loader = change("num_workers", 1, DataLoader(Sized(), batch_size=4))
    for _ in range(epochs_before):
        list(loader)
    with ThreadPoolExecutor(1) as other:
        if loader._iterator is None:  # what iter(loader) does
            loader._iterator = loader._get_iterator()
        else:
            loader._iterator._reset(loader)
        theirs = other.submit(lambda: list(loader))
        time.sleep(0.1)
        mine = loader._iterator
        assert len(list(mine)) == 6
        assert len(theirs.result()) == 6


@both_ways
def test_a_worker_that_a_thread_of_an_executor_started_ends_well(change):
    loader = change("num_workers", 1, DataLoader(Sized(), batch_size=4))
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
    iterator = iter(change("num_workers", 1, DataLoader(Sized(), batch_size=4, shuffle=True)))
    assert sorted(value for batch in iterator for (value,) in batch.tolist()) == list(range(24))


class Stream(IterableDataset):
    factor = 1

    def __iter__(self):
        return (torch.tensor([index * self.factor]) for index in range(24))


def test_a_stream_cannot_be_read_again_from_where_it_is_which_is_said():
    def double(loader, turn):
        loader.dataset.factor = 2

    loader = loader_with(DataLoader(Stream(), batch_size=4), num_workers=1)
    with pytest.warns(UserWarning, match=r"changes Stream\.factor .* before the next epoch: leave out num_workers"):
        assert len(read(loader, double)) == 12


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
