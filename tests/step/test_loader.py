"""A DataLoader that is made anew by its constructor's arguments, with some of them changed."""

import sys
from types import SimpleNamespace

import pytest
import torch
from loaders import Numbers, Stream
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, get_worker_info

from advisor.errors import RefusedError
from advisor.step.loader import rebuild

# --- what is kept ---------------------------------------------------------------------------------------------


def test_a_loader_keeps_what_is_not_changed():
    loader = DataLoader(
        Numbers(),
        batch_size=5,
        sampler=[3, 1, 2, 0, 5, 4],
        collate_fn=list,
        drop_last=True,
        generator=torch.Generator(),
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        timeout=7,
        worker_init_fn=print,
        multiprocessing_context="fork",
        in_order=False,
    )
    made = rebuild(loader, num_workers=2)
    assert (type(made), made.num_workers, loader.num_workers) == (DataLoader, 2, 1)
    kept = "dataset batch_size sampler collate_fn drop_last generator prefetch_factor persistent_workers timeout"
    for name in [*kept.split(), "worker_init_fn", "multiprocessing_context", "in_order", "pin_memory"]:
        assert getattr(made, name) == getattr(loader, name), name


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(1)},
        {"batch_size": None},
        {"batch_sampler": BatchSampler(SequentialSampler(range(10)), 3, drop_last=True)},
    ],
)
def test_the_samples_come_in_the_same_order(options):
    def order(loader):
        torch.manual_seed(2)
        if loader.generator is not None:
            loader.generator.manual_seed(1)
        return [number for batch, _ in loader for number in batch.reshape(-1).tolist()]

    loader = DataLoader(Numbers(), **options)
    assert order(rebuild(loader, pin_memory=False)) == order(loader)


SHUFFLED = {"batch_size": 5, "sampler": [3, 1, 2, 0, 5, 4, 9], "drop_last": True}


@pytest.mark.parametrize(
    ("options", "changes", "batches"),
    [
        (SHUFFLED, {"batch_size": 2}, [[3, 1], [2, 0], [5, 4]]),
        ({"batch_size": 5, "shuffle": True, "drop_last": True}, {"batch_sampler": [[1, 2], [7]]}, [[1, 2], [7]]),
    ],
)
def test_other_batches_are_of_the_same_samples(options, changes, batches):
    made = rebuild(DataLoader(Numbers(), **options), **changes)
    assert [batch.tolist() for batch, _ in made] == batches
    stream = rebuild(DataLoader(Stream(), batch_size=4, drop_last=True), batch_size=3)
    assert [len(batch) for batch in stream] == [3, 3, 3]


def test_without_workers_the_options_that_need_them_go():
    loader = DataLoader(Numbers(), num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=3)
    made = rebuild(loader, num_workers=0)
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers, made.timeout) == (0, None, False, 0)
    assert rebuild(made, num_workers=1).prefetch_factor == 2


class Scaled(DataLoader):
    """A subclass with an argument of its own, and a method in the place of a collate function."""

    def __init__(self, dataset, scale, **options):
        super().__init__(dataset, collate_fn=self.scaled, **options)
        self.scale = scale

    def scaled(self, samples):
        return torch.stack([number for number, _ in samples]) * self.scale


class Ordered(DataLoader):
    """A subclass that makes its sampler itself."""

    def __init__(self, dataset, shuffle=False, num_workers=0):
        super().__init__(dataset, 4, shuffle=shuffle, num_workers=num_workers)


def test_a_subclass_keeps_its_class_and_its_own_arguments():
    made = rebuild(Scaled(Numbers(), 3, batch_size=4), num_workers=1, batch_size=5)
    assert type(made) is Scaled
    assert made.collate_fn.__self__ is made
    assert torch.cat([*made]).tolist() == [3.0 * number for number in range(10)]
    assert type(rebuild(Ordered(Numbers(), shuffle=True), num_workers=1).sampler).__name__ == "RandomSampler"
    assert type(rebuild(Ordered(Numbers()), num_workers=1).sampler).__name__ == "SequentialSampler"


def test_loaders_of_libraries_keep_their_class():
    geometric = pytest.importorskip("torch_geometric")
    graphs = [geometric.data.Data(x=torch.ones(2, 1)) for _ in range(6)]
    made = rebuild(geometric.loader.DataLoader(graphs, batch_size=3, follow_batch=["x"]), num_workers=1)
    assert (type(made), made.follow_batch) == (geometric.loader.DataLoader, ["x"])
    prepared = pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(DataLoader(Numbers(), batch_size=4))
    assert type(rebuild(prepared, num_workers=1)).__name__ == type(prepared).__name__


# --- what is refused ------------------------------------------------------------------------------------------


class Needs(DataLoader):
    def __init__(self, dataset, secret):
        super().__init__(dataset)


class Raises(DataLoader):
    def __init__(self, dataset, **options):
        if options:
            raise OSError("the disk is full")
        super().__init__(dataset)


REFUSED = {
    "no such argument": (lambda: Ordered(Numbers()), {"pin_memory": True}, "Ordered has no argument pin_memory"),
    "an argument that is not kept": (lambda: Needs(Numbers(), 1), {}, "Needs cannot .* missing .* 'secret'"),
    "a constructor that raises": (lambda: Raises(Numbers()), {}, "by its constructor: the disk is full"),
    "whole batches": (lambda: DataLoader(Numbers(), batch_size=None), {"batch_size": 2}, "dataset sets the batch"),
    "batches of its own": (
        lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(range(10), 2, drop_last=False)),
        {"batch_size": 4},
        "batch sampler or dataset sets",
    ),
    "a stream": (lambda: DataLoader(Stream()), {"num_workers": 2}, "each worker yields all samples"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_not_do_the_same_is_refused_with_the_reason(kind):
    make, options, reason = REFUSED[kind]
    with pytest.raises(RefusedError, match=reason):
        rebuild(make(), **options)


# --- processes that would import a script ---------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_no_worker_is_added_that_would_import_the_users_script(method, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__="train.py", __spec__=None))
    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=method)
    with pytest.raises(RefusedError, match="would run your script again"):
        rebuild(loader, num_workers=2)
    assert rebuild(loader, prefetch_factor=4).num_workers == 1
    assert rebuild(DataLoader(Numbers()), num_workers=2).num_workers == 2  # forked


# --- workers and what they see --------------------------------------------------------------------------------


class Staged(Dataset):
    """A dataset that the loop changes between epochs."""

    stage = 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.stage


@pytest.mark.process
@pytest.mark.parametrize(("lives_on", "stages"), [(False, [0, 0, 1, 1, 2, 2]), (True, [0] * 6)])
def test_workers_see_what_the_loop_changed_between_epochs_and_persistent_ones_do_not(lives_on, stages):
    loader = rebuild(DataLoader(Staged()), num_workers=1, persistent_workers=lives_on)
    found = []
    for loader.dataset.stage in range(3):
        found += [int(number) for number in loader]
    assert found == stages


class Sharded(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return iter(range(10) if worker is None else range(worker.id, 10, worker.num_workers))


def test_a_stream_that_has_several_workers_may_have_more():
    assert rebuild(DataLoader(Sharded()), num_workers=1).num_workers == 1
    assert rebuild(DataLoader(Sharded(), num_workers=2), num_workers=3).num_workers == 3
