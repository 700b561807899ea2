"""Chains of pointwise operations: found, compiled, and nothing else."""

import copy
import inspect
import pickle
import types

import pytest
import torch
from compiled_models import IMAGES, Chains, both_ways, by_apply, by_code, gradients_of, twin
from facts import gpu_facts
from proposals import CATALOG, proposed, reason
from torch import nn
from torch._dynamo.utils import counters

from advisor.step.pointwise import fusable_chains
from advisor.step.tracing import CannotTraceError

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@both_ways
def test_chains_are_compiled_and_nothing_else(effect, eager_backend):
    model, reference = twin(Chains)
    names = set(model.state_dict())
    fused = effect("fuse_pointwise", True, model)
    found, expected = gradients_of(fused, IMAGES), gradients_of(reference, IMAGES)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(fused.norm.running_mean, reference.norm.running_mean)
    assert counters["frames"]["ok"] == 2
    assert set(fused.state_dict()) == names
    assert fused.conv.weight is model.conv.weight
    assert fused.training


def test_a_fused_model_is_the_model(eager_backend):
    model, reference = twin(Chains)
    model.note = "mine"
    assert by_apply("fuse_pointwise", True, model) is model
    assert inspect.signature(model.forward) == inspect.signature(reference.forward)  # by which batches are split
    exported = torch.export.export(model, (IMAGES,)).graph_signature.input_specs
    assert {one.target for one in exported if one.target} == set(reference.state_dict())
    model.head = reference.head = nn.Linear(8, 2)  # a new head for another task
    assert (type(model), model.note, list(model.state_dict())) == (Chains, "mine", list(reference.state_dict()))
    torch.testing.assert_close(model.eval()(IMAGES), reference.eval()(IMAGES))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.head.weight.zero_(), copied.head.bias.zero_()
    assert not copied(IMAGES).any()
    assert model(IMAGES).any()


@both_ways
def test_a_fused_model_that_is_saved_as_a_whole_is_a_plain_one(effect, eager_backend):
    model, reference = twin(Chains)
    fused = effect("fuse_pointwise", True, model)
    loaded = pickle.loads(pickle.dumps(fused))
    torch.testing.assert_close(gradients_of(loaded, IMAGES), gradients_of(reference, IMAGES))
    assert isinstance(vars(loaded)["forward"], types.MethodType)


def test_fused_chains_follow_train_and_eval(eager_backend):
    model, reference = twin(Chains)
    fused = by_apply("fuse_pointwise", True, model)
    fused.eval()
    reference.eval()
    torch.testing.assert_close(fused(IMAGES), reference(IMAGES))
    fused.train()
    assert not torch.equal(fused(IMAGES), fused(IMAGES)), "dropout is on again"


def test_looking_for_chains_leaves_the_model_as_it_was(eager_backend):
    model, reference = twin(Chains)
    by_code("fuse_pointwise", True, fused := twin(Chains)[0])
    assert fused.relu.inplace
    model.norm.eval()
    before = {name: module.training for name, module in model.named_modules()}
    fusable_chains(model)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.relu.inplace
    torch.manual_seed(3)
    found = model.train()(IMAGES)
    torch.manual_seed(3)
    assert torch.equal(found, reference.train()(IMAGES))


@pytest.mark.compile
def test_generated_code_of_chains_computes_the_same():
    model, reference = twin(Chains)
    model.dropout.p = reference.dropout.p = 0.0
    fused = by_apply("fuse_pointwise", True, model)
    torch.testing.assert_close(gradients_of(fused, IMAGES), gradients_of(reference, IMAGES), rtol=1e-4, atol=1e-5)


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Straight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = None

    def forward(self, x):
        return Rounding.apply(torch.relu(self.layer(x) * 2))


class Branches(Straight):
    def forward(self, x):
        return torch.relu(x) + 1 if x.sum() > 0 else x


class Remembers(Straight):
    def forward(self, x):
        self.seen = self.layer(x)
        return torch.relu(self.seen * 2)


class Draws(Straight):
    def forward(self, x):
        return torch.relu(self.layer(x) + torch.randn(4))


