"""Batches: moved and copied as they are nested, and split into what a model is called with and the target."""

from __future__ import annotations

import copy
import types
from collections import UserDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, List  # noqa: UP035

import pytest
import torch
from sample_batches import Encoding, Pair, Sample
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from advisor.step.batch import copy_into, map_tensors, mover, signature_of, splitter, tensors_of
from advisor.workloads.batches import batches_in_data
from advisor.workloads.loop import has_target


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
    """A batch of a class of its own, as people write them."""

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
    move = mover(torch.device("cpu"), memory_format="channels_last", dtype="bfloat16")
    moved = move(Movable(ones(2, 3, 4, 4)))
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


# --- what of a batch is the model's, and what its target ------------------------------------------------------


class Net(nn.Module):
    def forward(self, x):
        return x


class OfBatch(nn.Module):
    def forward(self, batch):
        return batch["image"]


class TwoInputs(nn.Module):
    def forward(self, left, right, scale=1.0):
        return left


class Labelled(nn.Module):
    def forward(self, input_ids, labels=None):
        return input_ids


class Loses(nn.Module):
    def forward(self, x, labels):
        return {"loss": x - labels}


class Keywords(nn.Module):
    def forward(self, **inputs):
        return inputs


class Anything(nn.Module):
    def forward(self, *inputs):
        return inputs


def split(model, batch, *, with_target):
    found = splitter(model, with_target=with_target)(batch)
    return found.args, found.kwargs, found.target


MASK, SAMPLES = torch.ones(1), [{"image": "a"}, {"image": "b"}, {"image": "c"}]
TOKENS = {"input_ids": "i", "attention_mask": "m", "token_type_ids": "t"}
IMAGE, IMAGE_AND_MASK = {"image": "i", "label": "t"}, {"image": "i", "mask": "m", "label": "t"}
LABELLED, BOTH, PAIR = {"input_ids": "x", "labels": "t"}, {"left": "l", "right": "r"}, Pair("x", "y")

# A model and a batch; what the model is called with and the target where a loss wants one; the same where none does.
SPLIT = {
    "one tensor is the input and the target": (Net(), "x", (("x",), {}, "x"), (("x",), {}, None)),
    "the last of a tuple is the target": (Net(), ("x", "y"), (("x",), {}, "y"), (("x",), {}, None)),
    "two inputs": (TwoInputs(), ("l", "r", "y"), (("l", "r"), {}, "y"), (("l", "r"), {}, None)),
    "any number of inputs": (Anything(), ("l", "r", "y"), (("l", "r"), {}, "y"), (("l", "r", "y"), {}, None)),
    "a mapping that the model may take": (Net(), ({"x": "x"}, "y"), (({"x": "x"},), {}, "y"), None),
    "a mapping for any keywords": (Keywords(), (BOTH, "y"), ((BOTH,), {}, "y"), None),
    "a tuple that the model may take": (Net(), (("l", "r"), "y"), ((("l", "r"),), {}, "y"), None),
    "a tuple for any inputs": (Anything(), (("l", "r"), "y"), ((("l", "r"),), {}, "y"), None),
    # Without a target both may be inputs, such as images and their boxes.
    "a tuple of the inputs": (TwoInputs(), (("l", "r"), "y"), (("l", "r"), {}, "y"), ((("l", "r"), "y"), {}, None)),
    "labels that the model takes": (Labelled(), LABELLED, ((), {"input_ids": "x"}, "t"), ((), LABELLED, None)),
    "a mapping without a label": (Net(), {"x": "x"}, ((), {"x": "x"}, {"x": "x"}), ((), {"x": "x"}, None)),
    "what has no parameter is left to the loss": (
        Net(),
        {"x": "x", "mask": MASK, "y": "t"},
        ((), {"x": "x"}, "t"),
        ((), {"x": "x"}, None),
    ),
    # As `model(batch["image"])` of a vision dataset's batches.
    "the one input by another name": (Net(), IMAGE, (("i",), {}, "t"), (("i",), {}, None)),
    "either may be meant, or both": (Net(), IMAGE_AND_MASK, ((IMAGE_AND_MASK,), {}, "t"), None),
    "a model of whole batches": (OfBatch(), IMAGE, ((IMAGE,), {}, "t"), ((IMAGE,), {}, None)),
    "a class of its own is passed whole": (Net(), PAIR, ((PAIR,), {}, PAIR), None),
    "what has no input in a pair": (TwoInputs(), ({**BOTH, "row": 3}, "y"), ((), BOTH, "y"), None),
    "a list of samples is one input": (Net(), SAMPLES, None, ((SAMPLES,), {}, None)),
    "two that are no samples": (Net(), [{"image": "a"}, {"boxes": "b"}], (({"image": "a"},), {}, {"boxes": "b"}), None),
    "the inputs of a mapping in a mapping": (TwoInputs(), {"inputs": BOTH, "targets": "t"}, ((), BOTH, "t"), None),
    "a compiled model is split as the model": (torch.compile(Net()), ("x", "y"), None, (("x",), {}, None)),
    "a label that the model needs": (Loses(), {"x": "x", "labels": "t"}, ((), {"x": "x", "labels": "t"}, "t"), None),
    "a mapping by the name of an input": (Net(), {"x": BOTH}, None, ((), {"x": BOTH}, None)),
}


