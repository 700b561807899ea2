import copy
from collections import UserDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from sample_batches import Encoding, Pair, Sample
from torch.nn.utils.rnn import pack_sequence

from advisor.step.batch import copy_into, map_tensors, mover, signature_of, tensors_of


@dataclass
class Counted:
    image: Any
    rows: int = field(init=False)

    def __post_init__(self):
        self.rows = len(self.image)


class ReadOnly(UserDict):
    def __init__(self):
        super().__init__()
        self.data = {"x": ones(2)}


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


NESTED = {
    "tuple": (ones(2), [ones(3), "text"], None),
    "list": [ones(2), {"a": ones(3)}],
    "dict": {"x": ones(2), "meta": {"id": 3, "mask": ones(2)}},
    "named tuple": Pair(ones(2), ones(2)),
    "dataclass": Sample(ones(2), "b", {"x": ones(1)}),
    "mapping": Encoding({"x": ones(2)}),
}


@pytest.mark.parametrize("batch", NESTED.values(), ids=NESTED)
def test_mapping_keeps_the_structure_and_changes_every_tensor(batch):
    doubled = map_tensors(lambda tensor: 2 * tensor, batch)
    assert type(doubled) is type(batch)
    assert signature_of(doubled) == signature_of(batch)
    assert all(bool((tensor == 2).all()) for tensor in tensors_of(doubled))
    assert all(bool((tensor == 1).all()) for tensor in tensors_of(batch))


def test_a_dataclass_keeps_the_fields_that_its_constructor_does_not_take():
    counted = Counted(ones(4))
    counted.rows = ones(3)
    assert map_tensors(lambda tensor: 2 * tensor, counted).rows.tolist() == [2.0] * 3
    assert counted.rows.tolist() == [1.0] * 3


def test_a_mapping_keeps_its_class_and_its_attributes():
    marked = Encoding({"x": ones(2)})
    marked.encodings = ["kept"]
    doubled = map_tensors(lambda tensor: 2 * tensor, marked)
    assert (type(doubled), doubled.encodings) == (Encoding, ["kept"])
    assert type(map_tensors(torch.neg, ReadOnly())) is ReadOnly
    assert map_tensors(torch.neg, defaultdict(list, {"x": [ones(2)]}))["missing"] == []


class Bag:
    """A batch of a class as users write them."""

    def __init__(self, x, note="a"):
        self.x, self.parts, self.note = x, {"mask": [ones(2)]}, note
        self.own = self


class Movable(Bag):
    def to(self, device, non_blocking=False):
        moved = copy.copy(self)
        moved.x, moved.asked = self.x.to(device), non_blocking
        return moved


class InPlace(Bag):
    def to(self, device):
        self.x = self.x.to(device)


class Slotted:
    __slots__ = ("__weakref__", "x", "y")

    def __init__(self, x):
        self.x = x


def frozen(x):
    @pytest.importorskip("attrs").frozen
    class Frozen:
        x: Any
        note: str = "a"

    return Frozen(x)


META = torch.device("meta")


@pytest.mark.parametrize("make", [Bag, Slotted, frozen, lambda x: Sample(x, "b", {"y": x}), lambda x: [Bag(x)]])
def test_objects_are_moved_wholly_and_as_copies(make):
    batch = make(ones(2))
    moved = mover(META)(batch)
    assert type(moved) is type(batch)
    assert {tensor.device for tensor in tensors_of(moved)} == {META}
    assert {tensor.device.type for tensor in tensors_of(batch)} == {"cpu"}


@pytest.mark.parametrize("non_blocking", [False, True])
def test_an_object_is_moved_by_its_own_method(non_blocking):
    moved = mover(META, non_blocking=non_blocking)([Movable(ones(2))])[0]
    assert moved.x.device == META
    assert moved.asked is non_blocking
    assert moved.parts["mask"][0].device.type == "cpu"  # the class knows best
    assert mover(META, non_blocking=True)(InPlace(ones(2))).x.device == META


def test_what_an_object_moved_itself_gets_the_layout_and_the_type_too():
    moved = mover(torch.device("cpu"), memory_format="channels_last", dtype="bfloat16")(Movable(ones(2, 3, 4, 4)))
    assert moved.x.is_contiguous(memory_format=torch.channels_last)
    assert {tensor.dtype for tensor in tensors_of(moved)} == {torch.bfloat16}


def test_packed_sequences_keep_their_sizes_on_the_host():
    packed = pack_sequence([ones(3), ones(2), ones(4)], enforce_sorted=False)
    moved = mover(META, non_blocking=True, dtype="bfloat16")((packed, ones(3)))[0]
    assert (moved.data.device, moved.data.dtype, moved.sorted_indices.device) == (META, torch.bfloat16, META)
    assert moved.batch_sizes.device.type == "cpu"
    static = map_tensors(torch.zeros_like, packed)
    copy_into(static, packed)
    assert torch.equal(static.data, packed.data)


@pytest.mark.process
def test_batches_of_graphs():
    data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(x=ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), name="a") for _ in range(2)]
    batch = data.Batch.from_data_list(graphs)
    static = map_tensors(torch.zeros_like, batch)
    assert (type(static), static.num_nodes, static.num_graphs) == (type(batch), 6, 2)
    assert float(batch.x.sum()) == 12.0
    copy_into(static, batch)
    assert torch.equal(static.x, batch.x)
    assert signature_of(static) == signature_of(batch)
    assert signature_of(data.Batch.from_data_list(graphs[:1])) != signature_of(batch)
    moved = mover(META, non_blocking=True, dtype="bfloat16")(batch)
    assert (moved.x.dtype, moved.edge_index.dtype, moved.x.device) == (torch.bfloat16, torch.int64, META)


def test_moving_gives_only_tensors_of_the_rank_the_memory_format():
    move = mover(torch.device("cpu"), memory_format="channels_last")
    image, clip, label = move((ones(2, 3, 4, 4), ones(2, 3, 2, 4, 4), ones(2)))
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert clip.is_contiguous()
    assert label.is_contiguous()


def test_copying_into_a_batch_of_the_same_structure():
    static = {"x": torch.zeros(2, 3), "y": [torch.zeros(2)]}
    copy_into(static, {"x": ones(2, 3), "y": [ones(2)]})
    assert bool((static["x"] == 1).all())
    assert bool((static["y"][0] == 1).all())
    with pytest.raises(ValueError, match="shorter"):
        copy_into(static, {"x": ones(2, 3), "y": []})


def test_a_signature_tells_shapes_and_types_apart():
    assert signature_of((ones(2, 3), ones(2))) == signature_of([ones(2, 3), ones(2)])
    assert signature_of(ones(2, 3)) != signature_of(ones(1, 3))
    assert signature_of(ones(2)) != signature_of(ones(2, dtype=torch.float64))