class Optional(Straight):
    def forward(self, x, mask=None):
        return torch.relu(self.layer(x) if mask is None else x) * 2


class TwoPaths(Straight):
    def forward(self, x):
        x = nn.functional.dropout(self.layer(x), training=self.training)
        return torch.relu(x) * 2


class Unused(Straight):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(2, 2)

    def forward(self, x):
        return torch.relu(self.layer(x)) * 2


class MapsOver(nn.Module):
    def forward(self, x):
        return torch.vmap(torch.sigmoid)(x)


class WritesSlices(Straight):
    def forward(self, x):
        x = self.layer(x)
        x[:, 0] = 0.0
        return torch.relu(x) * 2


class WritesShared(Straight):
    def forward(self, x):
        y = self.layer(x)
        same = y
        y += 1
        return torch.relu(same * 2 + y)


class WritesBits(Straight):
    def forward(self, x):
        y = self.layer(x) > 0
        y &= x > 0
        return torch.relu(self.layer(x)) * 2 * y


def hooked():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sigmoid())
    model[0].register_forward_hook(lambda module, inputs, output: None)
    return model


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Straight, "uses the autograd function Rounding"),
        (Branches, "has a forward that torch.fx cannot follow"),
        (Remembers, "keeps values in its forward"),
        (Draws, "draws random numbers in its forward"),
        (Optional, "optional arguments"),
        (TwoPaths, "takes other paths in training"),
        (Unused, "does not use"),
        (WritesSlices, "follow: it writes into part of a tensor, by item assignment$"),
        (MapsOver, "follow: it uses a tensor in a way that cannot be recorded$"),
        (WritesShared, "that other operations may read"),
        (WritesBits, "writes into a tensor by iand"),
        (hooked, "forward hooks"),
    ],
)
def test_models_that_a_trace_would_change_are_left_alone(make, expected):
    model = make()
    before = dict(vars(model))
    apply = torch.autograd.Function.__dict__["apply"]
    with pytest.raises(CannotTraceError, match=expected):
        fusable_chains(model)
    assert dict(vars(model)) == before
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert model.training


def test_tracing_ends_after_its_time():
    model = nn.Sequential(*(nn.ReLU() for _ in range(50)))
    with pytest.raises(CannotTraceError, match="too many operations"):
        fusable_chains(model, limit_s=-1.0)


def test_shared_weights_stay_shared(eager_backend):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(8, 8)
            self.two = nn.Linear(8, 8)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(torch.relu(self.one(x)) * 2)

    model, reference = twin(Tied)
    fused = by_apply("fuse_pointwise", True, model)
    assert fused.one.weight is fused.two.weight is model.one.weight
    torch.testing.assert_close(gradients_of(fused, torch.ones(2, 8)), gradients_of(reference, torch.ones(2, 8)))


def test_frozen_parameters_stay_frozen(eager_backend):
    model = Chains()
    model.conv.weight.requires_grad_(False)
    fused = by_apply("fuse_pointwise", True, model)
    fused(IMAGES).sum().backward()
    assert fused.conv.weight.grad is None
    assert fused.head.weight.grad is not None


def test_candidates_of_chains(compilers):
    assert proposed("fuse_pointwise", gpu_facts(fusable_chains=8)) == [True]
    assert reason("fuse_pointwise", gpu_facts()) == "the model has no two pointwise operations in a row"
    problem = "has forward hooks, which a trace would lose"
    assert reason("fuse_pointwise", gpu_facts(fusing_problem=problem)) == f"the model {problem}"
    assert "8 chains of pointwise" in CATALOG["fuse_pointwise"].why(gpu_facts(fusable_chains=8), True)
    conflict = CATALOG["fuse_pointwise"].conflict
    assert conflict(True, {"compile.mode": "default"}).startswith("compile.mode compiles the whole model")
    assert conflict(True, {"compile.scope": "regional"})
    assert conflict(True, {"compile.mode": "none"}) is None
    assert conflict(False, {"compile.mode": "default"}) is None
