from __future__ import annotations

import copy
import functools
import logging
import pickle
import warnings
from dataclasses import replace

import pytest
import torch
import torchvision
from facts import GIB, cpu_facts, gpu_facts
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from advisor.catalog import load_catalog
from advisor.export.python_file import python_source
from advisor.plan import StepPlan
from advisor.portable.checkpointing import checkpoints_itself
from advisor.portable.conv_bias import removable_biases
from advisor.portable.fold_norm import foldable_pairs
from advisor.portable.norm_pairs import views_of
from advisor.portable.padding import layers_to_pad, padded_size
from advisor.portable.regions import compile_blocks
from advisor.portable.tracing import CannotTraceError
from advisor.recipe import Components
from advisor.records import Block as TimedBlock
from advisor.records import Candidate, Comparison, Mode, Numerics, Outcome, TrialRecord, TrialResult
from advisor.runtime.loop import Loop
from advisor.sweep import batch_size_within
from advisor.trial.inspection import inspect_loop

CATALOG = load_catalog()


def applied(recipe_id, value, model, optimizer=None, data=None):
    mode = Mode.INFER if optimizer is None else Mode.TRAIN
    components = Components(model, optimizer, data, StepPlan(mode=mode, device="cpu"))
    CATALOG[recipe_id].apply(components, value)
    return components.model


def coded(recipe_id, value, model, optimizer=None, data=None):
    namespace = {"torch": torch, "model": model, "optimizer": optimizer, "loader": data}
    exec(compile(CATALOG[recipe_id].code(value), recipe_id, "exec"), namespace)
    return namespace["model"]


def exported(recipe_id, value, model, optimizer=None, data=None):
    mode = Mode.INFER if optimizer is None else Mode.TRAIN
    namespace = {}
    exec(compile(python_source(CATALOG, {CATALOG[recipe_id].key: value}, mode), "tuned.py", "exec"), namespace)
    return namespace["prepare"](model, optimizer, data)[0]


every_way = pytest.mark.parametrize("way", [applied, coded, exported], ids=["apply", "code", "exported file"])


def scrambled(model):
    """Weights, biases and running statistics that nothing about them is zero or one."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            drawn = torch.rand(tensor.shape, generator=generator)
            tensor.data.copy_(drawn + 0.5 if "running_var" in name or tensor.dim() == 1 else (drawn - 0.5) * 0.3)
    return model


class ConvNorm(nn.Sequential):
    def __init__(self, inputs, outputs, kernel=3):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )


class UNet(nn.Module):
    """Two levels with skip connections; convolutions with biases, one of them transposed."""

    def __init__(self):
        super().__init__()
        self.first, self.down, self.join = ConvNorm(3, 6), ConvNorm(6, 8), ConvNorm(12, 6)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.up_norm = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, images):
        high = self.first(images)
        low = self.down(functional.max_pool2d(high, 2))
        return self.head(self.join(torch.cat([high, self.up_norm(self.up(low))], 1)))


def biased_resnet():
    model = torchvision.models.resnet18(num_classes=4)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.bias = nn.Parameter(torch.zeros(module.out_channels))
    return model


MODELS = {
    "resnet18": (biased_resnet, (2, 3, 32, 32), 20, 20),
    "U-Net": (UNet, (2, 3, 8, 8), 4, 4),
    "1-D": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), (4, 3, 9), 1, 1),
    "3-D": (lambda: nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4)), (2, 3, 4, 4, 4), 1, 1),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (5, 3), 0, 1),
}
each_model = pytest.mark.parametrize(
    ("way", "name"), [*((applied, name) for name in MODELS), (coded, "U-Net"), (exported, "U-Net")]
)


def made(name):
    build, shape, biases, folds = MODELS[name]
    torch.manual_seed(0)
    return scrambled(build()).double(), torch.randn(shape, dtype=torch.float64), biases, folds


def gradients(model, images):
    model.zero_grad()
    model(images).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


# --- no bias before a norm ------------------------------------------------------------------------------------


@each_model
def test_without_the_biases_outputs_and_gradients_are_the_same(way, name):
    model, images, biases, _ = made(name)
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    changed = way("conv_bias", False, model, optimizer)
    lost = {key for key, _ in before.named_parameters()} - {key for key, _ in changed.named_parameters()}
    assert len(lost) == biases
    for training in (True, False):
        before.train(training), changed.train(training)
        torch.testing.assert_close(changed(images), before(images))
        expected, found = gradients(before, images), gradients(changed, images)
        assert set(expected) - set(found) == lost
        for key in found:
            torch.testing.assert_close(found[key], expected[key])


@every_way
def test_evaluation_agrees_after_training_on_without_the_biases(way):
    model, images, _, _ = made("U-Net")
    models = [copy.deepcopy(model), model]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    way("conv_bias", False, models[1], optimizers[1])
    for _ in range(3):
        for each, optimizer in zip(models, optimizers, strict=True):
            gradients(each.train(), images)
            optimizer.step()
    torch.testing.assert_close(models[1].eval()(images), models[0].eval()(images))


@every_way
def test_inference_without_the_biases_agrees(way):
    model, images, _, _ = made("U-Net")
    expected = copy.deepcopy(model).eval()(images)
    changed = way("conv_bias", False, model.eval())
    assert changed.up.bias is None
    torch.testing.assert_close(changed(images), expected)


@every_way
def test_the_optimizer_forgets_the_biases_and_keeps_its_groups(way):
    model = UNet()
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": [model.first[0].bias]}]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    bias = model.first[0].bias
    assert bias in optimizer.state
    way("conv_bias", False, model, optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [5, 0]
    assert bias not in optimizer.state
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).sum().backward()
        optimizer.step()
        scheduler.step()


def test_keeping_the_biases_changes_nothing():
    model = UNet()
    applied("conv_bias", True, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.first[0].bias is not None
    coded("conv_bias", True, model)
    assert model.first[0].bias is not None


def test_what_removes_biases_can_run_twice():
    model, images, _, _ = made("U-Net")
    expected = model.eval()(images)
    for _ in range(2):
        applied("conv_bias", False, model)
    torch.testing.assert_close(model(images), expected)


# --- where a pair must be left alone --------------------------------------------------------------------------


class Pair(nn.Module):
    """A convolution with a bias and a norm; subclasses use them in ways that forbid a change."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.conv(x))


