from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from advisor.workloads.loop import batch_size_of, resize_batch

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Record:
    images: torch.Tensor
    name: str
    extra: int = field(default=1, init=False)


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
    pair, record = resize_batch(batch, 6)
    assert (type(pair), type(pair.right), type(record)) == (Pair, OrderedDict, Record)
    assert (pair.left.shape, pair.right["a"].shape) == ((6, 1), (6,))
    assert (record.images.shape, record.name, record.extra) == ((6, 3), "r", 1)
    assert batch[1].images.shape == (2, 3)


@pytest.mark.parametrize("size", [2, 8])
def test_a_resized_tensor_keeps_its_memory_format_and_gradient_flag(size):
    new = resize_batch(torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_(), size)
    assert new.is_contiguous(memory_format=torch.channels_last)
    assert new.requires_grad
    assert new.is_leaf


def test_the_size_of_a_batch_is_that_of_its_first_tensor():
    assert batch_size_of({"scale": torch.tensor(1.0), "x": (torch.zeros(5, 2), torch.zeros(7))}) == 5
    assert batch_size_of(["text", 3]) is None


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ("text", "no tensor with samples"),
        (torch.zeros(0, 3), "no tensor with samples"),
        ((torch.arange(12), torch.tensor([0, 4, 8]), torch.zeros(3)), "first dimensions of its tensors differ .12, 3."),
        ({"tokens": torch.arange(12), "cu_seqlens": torch.tensor([0, 5, 12]), "labels": torch.arange(12)}, "differ"),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8), {"boxes": torch.zeros(5, 4)}], "differ .3, 5."),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "no tensor with samples"),
        ((torch.zeros(4, 2), torch.eye(4).to_sparse_csr()), "packed, sparse or nested"),
        (pack_sequence([torch.zeros(2, 3), torch.zeros(1, 3)]), "differ"),
        ((torch.zeros(2, 3), ["cat", "dog"]), "a list of 2 values that are not tensors"),
    ],
)
def test_a_batch_whose_samples_cannot_be_told_apart_is_not_resized(batch, problem):
    with pytest.raises(ValueError, match=problem):
        resize_batch(batch, 8)
