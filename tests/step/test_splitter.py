"""Which parts of a batch are the model's inputs, and which part is the target."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, List  # noqa: UP035

import pytest
import torch
from sample_batches import Encoding, Pair, Sample
from torch import nn

from advisor.step.batch import splitter
from advisor.workloads.loop import batches_in_data, has_target


class Net(nn.Module):
    def forward(self, x): ...


class OfBatch(nn.Module):
    def forward(self, batch): ...


class TwoInputs(nn.Module):
    def forward(self, left, right, scale=1.0): ...


class Labelled(nn.Module):
    def forward(self, input_ids, labels=None): ...


class Loses(nn.Module):
    def forward(self, x, labels): ...


class Keywords(nn.Module):
    def forward(self, **inputs): ...


class Anything(nn.Module):
    def forward(self, *inputs): ...


def split(model, batch, *, with_target):
    found = splitter(model, with_target=with_target)(batch)
    return found.args, found.kwargs, found.target


MASK, SAMPLES = torch.ones(1), [{"image": "a"}, {"image": "b"}, {"image": "c"}]
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
    "more than the model takes": (Net(), ("x", "y", "z"), (("x",), {}, ("y", "z")), (("x",), {}, None)),
    "what may be left out": (TwoInputs(), ("l", "r", "s", "y"), (("l", "r", "s"), {}, "y"), (("l", "r"), {}, None)),
    "no more than the inputs": (TwoInputs(), ("l", "r"), (("l", "r"), {}, ("l", "r")), (("l", "r"), {}, None)),
    "one of its inputs in a mapping": (TwoInputs(), {"left": "l", "y": "t"}, ((), {"left": "l"}, "t"), None),
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