class Branch(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class SharedConv(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.conv(x * 2)


class SharedNorm(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.norm(x)


class Between(Pair):
    def forward(self, x):
        return self.norm(self.conv(x).relu())


class Changed(Pair):
    def forward(self, x):
        y = self.conv(x)
        y.abs_()
        return self.norm(y)


class Keeps(Pair):
    def forward(self, x):
        self.kept = self.conv(x)
        return self.norm(self.kept)


class Collects(Pair):
    def __init__(self):
        super().__init__()
        self.features = []

    def forward(self, x):
        y = self.conv(x)
        self.features.append(y)
        return self.norm(y)


class ReadsTheBias(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.conv.bias.sum()


class ReadsTheMean(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.norm.running_mean.sum()


class ReadsTheWeight(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + functional.conv2d(x, self.conv.weight, self.conv.bias)


class Maybe(Pair):
    def forward(self, x, features=None):
        y = self.conv(x)
        if features is not None:
            return self.norm(y) + features * y
        return self.norm(y)


class SquareFunction(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        return 2 * context.saved_tensors[0] * gradient


class OwnFunctionBetween(Pair):
    def forward(self, x):
        return self.norm(SquareFunction.apply(self.conv(x)))


class DataDependent(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) if x.sum() > 0 else y


def hooked(part, register):
    model = Pair()
    getattr(getattr(model, part) if part else nn.Sequential(model)[0], register)(lambda *_: None)
    return model


def nested_hook():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 1)), nn.BatchNorm2d(3))
    model[0].register_forward_hook(lambda *_: None)
    return model


def tied_bias():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1))
    model[2].bias = model[0].bias
    return model


LEFT_ALONE = {
    "branch": Branch,
    "shared convolution": SharedConv,
    "shared norm": SharedNorm,
    "an activation between": Between,
    "changed in place": Changed,
    "kept as an attribute": Keeps,
    "kept in a list": Collects,
    "an optional path": Maybe,
    "a custom function between": OwnFunctionBetween,
    "a hook on the convolution": lambda: hooked("conv", "register_forward_hook"),
    "a hook before the norm": lambda: hooked("norm", "register_forward_pre_hook"),
    "a backward hook": lambda: hooked("conv", "register_full_backward_hook"),
    "a hook on what holds the convolution": nested_hook,
}
left_alone = pytest.mark.parametrize("build", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
BIASES_LEFT = {
    **LEFT_ALONE,
    "bias read apart": ReadsTheBias,
    "mean read apart": ReadsTheMean,
    "bias used by a function too": ReadsTheWeight,
    "bias tied to another": tied_bias,
}


@pytest.mark.parametrize("build", BIASES_LEFT.values(), ids=BIASES_LEFT.keys())
@pytest.mark.parametrize("trained", [True, False])
def test_a_bias_that_is_needed_stays(build, trained):
    model = build().train(trained)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if trained else None
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for way in (applied, coded):
        way("conv_bias", False, model, optimizer)
        after = model.state_dict()
        assert after.keys() == state.keys()
        assert all(torch.equal(after[name], state[name]) for name in state)


@left_alone
def test_a_norm_that_cannot_be_folded_stays(build):
    model = build().eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for way in (applied, coded):
        way("fold_norm", True, model)
        after = model.state_dict()
        assert after.keys() == state.keys()
        assert all(torch.equal(after[name], state[name]) for name in state)


@pytest.mark.parametrize("build", [ReadsTheWeight, ReadsTheMean, ReadsTheBias])
def test_a_layer_whose_parameters_are_read_apart_is_not_folded(build):
    assert foldable_pairs(build()) == []


@pytest.mark.parametrize("build", [*LEFT_ALONE.values(), DataDependent])
def test_looking_for_pairs_leaves_a_model_as_it_was(build):
    model = build()
    model.norm = model.norm.eval() if hasattr(model, "norm") else None
    modes = {name: module.training for name, module in model.named_modules()}
    attributes = {name: list(vars(module)) for name, module in model.named_modules()}
    for find in (lambda: removable_biases(model, trained=True), lambda: foldable_pairs(model)):
        try:
            find()
        except CannotTraceError:
            assert build is DataDependent
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {name: list(vars(module)) for name, module in model.named_modules()} == attributes
    assert getattr(model, "features", []) == []


def test_a_frozen_norm_keeps_the_bias_that_learns_before_it():
    class Frozen(Pair):
        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    frozen_after = Pair()
    frozen_after.norm.eval()
    for model in (Frozen(), frozen_after):
        assert removable_biases(model, trained=True) == []
        assert len(removable_biases(model, trained=False)) == 1


@every_way
def test_norms_without_running_statistics_cancel_biases_always(way):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, 5, 1), nn.InstanceNorm2d(5)
    ).double()
    images = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    expected = copy.deepcopy(model.eval())(images)
    changed = way("conv_bias", False, model)
    assert changed[0].bias is None
    assert changed[2].bias is None
    torch.testing.assert_close(changed(images), expected)
    assert foldable_pairs(changed) == []


# --- what tracing has to see through --------------------------------------------------------------------------


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


class Optional(Pair):
    """torch.fx cannot follow it, for a flag decides the path."""

    def forward(self, x, double=False):
        y = self.norm(self.conv(x))
        return y * 2 if double else y


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
    assert len(list(model.parameters())) == len(list(before.parameters())) - 1
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
    with pytest.raises(CannotTraceError, match="depends on the values of a tensor"):
        applied("conv_bias", False, DataDependent(), data=images)
    with pytest.raises(CannotTraceError, match="depends on its inputs"):
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


# --- batch norms folded ---------------------------------------------------------------------------------------


@each_model
def test_folded_models_give_the_same_outputs(way, name):
    model, images, _, folds = made(name)
    expected = copy.deepcopy(model).eval()(images)
    kind = type(model)
    changed = way("fold_norm", True, model.eval())
    assert type(changed) is kind
    assert sum(isinstance(module, nn.Identity) for module in changed.modules()) == folds
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in changed.modules())
    torch.testing.assert_close(changed(images), expected)


