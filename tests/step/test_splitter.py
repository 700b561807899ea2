"""What of a batch a model is called with, and what is its target."""

from __future__ import annotations

import types
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, List, NamedTuple  # noqa: UP035

import pytest
import torch
from sample_batches import Encoding, Pair, Sample
from torch import nn

from advisor.step.batch import splitter
from advisor.target.batches import batches_in_data
from advisor.target.loop import has_target


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


class Keywords(nn.Module):
    def forward(self, **inputs):
        return inputs


class Anything(nn.Module):
    def forward(self, *inputs):
        return inputs


def split(model, batch, *, with_target):
    found = splitter(model, with_target=with_target)(batch)
    return found.args, found.kwargs, found.target


def test_one_tensor_is_the_input_and_the_target():
    assert split(Net(), "x", with_target=False) == (("x",), {}, None)
    assert split(Net(), "x", with_target=True) == (("x",), {}, "x")
    assert split(Net(), ("x",), with_target=True) == (("x",), {}, "x")


@pytest.mark.parametrize("batch", [("x", "y"), ["x", "y"]])
def test_the_last_of_a_sequence_is_the_target(batch):
    assert split(Net(), batch, with_target=True) == (("x",), {}, "y")
    assert split(Net(), batch, with_target=False) == (("x",), {}, None)


def test_several_inputs():
    assert split(TwoInputs(), ("l", "r", "y"), with_target=True) == (("l", "r"), {}, "y")
    assert split(TwoInputs(), ("l", "r", "y"), with_target=False) == (("l", "r"), {}, None)
    assert split(TwoInputs(), ("l", "r"), with_target=False) == (("l", "r"), {}, None)
    assert split(Anything(), ("l", "r", "y"), with_target=False) == (("l", "r", "y"), {}, None)


@pytest.mark.parametrize("mapping", [dict, Encoding])
def test_a_pair_may_hold_a_mapping_of_the_inputs(mapping):
    batch = (mapping({"left": "l", "right": "r"}), "y")
    assert split(TwoInputs(), batch, with_target=True) == ((), {"left": "l", "right": "r"}, "y")
    assert split(TwoInputs(), list(batch), with_target=False) == ((), {"left": "l", "right": "r"}, None)
    assert has_target(batch, TwoInputs())


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Net(), {"x": "x"}),  # the model may take a mapping
        (Net(), {"images": "x", "sizes": "s"}),
        (Anything(), {"left": "l", "right": "r"}),
        (Keywords(), {"left": "l", "right": "r"}),
        (Net(), ("l", "r")),
        (Anything(), ("l", "r")),
    ],
)
def test_inputs_that_a_model_may_take_as_they_are_stay_so(model, inputs):
    assert split(model, (inputs, "y"), with_target=True) == ((inputs,), {}, "y")


def test_a_pair_may_hold_a_mapping_for_a_model_that_takes_more_keywords():
    """As the newer models of Hugging Face, `forward(input_ids, attention_mask, ..., **kwargs)`."""

    class Encoder(nn.Module):
        def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
            return input_ids

    batch = ({"input_ids": "i", "attention_mask": "m", "token_type_ids": "t"}, "y")
    assert split(Encoder(), batch, with_target=True) == ((), batch[0], "y")


def test_a_pair_may_hold_a_sequence_of_the_inputs():
    assert split(TwoInputs(), (("l", "r"), "y"), with_target=True) == (("l", "r"), {}, "y")
    assert split(TwoInputs(), [["l", "r"], "y"], with_target=True) == (("l", "r"), {}, "y")
    # Without a target both may be inputs, such as images and their boxes.
    assert split(TwoInputs(), (("l", "r"), "y"), with_target=False) == ((("l", "r"), "y"), {}, None)
    assert not has_target((("l", "r"), "y"), TwoInputs())


def test_a_compiled_model_is_split_as_the_model_itself():
    assert split(torch.compile(Net()), ("x", "y"), with_target=False) == (("x",), {}, None)


@pytest.mark.parametrize("mapping", [dict, Encoding])
@pytest.mark.parametrize("name", ["labels", "label", "targets", "target", "y"])
def test_a_mapping_is_keywords_and_its_label_the_target(mapping, name):
    batch = mapping({"x": "x", name: "t"})
    assert split(Net(), batch, with_target=True) == ((), {"x": "x"}, "t")
    assert split(Net(), batch, with_target=False) == ((), {"x": "x"}, None)


@pytest.mark.parametrize("model", [Labelled(), Keywords()], ids=["named", "any"])
def test_a_model_that_takes_labels_gets_them_when_no_loss_wants_them(model):
    batch = {"input_ids": "x", "labels": "t"}
    assert split(model, batch, with_target=False) == ((), batch, None)
    assert split(model, batch, with_target=True) == ((), {"input_ids": "x"}, "t")


def test_a_model_that_needs_its_label_gets_it_beside_a_loss():
    class Loses(nn.Module):
        def forward(self, x, labels):
            return {"loss": x - labels}

    batch = {"x": "x", "labels": "t"}
    assert split(Loses(), batch, with_target=True) == ((), batch, "t")


