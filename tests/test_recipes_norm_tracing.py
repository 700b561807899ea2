"""How convolutions before norms are found: what tracing has to see through, and where it gives up."""

import contextlib
import copy
import logging
import random

import pytest
import torch
import torchvision
from model_structures import (
    Branch,
    DataDependent,
    Optional,
    Pair,
    ReadsTheBias,
    SharedConv,
    SharedNorm,
    SquareFunction,
    applied,
    scrambled,
    unread,
)
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from advisor.step.conv_bias import removable_biases
from advisor.step.fold_norm import foldable_pairs
from advisor.step.inplace import inplace_sites
from advisor.step.norm_pairs import views_of
from advisor.step.pointwise import fusable_chains
from advisor.step.tracing import CannotTraceError


class Functional(nn.Module):
    """Parameters and buffers of its own, and nothing but functions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.bias = nn.Parameter(torch.randn(4))
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("running_mean", torch.randn(4))
        self.register_buffer("running_var", torch.rand(4))

    def forward(self, x):
        y = functional.conv2d(x, self.weight, bias=self.bias, padding=1)
        torch._assert(y.ndim == 4, "images")
        means, variances = self.running_mean, self.running_var
        return functional.batch_norm(y, means, variances, weight=self.scale, training=self.training)


class Subclasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = type("MyConv", (nn.Conv2d,), {})(3, 4, 3)
        self.norm = type("MyNorm", (nn.BatchNorm2d,), {})(4)

    def forward(self, x):
        return self.norm(self.conv(x))


class Shapes(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y).view(y.shape[0], y.size(1), -1)


class NestedOutput(Pair):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return {"features": [y, (y.mean(),)], "size": 3}


class OwnFunctionBehind(Pair):
    def forward(self, x):
        return SquareFunction.apply(self.norm(self.conv(x)))


class OptionalMask(Pair):
    def forward(self, x, mask=None, scale=1.0):
        y = self.norm(self.conv(x)) * scale
        return y if mask is None else y * mask


class SharedPair(Pair):
    def forward(self, x):
        return self.norm(self.conv(self.norm(self.conv(x))))


class Indirect(Pair):
    def __init__(self):
        super().__init__()
        self.between = nn.Identity()

    def forward(self, x):
        return self.norm(self.between(self.conv(x)))


SEEN_THROUGH = {
    "subclasses": Subclasses,
    "shapes": Shapes,
    "nested output": NestedOutput,
    "a custom function behind": OwnFunctionBehind,
    "optional arguments": OptionalMask,
    "the same pair twice": SharedPair,
    "an Identity between": Indirect,
}


@pytest.mark.parametrize("build", [*SEEN_THROUGH.values(), Functional], ids=[*SEEN_THROUGH, "functions"])
def test_biases_are_found(build):
    model = scrambled(build()).double()
    images = torch.rand(2, 3, 6, 6, dtype=torch.float64)
    before = copy.deepcopy(model)
    applied("conv_bias", False, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(unread(model)) == 1
    for training in (True, False):
        found, expected = model.train(training)(images), before.train(training)(images)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("build", SEEN_THROUGH.values(), ids=SEEN_THROUGH)
def test_norms_to_fold_are_found(build):
    model = scrambled(build()).double().eval()
    images = torch.rand(2, 3, 6, 6, dtype=torch.float64)
    expected = copy.deepcopy(model)(images)
    applied("fold_norm", True, model)
    assert isinstance(model.norm, nn.Identity)
    torch.testing.assert_close(model(images), expected)


EXAMPLES = {
    "a loader": lambda images: DataLoader(TensorDataset(images, torch.arange(len(images))), batch_size=2),
    "a batch": lambda images: (images, torch.arange(len(images))),
    "a mapping": lambda images: {"x": images, "labels": torch.arange(len(images))},
    "a callable": lambda images: lambda size: (images[:size], torch.arange(size)),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_where_a_flag_decides_an_exported_call_tells(example):
    model, images = Optional(), torch.randn(4, 3, 5, 5)
    data = example(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CannotTraceError, match=r"torch\.fx cannot follow"):
        applied("conv_bias", False, model, optimizer)
    before, stream = copy.deepcopy(model), torch.get_rng_state()
    applied("conv_bias", False, model, optimizer, data)
    assert torch.equal(torch.get_rng_state(), stream)
    assert model.conv.bias is None
    torch.testing.assert_close(model(images), before(images))
    infer = data if not isinstance(data, tuple) else images
    applied("fold_norm", True, model, data=infer)
    assert isinstance(model.norm, nn.Identity)
    torch.testing.assert_close(model.eval()(images), before.eval()(images))


@pytest.mark.filterwarnings("error")
def test_a_model_that_no_trace_can_follow_leaves_no_graph_in_the_log(capfd, caplog):
    images = torch.randn(2, 3, 8, 8)
    with pytest.raises(CannotTraceError, match="depend on the values of a tensor"):
        applied("conv_bias", False, DataDependent(), data=images)
    with pytest.raises(CannotTraceError, match="depend on its inputs"):
        applied("conv_bias", False, DataDependent())
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert logging.getLogger("torch").isEnabledFor(logging.ERROR)


def test_an_exported_call_sees_functions_branches_and_shared_layers():
    images = torch.randn(2, 3, 5, 5)
    for build, found in ((Functional, 1), (Branch, 0), (SharedConv, 0), (SharedNorm, 0), (ReadsTheBias, 0)):

        class Flagged(build):
            def forward(self, x, double=False):
                y = super().forward(x)
                return y * 2 if double else y

        assert len(removable_biases(Flagged(), trained=True, data=(images, None))) == found
        assert foldable_pairs(Flagged(), images) == []


def test_a_model_whose_path_depends_on_values_is_left_alone_with_the_reason():
    model = DataDependent()
    for data in (None, (torch.randn(2, 3, 4, 4), torch.zeros(2))):
        with pytest.raises(CannotTraceError, match="has a forward that"):
            applied("conv_bias", False, model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    with pytest.raises(CannotTraceError):
        applied("fold_norm", True, model, data=torch.randn(2, 3, 4, 4))
    assert model.conv.bias is not None
    assert isinstance(model.norm, nn.BatchNorm2d)


def test_a_model_that_takes_too_long_to_trace_is_left_alone():
    with pytest.raises(CannotTraceError, match="too many operations"):
        views_of(torchvision.models.resnet18(), (True,), limit_s=0.0)


def test_a_model_without_norms_is_not_traced():
    assert removable_biases(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), trained=True, limit_s=0.0) == []
    assert removable_biases(torchvision.models.resnet18(), trained=True, limit_s=0.0) == []
    assert foldable_pairs(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), limit_s=0.0) == []


class DrawsInForward(Pair):
    def forward(self, x):
        noise = torch.randn(4, 1, 1) * random.random()
        return self.norm(self.conv(x) + noise)


class DrawsForOneSample(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.randn(3, 8, 8) * random.random()


def test_tracing_takes_no_random_number_from_the_loop():
    model, loader = DrawsInForward(), DataLoader(DrawsForOneSample())
    for trace_it in (
        lambda: removable_biases(model, trained=True, data=loader),
        lambda: foldable_pairs(model.eval(), loader),
        lambda: fusable_chains(model),
        lambda: inplace_sites(model),
    ):
        before = torch.get_rng_state(), random.getstate()
        with contextlib.suppress(CannotTraceError):
            trace_it()
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