def test_folding_keeps_type_layout_and_gradients_switch():
    model = UNet().eval().to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_(False)
    images = torch.randn(2, 3, 8, 8, dtype=torch.bfloat16)
    expected = model(images)
    applied("fold_norm", True, model)
    weight = model.down[0].weight
    assert (weight.dtype, weight.requires_grad) == (torch.bfloat16, False)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(images), expected, rtol=0.05, atol=0.05)


def test_tied_weights_are_folded_apart():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1, bias=False))
    model[2].weight = model[0].weight
    scrambled(model).eval()
    images = torch.rand(2, 3, 4, 4)
    expected = model(images)
    applied("fold_norm", True, model)
    assert isinstance(model[1], nn.Identity)
    torch.testing.assert_close(model(images), expected)


def test_a_norm_under_two_names_is_replaced_under_both():
    model = Pair()
    model.alias = model.norm
    applied("fold_norm", True, scrambled(model).eval())
    assert isinstance(model.norm, nn.Identity)
    assert isinstance(model.alias, nn.Identity)


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_layers_with_computed_weights_are_not_folded(wrap):
    model = Pair().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.conv = wrap(model.conv)
    assert foldable_pairs(model) == []


def test_folding_can_be_left_off():
    model = UNet().eval()
    applied("fold_norm", False, model)
    coded("fold_norm", False, model)
    assert isinstance(model.up_norm, nn.BatchNorm2d)