def test_a_mapping_without_a_label_is_keywords_and_the_target_itself():
    assert split(Net(), {"x": "x"}, with_target=True) == ((), {"x": "x"}, {"x": "x"})
    assert split(Net(), {"x": "x"}, with_target=False) == ((), {"x": "x"}, None)


def test_what_the_model_has_no_parameter_for_is_left_to_the_loss():
    mask = torch.ones(1)
    batch = {"x": "x", "mask": mask, "y": "t"}
    assert split(Net(), batch, with_target=True) == ((), {"x": "x"}, "t")
    assert split(Net(), batch, with_target=False) == ((), {"x": "x"}, None)
    assert split(Keywords(), batch, with_target=True) == ((), {"x": "x", "mask": mask}, "t")


def test_texts_beside_the_inputs_of_a_mapping_are_left_out():
    batch = {"x": "x", "name": ["a", "b"], "set": "train", "y": "t"}
    assert split(Net(), batch, with_target=False) == ((), {"x": "x"}, None)
    assert split(Keywords(), batch, with_target=False)[1].keys() == batch.keys()


def test_the_one_input_of_a_mapping_may_have_another_name():
    """As `model(batch["image"])` of a vision dataset's batches."""
    assert split(Net(), {"image": "i", "label": "t"}, with_target=True) == (("i",), {}, "t")
    assert split(Net(), {"image": "i", "label": "t"}, with_target=False) == (("i",), {}, None)
    several = {"image": "i", "mask": "m", "label": "t"}
    assert split(Net(), several, with_target=True) == ((several,), {}, "t"), "either may be meant, or both"


def test_a_model_of_whole_batches_gets_the_mapping():
    for batch in ({"image": "i", "label": "t"}, {"image": "i", "mask": "m", "label": "t"}):
        assert split(OfBatch(), batch, with_target=True) == ((batch,), {}, "t")
        assert split(OfBatch(), batch, with_target=False) == ((batch,), {}, None)


def test_a_batch_of_a_class_of_its_own_is_passed_whole():
    pair, sample = Pair("x", "y"), Sample("x")
    assert split(Net(), pair, with_target=True) == ((pair,), {}, pair)
    assert split(Net(), sample, with_target=False) == ((sample,), {}, None)


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


def test_a_model_that_may_get_its_one_input_alone_gets_that():
    class InBranch(nn.Module):
        def forward(self, inputs):
            mask = None
            if isinstance(inputs, tuple):
                inputs, mask = inputs
            return inputs, mask

    class Renamed(nn.Module):
        def forward(self, inputs):
            inputs = (inputs, 1)
            inputs, _ = inputs
            return inputs

    for model in (InBranch(), Renamed()):
        assert split(model, ("x", "y"), with_target=False) == (("x",), {}, None)
        assert split(model, ("x", "y"), with_target=True) == (("x",), {}, "y")


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
        (Net(), ("x",), False),
        (Net(), "x", False),
        (TwoInputs(), ("l", "r"), False),
        (TwoInputs(), ("l", "r", "y"), True),
        (Net(), {"x": 1}, False),
        (Net(), {"x": 1, "y": 2}, True),
        (Anything(), ("x", "y"), True),
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


def test_what_a_model_has_no_input_for_is_left_out_of_a_pair():
    batch = ({"left": "l", "right": "r", "row": 3}, "y")
    assert split(TwoInputs(), batch, with_target=True) == ((), {"left": "l", "right": "r"}, "y")


def test_a_list_of_samples_is_one_input():
    samples = [{"image": "a"}, {"image": "b"}, {"image": "c"}]
    assert split(Net(), samples, with_target=False) == ((samples,), {}, None)
    assert split(Net(), samples[:2], with_target=True) == ((samples[:2],), {}, samples[:2])
    assert split(Net(), [{"image": "a"}, {"boxes": "b"}], with_target=True) == (({"image": "a"},), {}, {"boxes": "b"})
    assert split(TwoInputs(), samples[:2], with_target=False) == (tuple(samples[:2]), {}, None)


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


def test_the_inputs_of_a_mapping_may_be_a_mapping_in_it():
    batch = {"inputs": {"left": "l", "right": "r"}, "targets": "t"}
    assert split(TwoInputs(), batch, with_target=True) == ((), batch["inputs"], "t")
    assert split(Net(), {"x": {"left": "l", "right": "r"}}, with_target=False) == (
        (),
        {"x": {"left": "l", "right": "r"}},
        None,
    )


def test_objects_that_name_the_inputs():
    class Pair(NamedTuple):
        x: torch.Tensor
        y: str

    pair = Pair(torch.ones(2), "t")
    assert split(Net(), pair, with_target=True) == ((), {"x": pair.x}, "t")
    graphs = SimpleNamespace(left={"user": torch.ones(2)}, right={"item": torch.ones(3)})
    assert split(TwoInputs(), graphs, with_target=False)[1] == {"left": graphs.left, "right": graphs.right}
