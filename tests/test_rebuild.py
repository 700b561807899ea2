from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from advisor.recipe.rebuild import (
    batch_size_of,
    loader_code,
    loader_with,
    resize_batch,
)


class Squares(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([index, index**2])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10))


class Backwards(SequentialSampler):
    def __iter__(self):
        return iter(reversed(range(len(self.data_source))))


def stacked(samples):
    return torch.stack(samples) + 100


def by_function(loader, **changes):
    return loader_with(loader, **changes)


def by_code(loader, **changes):
    namespace = {"torch": torch, "loader": loader}
    exec(loader_code(**changes), namespace)
    return namespace["loader"]


both_ways = pytest.mark.parametrize("rebuild", [by_function, by_code])


# --- loaders --------------------------------------------------------------------------------------------------


@both_ways
def test_a_loader_keeps_what_is_not_changed(rebuild):
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(
        Squares(),
        batch_size=5,
        sampler=Backwards(Squares()),
        collate_fn=stacked,
        drop_last=True,
        generator=generator,
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        timeout=7,
        worker_init_fn=print,
        multiprocessing_context="spawn",
    )
    new = rebuild(loader, num_workers=2)
    assert type(new) is DataLoader
    assert new is not loader
    assert new.num_workers == 2
    kept = "dataset batch_size sampler collate_fn drop_last generator prefetch_factor persistent_workers timeout"
    for name in [*kept.split(), "worker_init_fn", "multiprocessing_context", "pin_memory"]:
        assert getattr(new, name) == getattr(loader, name), name
    assert loader.num_workers == 1


@both_ways
def test_batches_are_the_same_samples_in_the_same_order(rebuild):
    loader = DataLoader(Squares(), batch_size=5, sampler=Backwards(Squares()), collate_fn=stacked)
    new = rebuild(loader, batch_size=8)
    assert torch.equal(torch.cat(list(loader)), torch.cat(list(new)))
    assert [len(batch) for batch in new] == [8, 8, 8]