def test_folding_and_removing_biases_exclude_each_other():
    settings = {"model.fold_batch_norm": True, "model.conv_bias_before_norm": False}
    assert "gives its convolution a bias again" in CATALOG.conflict(settings)
    assert CATALOG.conflict({**settings, "model.fold_batch_norm": False}) is None


def proposed(recipe_id, facts):
    proposals = CATALOG.propose(facts, only=[recipe_id])
    return [candidate.value for candidate in proposals.candidates] or proposals.skipped[recipe_id]


def test_norm_recipes_are_proposed_where_pairs_are():
    facts = cpu_facts()
    assert "no convolution with a bias" in proposed("conv_bias", facts)
    traced = replace(facts, workload=replace(facts.workload, norm_pairs_problem="has a forward that loops"))
    assert proposed("conv_bias", traced) == "the model has a forward that loops"
    paired = replace(facts, workload=replace(facts.workload, biased_conv_norm_pairs=2))
    assert proposed("conv_bias", paired) == [False]
    assert "2 convolutions add a bias" in CATALOG["conv_bias"].why(paired, False)
    assert "applies to inference" in proposed("fold_norm", paired)
    infer = gpu_facts(mode=Mode.INFER)
    assert "no convolution or linear layer" in proposed("fold_norm", infer)
    assert proposed("fold_norm", replace(infer, workload=replace(infer.workload, conv_norm_pairs=1))) == [True]
    assert CATALOG["fold_norm"].numerics_of(True, Mode.INFER) is Numerics.CLOSE


# --- outputs padded -------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """Sizes off every multiple; the vocabulary's weight is shared where asked."""

    def __init__(self, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(501, 16, padding_idx=0)
        self.wide, self.back = nn.Linear(16, 100), nn.Linear(100, 16)
        self.head = nn.Linear(16, 501, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + self.back(torch.relu(self.wide(x))))


def token_steps(model, optimizer, steps=3):
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 501, (4, 8), generator=generator)
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        assert logits.shape == (4, 7, 501)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@every_way
@pytest.mark.parametrize("tied", [True, False])
def test_a_padded_model_trains_as_before(way, tied):
    torch.manual_seed(0)
    models = [Decoder(tied).double()]
    models.append(copy.deepcopy(models[0]))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1) for m in models]
    # The second has moments already when it is padded.
    expected = token_steps(models[0], optimizers[0], 2) + token_steps(models[0], optimizers[0], 3)
    found = token_steps(models[1], optimizers[1], 2)
    padded = way("pad_dims", 8, models[1], optimizers[1])
    found += token_steps(padded, optimizers[1], 3)
    assert found == pytest.approx(expected, rel=1e-9)
    shapes = {name: tuple(parameter.shape) for name, parameter in padded.named_parameters()}
    assert shapes["embedding.weight" if tied else "head.weight"] == (504, 16)
    assert (shapes["wide.weight"], shapes["wide.bias"], shapes["back.weight"]) == ((104, 16), (104,), (16, 100))
    for name, parameter in padded.named_parameters():
        if parameter.shape[0] in (104, 504):
            assert not parameter[-3:].any(), f"{name} has rows that are not zero"
            assert optimizers[1].state[parameter]["exp_avg"].shape == parameter.shape
    if tied:
        assert padded.head._parameters["weight"] is padded.embedding._parameters["weight"]