@pytest.mark.parametrize(("model", "batch", "with_target", "without"), SPLIT.values(), ids=SPLIT)
def test_what_of_a_batch_is_input_and_target(model, batch, with_target, without):
    for wanted, expected in ((True, with_target), (False, without)):
        if expected is not None:
            assert split(model, batch, with_target=wanted) == expected


@pytest.mark.parametrize("mapping", [dict, Encoding])
@pytest.mark.parametrize("name", ["labels", "label", "targets", "target", "y"])
def test_a_mapping_is_keywords_and_its_label_the_target(mapping, name):
    batch = mapping({"x": "x", name: "t"})
    assert split(Net(), batch, with_target=True) == ((), {"x": "x"}, "t")
    assert split(Net(), batch, with_target=False) == ((), {"x": "x"}, None)


def test_a_class_of_one_tensor_beside_a_target_is_that_and_its_target():
    """As a collate function that returns a named tuple, `Batch(images, labels)`, or a dataclass."""

    @dataclass
    class Labelled:
        labels: Any
        images: torch.Tensor
        names: list[str]

    @dataclass(slots=True)
    class Slotted:
        images: torch.Tensor
        labels: Any

    images = torch.ones(2)
    for batch in (Pair(images, "y"), Labelled("y", images, ["a", "b"]), Slotted(images, "y")):
        assert split(Net(), batch, with_target=True) == ((images,), {}, "y")
        assert split(Net(), batch, with_target=False) == ((images,), {}, None)
        assert split(OfBatch(), batch, with_target=True) == ((batch,), {}, batch)


def test_an_object_that_has_several_inputs_is_keywords_and_its_label_the_target():
    """As `forward(x, edge_index, batch)` and PyTorch Geometric's batches."""
    left, right, y = torch.zeros(2), torch.ones(2), torch.arange(2)
    labelled, bare = types.SimpleNamespace(left=left, right=right, y=y), types.SimpleNamespace(left=left, right=right)
    assert split(TwoInputs(), labelled, with_target=True) == ((), {"left": left, "right": right}, y)
    assert split(TwoInputs(), labelled, with_target=False) == ((), {"left": left, "right": right}, None)
    assert split(TwoInputs(), bare, with_target=True)[2] is bare
    scaled = types.SimpleNamespace(left=left, right=right, scale=2.0, other=right)
    assert split(TwoInputs(), scaled, with_target=False)[1] == {"left": left, "right": right, "scale": 2.0}
    lacking = types.SimpleNamespace(left=left, right=None, y=y)
    assert split(TwoInputs(), lacking, with_target=True) == ((lacking,), {}, lacking)
    assert split(Net(), labelled, with_target=True) == ((labelled,), {}, labelled), "it may take the object itself"


@pytest.mark.parametrize(
    ("model", "batch", "carries"),
    [
        (Net(), ("x", "y"), True),
        (Net(), "x", False),
        (TwoInputs(), ("l", "r"), False),
        (TwoInputs(), ("l", "r", "y"), True),
        (Net(), {"x": 1, "y": 2}, True),
    ],
)
def test_whether_a_batch_carries_a_target(model, batch, carries):
    assert has_target(batch, model) is carries


def test_the_one_input_of_a_mapping_may_be_its_only_tensor():
    audio = torch.ones(2)
    batch = {"audio": audio, "labels": "t", "name": ["a", "b"], "length": None}
    for with_target, target in ((False, None), (True, "t")):
        args, kwargs, found = splitter(Net(), with_target=with_target)(batch)
        assert (args[0] is audio, len(args), kwargs, found) == (True, 1, {}, target)


@pytest.mark.parametrize("kind", [list, list[torch.Tensor], List[torch.Tensor], "list[torch.Tensor]", "List[Tensor]"])  # noqa: UP006
def test_a_model_of_lists_gets_a_list_of_tensors_whole(kind):
    class Detector(nn.Module):
        def forward(self, images, targets=None):
            return images

    Detector.forward.__annotations__["images"] = kind
    images = [torch.ones(3, 2, 2), torch.ones(3, 4, 4)]
    assert splitter(Detector(), with_target=False)(images).args[0] is images
    assert splitter(Detector(), with_target=True)((images, "y")) == ((images,), {}, "y")
    assert batches_in_data(images * 2, []) == images * 2
    assert len(splitter(Net(), with_target=False)(images).args) == 1


def test_objects_that_hold_tensors_are_batches():
    graphs = [Sample(torch.ones(3 + number)) for number in range(3)]
    assert list(batches_in_data(graphs, [])) == graphs
    assert batches_in_data((graphs[0], "y"), []) == (graphs[0], "y"), "inputs and a target"