@both_ways
def test_shuffling_survives_with_its_generator(rebuild):
    orders = []
    for change in (False, True):
        loader = DataLoader(Squares(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
        loader = rebuild(loader, pin_memory=False) if change else loader
        orders.append(torch.cat(list(loader))[:, 0].tolist())
    assert orders[0] == orders[1]
    assert orders[0] != sorted(orders[0])


@both_ways
def test_a_batch_sampler_of_ones_own_is_kept(rebuild):
    batches = BatchSampler(Backwards(Squares()), 6, drop_last=False)
    new = rebuild(DataLoader(Squares(), batch_sampler=batches), num_workers=1)
    assert new.batch_sampler is batches
    assert [batch.shape[0] for batch in new] == [6, 6, 6, 6]


def test_the_batch_size_of_a_batch_sampler_cannot_be_changed():
    loader = DataLoader(Squares(), batch_sampler=BatchSampler(SequentialSampler(Squares()), 6, drop_last=False))
    with pytest.raises(ValueError, match="batch sampler of its own"):
        loader_with(loader, batch_size=8)


def test_the_batch_size_of_a_loader_that_does_not_batch_cannot_be_changed():
    with pytest.raises(ValueError, match="does not form batches"):
        loader_with(DataLoader(Squares(), batch_size=None), batch_size=8)


@both_ways
def test_a_loader_that_does_not_batch_still_does_not(rebuild):
    new = rebuild(DataLoader(Squares(), batch_size=None), num_workers=1)
    assert new.batch_size is None
    assert new.batch_sampler is None
    assert next(iter(new)).tolist() == [0, 0]


@both_ways
def test_iterable_datasets(rebuild):
    new = rebuild(DataLoader(Stream(), batch_size=4, drop_last=True), batch_size=3)
    assert [batch.tolist() for batch in new] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@both_ways
def test_without_workers_the_options_that_need_them_go(rebuild):
    loader = DataLoader(
        Squares(), num_workers=2, prefetch_factor=4, persistent_workers=True, multiprocessing_context="fork"
    )
    new = rebuild(loader, num_workers=0)
    assert (new.num_workers, new.prefetch_factor, new.persistent_workers) == (0, None, False)
    assert new.multiprocessing_context is None
    assert len(list(new)) == 24


def test_the_code_of_several_changes_keeps_the_earlier_ones():
    loader = DataLoader(Squares(), batch_size=4, collate_fn=stacked)
    namespace = {"torch": torch, "loader": loader}
    exec(loader_code(num_workers=1, persistent_workers=True) + loader_code(batch_size=6), namespace)
    new = namespace["loader"]
    assert (new.num_workers, new.persistent_workers, new.batch_size) == (1, True, 6)
    assert new.collate_fn is stacked


# --- batches --------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Record:
    images: torch.Tensor
    name: str
    extra: int = field(default=1, init=False)


@dataclass
class SimpleRagged:
    nodes: torch.Tensor
    edge_index: torch.Tensor


def test_a_batch_is_repeated_and_cut_along_its_samples():
    images, labels = torch.arange(6.0).reshape(3, 2), torch.arange(3)
    more = resize_batch((images, labels), 7)
    assert type(more) is tuple
    assert more[0].shape == (7, 2)
    assert more[1].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert resize_batch((images, labels), 2)[1].tolist() == [0, 1]
    assert images.shape == (3, 2)


def test_only_tensors_with_the_batch_dimension_change():
    batch = {"x": torch.zeros(4, 3), "scale": torch.tensor(2.0), "position": torch.ones(1, 5), "name": "four", "n": 4}
    new = resize_batch(batch, 8)
    assert new["x"].shape == (8, 3)
    assert new["scale"].item() == 2.0
    assert new["position"].shape == (1, 5)
    assert (new["name"], new["n"]) == ("four", 4)


def test_nested_containers_keep_their_types():
    batch = [Pair(torch.zeros(2, 1), OrderedDict(a=torch.ones(2))), Record(torch.zeros(2, 3), "r")]
    new = resize_batch(batch, 6)
    assert isinstance(new, list)
    assert isinstance(new[0], Pair)
    assert isinstance(new[0].right, OrderedDict)
    assert new[0].left.shape == (6, 1)
    assert new[0].right["a"].shape == (6,)
    assert isinstance(new[1], Record)
    assert (new[1].images.shape, new[1].name, new[1].extra) == ((6, 3), "r", 1)
    assert batch[1].images.shape == (2, 3)


@pytest.mark.parametrize("size", [2, 8])
def test_a_resized_tensor_keeps_its_memory_format_and_gradient_flag(size):
    images = torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    new = resize_batch(images, size)
    assert new.is_contiguous(memory_format=torch.channels_last)
    assert new.requires_grad
    assert new.is_leaf


def test_the_size_of_a_batch_is_that_of_its_first_tensor():
    assert batch_size_of({"scale": torch.tensor(1.0), "x": (torch.zeros(5, 2), torch.zeros(7))}) == 5
    assert batch_size_of(["text", 3]) is None


def ragged(**parts):
    return {"tokens": torch.arange(12), **parts}


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ((torch.arange(12), torch.tensor([0, 4, 8]), torch.zeros(3)), "first dimensions of its tensors differ .12, 3."),
        (ragged(cu_seqlens=torch.tensor([0, 5, 12]), labels=torch.arange(12)), "differ"),
        (
            {"values": torch.zeros(4), "offsets": torch.arange(4)},
            "'offsets' says where in another tensor samples begin",
        ),
        (SimpleRagged(torch.zeros(2, 3), edge_index=torch.zeros(2, 3)), "'edge_index' says"),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8), {"boxes": torch.zeros(5, 4)}], "differ .3, 5."),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "no tensor with samples"),
        ((torch.zeros(4, 2), torch.eye(4).to_sparse_csr()), "packed, sparse or nested"),
        (pack_sequence([torch.zeros(2, 3), torch.zeros(1, 3)]), "differ"),
        ((torch.zeros(2, 3), ["cat", "dog"]), "a list of 2 values that are no tensors"),
    ],
)
def test_a_batch_whose_samples_cannot_be_told_apart_is_not_resized(batch, problem):
    with pytest.raises(ValueError, match=problem):
        resize_batch(batch, 8)


@pytest.mark.parametrize(("batch", "size"), [("text", 4), (torch.zeros(0, 3), 4), (torch.zeros(3), 0)])
def test_what_cannot_be_resized_raises(batch, size):
    with pytest.raises(ValueError, match="batch"):
        resize_batch(batch, size)