@every_way
def test_state_dicts_of_padded_models_have_the_usual_shapes(way):
    plain, model = Decoder(), Decoder()
    shapes = {name: tensor.shape for name, tensor in plain.state_dict().items()}
    padded = way("pad_dims", 64, model)
    assert padded.head._parameters["weight"].shape == (512, 16)
    assert {name: tensor.shape for name, tensor in padded.state_dict().items()} == shapes
    tokens = torch.randint(0, 501, (2, 3))
    for assign in (False, True):
        padded.load_state_dict(copy.deepcopy(plain.state_dict()), assign=assign)
        torch.testing.assert_close(padded(tokens), plain(tokens))
    plain.load_state_dict(padded.state_dict())
    torch.testing.assert_close(padded(tokens), plain(tokens))


def test_padded_models_can_be_copied_pickled_and_cast():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for other in (copied, pickled):
        assert other.head._parameters["weight"] is other.embedding._parameters["weight"]
        assert torch.equal(other(tokens), model(tokens))
    cast = copied.to(torch.bfloat16)
    assert cast(tokens).dtype == torch.bfloat16
    assert cast.head._parameters["weight"] is cast.embedding._parameters["weight"]


def test_a_padded_layer_shows_the_weights_that_count():
    model = applied("pad_dims", 8, Decoder(tied=False))
    x = torch.randn(3, 16)
    assert model.head.weight.shape == (501, 16)
    torch.testing.assert_close(functional.linear(x, model.head.weight, model.head.bias), model.head(x))
    assert (model.head.out_features, model.embedding.num_embeddings) == (501, 501)


def test_frozen_weights_and_gradients_keep_their_state():
    model = Decoder(tied=False)
    model.wide.requires_grad_(False)
    model(torch.randint(0, 501, (2, 3))).sum().backward()
    gradient = model.head.weight.grad.clone()
    applied("pad_dims", 8, model)
    assert not model.wide._parameters["weight"].requires_grad
    assert model.wide._parameters["weight"].grad is None
    assert torch.equal(model.head._parameters["weight"].grad[:501], gradient)
    token_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Elsewhere(nn.Module):
    """The head's weight is a parameter of its own, too."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 501)
        self.weight = self.head.weight

    def forward(self, x):
        return functional.linear(self.head(x), self.weight.T)


def parametrized():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 501)))


def tied_bias_of_linears():
    model = nn.Sequential(nn.Linear(16, 501), nn.Linear(501, 501))
    model[1].bias = model[0].bias
    return model


def of_other_classes():
    return nn.ModuleList([type("MyLinear", (nn.Linear,), {})(16, 501), nn.Bilinear(4, 4, 501)])


@pytest.mark.parametrize("build", [Elsewhere, parametrized, tied_bias_of_linears, of_other_classes])
def test_weights_that_others_use_are_not_padded(build):
    model = build()
    assert layers_to_pad(model, 8) == []
    applied("pad_dims", 8, model)
    assert all(parameter.shape[0] != 504 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("size", "multiple", "padded"),
    [(50257, 8, 50264), (50257, 64, 50304), (1000, 8, 1000), (1000, 64, 1024), (10, 8, 10), (57, 8, 64), (70, 64, 70)],
)
def test_a_size_grows_by_an_eighth_at_most(size, multiple, padded):
    assert padded_size(size, multiple) == padded


def test_a_padded_model_can_be_compiled_and_traced():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(tokens), model(tokens))


def test_padding_is_proposed_where_outputs_are_off_the_multiple():
    facts = gpu_facts(capability=(9, 0), paddable_outputs=((8, 1, 50257), (64, 1, 50257)))
    assert proposed("pad_dims", facts) == [8, 64]
    assert "50,257 outputs" in CATALOG["pad_dims"].why(facts, 64)
    assert "no linear layer" in proposed("pad_dims", gpu_facts(capability=(9, 0)))
    old = gpu_facts(capability=(6, 1), paddable_outputs=((8, 1, 50257),))
    assert "6.1 has no tensor cores" in proposed("pad_dims", old)
    adafactor = replace(facts.workload, optimizer=replace(facts.workload.optimizer, name="Adafactor"))
    assert "rows of zeros" in proposed("pad_dims", replace(facts, workload=adafactor))
    assert "needs a CUDA GPU" in proposed("pad_dims", cpu_facts())
    assert CATALOG.conflict({"model.pad_to_multiple": 8, "optimizer.state": "adafactor"})
    assert CATALOG.conflict({"model.pad_to_multiple": 8, "precision.quantize": "int8wo"})
    assert CATALOG["pad_dims"].numerics_of(8, Mode.TRAIN) is Numerics.CHANGED
    assert CATALOG["pad_dims"].numerics_of(8, Mode.INFER) is Numerics.CLOSE


# --- activation checkpointing ---------------------------------------------------------------------------------


class Block(nn.Module):
    """Several inputs, keywords (one with a name that checkpoints know), dict and tuple outputs, dropout, a norm."""

    def __init__(self, width=16):
        super().__init__()
        self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.3)

    def forward(self, x, state, *, mask=None, debug=1.0):
        y = self.dropout(self.back(SquareFunction.apply(self.wide(self.norm(x)))))
        return {"x": x + y * mask * debug, "rest": (state + y.mean(), "text", None)}


class Stacked(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        state = x.sum()
        for block in self.blocks:
            found = block(x, state, mask=torch.ones_like(x), debug=0.5)
            x, state = found["x"], found["rest"][0]
        return self.head(x) * state


class Buffers(nn.Module):
    """A block that reads what it has written to its buffers: in place, and by a new tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("table", torch.randn(16))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.scale.mul_(0.9)
        self.steps = self.steps + 1
        return torch.tanh(self.linear(x) * self.scale + self.table) / self.steps


def training_steps(model, x, steps=5):
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def frozen():
    model = Stacked()
    model.blocks[0].requires_grad_(False)
    return model


def wholly_frozen_blocks():
    model = Stacked()
    model.blocks.requires_grad_(False)
    return model


def shared_block():
    block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1))
    return nn.Sequential(block, nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)), block)


CHECKPOINTED = {
    "keywords, dicts and dropout": (Stacked, (8, 16)),
    "buffers": (lambda: nn.Sequential(*(Buffers() for _ in range(3))), (8, 16)),
    "PyTorch's own layers": (encoder, (2, 5, 16)),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=3), (2, 3, 32, 32)),
    "frozen first block": (frozen, (8, 16)),
    "frozen blocks": (wholly_frozen_blocks, (8, 16)),
    "a block called twice": (shared_block, (8, 16)),
}


@pytest.mark.parametrize(
    ("way", "name"), [*((applied, name) for name in CHECKPOINTED), (coded, "buffers"), (exported, "resnet18")]
)
def test_checkpointed_blocks_train_to_the_bit(way, name):
    build, shape = CHECKPOINTED[name]
    torch.manual_seed(0)
    model = build()
    x, before = torch.randn(shape), copy.deepcopy(model)
    changed = way("checkpointing", "blocks", model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert changed is model
    assert [name for name, _ in changed.named_modules()] == [name for name, _ in before.named_modules()]
    assert training_steps(changed, x) == training_steps(before, x)
    expected, found = before.state_dict(), changed.state_dict()
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    assert torch.equal(changed.eval()(x), before.eval()(x))


def saved_bytes(model, x):
    """What the backward pass keeps, each tensor once, without parameters."""
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    saved = {}

    def pack(tensor):
        saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).square().mean()
    kept = sum(size for place, size in saved.items() if place not in parameters)
    loss.backward()
    return kept


def test_checkpointed_blocks_keep_their_inputs_only():
    model, x = encoder(), torch.randn(8, 32, 16)
    usual = saved_bytes(model, x)
    applied("checkpointing", "blocks", model)
    kept = saved_bytes(model, x)
    # The inputs of three layers, and what the loss keeps.
    assert kept < usual / 5
    applied("checkpointing", "none", model)
    assert saved_bytes(model, x) == pytest.approx(usual, rel=0.05)


def test_checkpointed_models_can_be_copied_and_pickled():
    model = applied("checkpointing", "blocks", Stacked())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.blocks[0].forward.block is other.blocks[0]
        x = torch.randn(8, 16)
        assert training_steps(other, x) == training_steps(copy.deepcopy(model), x)


def test_checkpoints_can_be_taken_off_again():
    model = applied("checkpointing", "blocks", Stacked())
    applied("checkpointing", "none", model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_model_that_has_a_switch_of_its_own_is_switched_off_and_seen():
    class Switched(Stacked):
        gradient_checkpointing = True

        def gradient_checkpointing_disable(self):
            self.gradient_checkpointing = False

    model = Switched()
    assert checkpoints_itself(model)
    applied("checkpointing", "blocks", model)
    assert not any("forward" in vars(module) for module in model.modules())
    applied("checkpointing", "none", model)
    assert not model.gradient_checkpointing


def test_a_block_with_a_forward_of_its_own_is_left_out():
    model = Stacked()
    own = functools.partial(type(model.blocks[1]).forward, model.blocks[1])
    model.blocks[1].forward = own
    applied("checkpointing", "blocks", model)
    assert model.blocks[1].forward is own
    assert model.blocks[0].forward is not own


def test_a_block_that_writes_over_its_input_fails_instead_of_training_wrongly():
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            x.mul_(2)
            return self.linear(x) ** 2

    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(Overwrites(), Overwrites()))
    applied("checkpointing", "blocks", model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        training_steps(model, torch.randn(4, 16), 1)


def test_a_model_without_blocks_cannot_be_checkpointed():
    with pytest.raises(ValueError, match="repeats no block"):
        applied("checkpointing", "blocks", Pair())


@pytest.mark.parametrize("regional", [False, True])
def test_checkpointed_blocks_can_be_compiled(regional):
    torch.manual_seed(0)
    model = Stacked()
    for block in model.blocks:
        block.dropout.p = 0.0
    before, x = copy.deepcopy(model), torch.randn(8, 16)
    applied("checkpointing", "blocks", model)
    if regional:
        compile_blocks(model, backend="aot_eager")
    else:
        model.compile(backend="aot_eager")
    assert training_steps(model, x) == pytest.approx(training_steps(before, x), rel=1e-4)
    for name, tensor in before.state_dict().items():
        if "running_var" in name or "tracked" in name:
            torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [applied, coded], ids=["apply", "code"])
def test_a_memory_budget_is_the_compilers(way):
    from torch._functorch import config

    try:
        way("checkpointing", "budget-0.5", Stacked())
        assert config.activation_memory_budget == 0.5
    finally:
        applied("checkpointing", "none", Stacked())
    assert config.activation_memory_budget == 1.0


def test_checkpointing_is_proposed_for_repeated_blocks():
    facts = cpu_facts(repeated_blocks=(("Block", 12),))
    assert proposed("checkpointing", facts) == ["blocks"]
    assert "repeats Block 12 times" in CATALOG["checkpointing"].why(facts, "blocks")
    assert "repeats no block" in proposed("checkpointing", cpu_facts())
    assert "applies to training" in proposed("checkpointing", cpu_facts(mode=Mode.INFER))
    compiled = cpu_facts(repeated_blocks=(("Block", 12),), current={"compile.mode": "default"})
    assert proposed("checkpointing", compiled) == ["blocks", "budget-0.5"]
    on = cpu_facts(repeated_blocks=(("Block", 12),), current={"memory.activation_checkpointing": "blocks"})
    assert proposed("checkpointing", on) == ["none"]
    recipe = CATALOG["checkpointing"]
    assert recipe.accepts("budget-0.25")
    assert not any(map(recipe.accepts, ("budget-0", "budget-1", "budget-", "budget-x", "budget-0.5.5", 0.5)))
    assert recipe.numerics_of("blocks", Mode.TRAIN) is Numerics.EXACT
    assert CATALOG.conflict({recipe.key: "blocks", "compile.pointwise_only": True})
    assert CATALOG.conflict({recipe.key: "none", "compile.pointwise_only": True}) is None
    assert CATALOG.conflict({recipe.key: "budget-0.5", "compile.mode": "none"})
    assert CATALOG.conflict({recipe.key: "budget-0.5", "compile.mode": "default"}) is None


@pytest.mark.parametrize(("installed", "refused"), [("2.6.0", True), ("2.9.1+cu128", True), ("2.10.0", False)])
def test_checkpoints_in_a_captured_step_are_refused_where_pytorch_cannot_capture_them(monkeypatch, installed, refused):
    monkeypatch.setattr("advisor.recipe.version", {"torch": installed}.get)
    graph = {"step.cuda_graph": True}
    assert bool(CATALOG.conflict({"memory.activation_checkpointing": "blocks", **graph})) is refused
    assert CATALOG.conflict({"memory.activation_checkpointing": "none", **graph}) is None
    assert CATALOG.conflict({"memory.activation_checkpointing": "budget-0.5", **graph}) is None


# --- what an inspection finds ---------------------------------------------------------------------------------


def inspected(model, images, mode=Mode.TRAIN):
    model.train(mode is Mode.TRAIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if mode is Mode.TRAIN else None
    data = (images, torch.zeros(len(images)))
    loss = functional.mse_loss if mode is Mode.TRAIN else None
    loop = Loop(model, data, loss, optimizer, mode, len(images))
    return inspect_loop(loop, torch.device("cpu"), [data])


def test_pairs_are_facts():
    images = torch.randn(2, 3, 8, 8)
    trained = inspected(UNet(), images)
    assert (trained.biased_conv_norm_pairs, trained.conv_norm_pairs, trained.norm_pairs_problem) == (4, 0, "")
    inferred = inspected(UNet(), images, Mode.INFER)
    assert (inferred.biased_conv_norm_pairs, inferred.conv_norm_pairs) == (4, 4)
    untraceable = inspected(DataDependent(), images)
    assert untraceable.biased_conv_norm_pairs == 0
    assert untraceable.norm_pairs_problem == (
        "has a forward that torch.export cannot follow: what it does depends on the values of a tensor"
    )
    exported_call = inspected(Optional(), images)
    assert (exported_call.biased_conv_norm_pairs, exported_call.norm_pairs_problem) == (1, "")


def test_outputs_to_pad_are_facts():
    tokens = torch.randint(0, 501, (2, 3))
    assert inspected(Decoder(), tokens).paddable_outputs == ((8, 2, 501), (64, 1, 501))
    assert inspected(nn.Linear(3, 1020), torch.randn(2, 3)).paddable_outputs == ((8, 1, 1020),)
    assert inspected(nn.Linear(3, 1024), torch.randn(2, 3)).paddable_outputs == ()


def test_a_models_own_checkpoints_are_a_fact():
    model = Stacked()
    key = "memory.activation_checkpointing"
    assert inspected(model, torch.randn(4, 16)).current[key] == "none"
    model.gradient_checkpointing, model.gradient_checkpointing_disable = True, lambda: None
    assert inspected(model, torch.randn(4, 16)).current[key] == "blocks"


# --- the batch that saved memory makes room for ---------------------------------------------------------------


def test_a_batch_grows_until_activations_fill_the_memory():
    # 2 GB stay whatever the batch; 64 samples took 8 GB before and 2 GB with the candidate.
    gb = 10**9
    assert batch_size_within(10 * gb, 4 * gb, 2 * gb, 64, 10 * gb) == 256
    assert batch_size_within(10 * gb, 10 * gb, 2 * gb, 64, 10 * gb) == 64
    assert batch_size_within(10 * gb, 2 * gb, 2 * gb, 64, 10 * gb) == 64
    assert batch_size_within(10 * gb, 4 * gb, 2 * gb, 64, gb) == 0
    # What is said to stay cannot be more than a whole peak.
    assert batch_size_within(10 * gb, 4 * gb, 100 * gb, 64, 10 * gb) == 64


def measured(peak_bytes, batch_size=32, speedup=0.8):
    result = TrialResult(
        Outcome.MEASURED, batch_size=batch_size, blocks=(TimedBlock(1, 32, 1.0),), peak_allocated_bytes=peak_bytes
    )
    candidate = Candidate("checkpointing", "memory.activation_checkpointing", "blocks")
    return TrialRecord(candidate, candidate.settings, result, Comparison(speedup, speedup, speedup, 0.01))


def test_what_saved_memory_is_good_for_is_said():
    facts = replace(gpu_facts(batch_size=32, device_memory_bytes=80 * GIB), peak_allocated_bytes=20 * GIB)
    workload = facts.workload
    fixed = workload.parameter_bytes * 2 + workload.optimizer.state_bytes
    text = CATALOG.after(facts, measured(8 * GIB))
    size = batch_size_within(20 * GIB, 8 * GIB, fixed, 32, round(0.9 * 80 * GIB))
    assert "8.00 GiB at its peak in place of 20.0 GiB, 60 % less, and takes 1.25 times as long" in text
    assert f"up to about {size:,} samples" in text
    assert "saves no memory" in CATALOG.after(facts, measured(21 * GIB))
    assert CATALOG.after(facts, measured(8 * GIB, batch_size=64)) == ""
    assert CATALOG.after(replace(facts, peak_allocated_bytes=None), measured(8 * GIB)) == ""
    control = replace(measured(8 * GIB), candidate=Candidate("control", "control.repeat", True))
    assert CATALOG.after(facts, control) == ""
