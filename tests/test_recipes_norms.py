"""Norms behind convolutions: the bias that they cancel is removed, or they are folded into the weights."""

import copy
from dataclasses import replace

import pytest
import torch
from facts import cpu_facts, gpu_facts
from model_structures import (
    Branch,
    DataDependent,
    Optional,
    Pair,
    ReadsTheBias,
    SharedConv,
    SharedNorm,
    SquareFunction,
    UNet,
    applied,
    coded,
    each_model,
    every_way,
    inspected,
    made,
    proposed,
    unread,
)
from proposals import CATALOG
from torch import nn
from torch.nn import functional

from advisor.records import Mode, Numerics
from advisor.step.conv_bias import removable_biases
from advisor.step.fold_norm import foldable_pairs
from advisor.step.tracing import CannotTraceError


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
    assert [key for key, _ in changed.named_parameters()] == [key for key, _ in before.named_parameters()]
    lost = unread(changed)
    assert len(lost) == biases
    for training in (True, False):
        before.train(training), changed.train(training)
        torch.testing.assert_close(changed(images), before(images))
        expected, found = gradients(before, images), gradients(changed, images)
        assert set(expected) - set(found) == (lost if training else unread(changed))  # it may train in evaluation mode
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
def test_checkpoints_without_the_biases_go_both_ways(way):
    plain, images, _, _ = made("U-Net")
    model = copy.deepcopy(plain)
    # Not Adam, which makes whole steps of the rounding that is a bias's gradient.
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (plain, model)]
    way("conv_bias", False, model, optimizers[1])
    assert list(model.state_dict()) == list(plain.state_dict())
    for each, optimizer in zip((plain, model), optimizers, strict=True):
        gradients(each.train(), images)
        optimizer.step()
    # What was loaded before or after, of the model and of a copy, computes what the plain model does.
    copied = copy.deepcopy(model)
    for loading in (model, copied):
        loading.load_state_dict(plain.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(loading.eval()(images), plain.eval()(images))
        assert loading.first[0].bias is None
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for each, optimizer in zip((plain.train(), model.train()), optimizers, strict=True):
        gradients(each, images)
        optimizer.step()
    with torch.no_grad():
        expected = model.eval()(images)
    torch.testing.assert_close(expected, plain.eval()(images), rtol=1e-3, atol=1e-3)
    plain.load_state_dict(model.state_dict())
    optimizers[0].load_state_dict(optimizers[1].state_dict())
    torch.testing.assert_close(plain.eval()(images), expected)


@every_way
def test_a_copy_from_before_follows_the_model_without_biases(way):
    """As averages of the weights do, and the encoders and target networks that follow a model."""
    model, images, _, _ = made("U-Net")
    plain = copy.deepcopy(model)
    average, followed = torch.optim.swa_utils.AveragedModel(model), copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (plain, model)]
    expected = [torch.optim.swa_utils.AveragedModel(plain), copy.deepcopy(plain)]
    way("conv_bias", False, model, optimizers[1])
    pairs = ((plain, expected, optimizers[0]), (model, [average, followed], optimizers[1]))
    for _ in range(3):
        for each, (mean, slow), optimizer in pairs:
            gradients(each.train(), images)
            optimizer.step()
            mean.update_parameters(each)
            with torch.no_grad():
                for new, old in zip(each.state_dict().values(), slow.state_dict().values(), strict=True):
                    old.lerp_(new, 0.5) if old.is_floating_point() else old.copy_(new)
                for new, old in zip(each.parameters(), slow.parameters(), strict=True):
                    assert new.shape == old.shape
    for found, wanted in zip((average, followed), expected, strict=True):
        torch.testing.assert_close(found.eval()(images), wanted.eval()(images))


def test_a_bias_that_a_loop_over_all_parameters_writes_to_is_saved_as_zeros():
    model, images, _, _ = made("U-Net")
    plain = copy.deepcopy(model)
    applied("conv_bias", False, model)
    for parameter in model.parameters():
        parameter.data.add_(1.0)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(images), plain.eval()(images))


def test_a_bias_that_is_given_anew_is_read():
    model = UNet().eval()
    applied("conv_bias", False, model)
    model.first[0].bias = nn.Parameter(torch.ones(model.first[0].out_channels))
    saved = model.state_dict()
    assert saved["first.0.bias"].sum() == model.first[0].out_channels
    model.load_state_dict(saved)
    assert model.first[0].bias is not None
    assert model.first[0].bias.sum() == model.first[0].out_channels


@every_way
def test_the_optimizer_keeps_its_groups(way):
    model = UNet()
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": [model.first[0].bias]}]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    way("conv_bias", False, model, optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [5, 1]
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


class OwnFunctionBetween(Pair):
    def forward(self, x):
        return self.norm(SquareFunction.apply(self.conv(x)))


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


def freezes_norms(model):
    model.norm.eval()


def trains_in_evaluation(model):
    model.eval()
    model.requires_grad_(True)


@pytest.mark.parametrize("change", [freezes_norms, trains_in_evaluation, nn.Module.eval])
@pytest.mark.parametrize("way", [applied, coded], ids=["apply", "code"])
def test_a_bias_comes_back_where_the_loop_lets_it_learn(way, change):
    torch.manual_seed(0)
    plain, images = Pair().double(), torch.randn(4, 3, 5, 5, dtype=torch.float64)
    with torch.no_grad():
        plain.norm.running_mean.normal_()
    models = plain, way("conv_bias", False, copy.deepcopy(plain), torch.optim.SGD(plain.parameters(), lr=0.1))
    assert models[1].conv.bias is None
    start = plain.conv.bias.detach().clone()
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        change(model)
        for _ in range(5):
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
    assert models[1].conv.bias.requires_grad
    torch.testing.assert_close(models[1].conv.bias, plain.conv.bias - start)
    torch.testing.assert_close(models[1].conv.weight, plain.conv.weight)
    assert list(models[1].state_dict()) == list(plain.state_dict())
    assert torch.equal(models[1].state_dict()["conv.bias"], models[1].conv.bias)
    assert "forward" not in vars(models[1].conv)


def test_a_layer_that_is_frozen_with_its_norm_needs_no_bias():
    torch.manual_seed(0)
    model, images = Pair(), torch.randn(4, 3, 5, 5)
    applied("conv_bias", False, model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.conv.requires_grad_(False)
    model.norm.eval()
    model(images).sum().backward()
    with torch.no_grad():
        model.eval()(images)
    assert model.conv.bias is None


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


def test_folding_and_removing_biases_exclude_each_other():
    settings = {"model.fold_batch_norm": True, "model.conv_bias_before_norm": False}
    assert "gives its convolution a bias again" in CATALOG.conflict(settings)
    assert CATALOG.conflict({**settings, "model.fold_batch_norm": False}) is None


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


def test_pairs_are_facts(monkeypatch):
    monkeypatch.setattr("advisor.trial.inspection._TRACING_LIMIT_S", 120.0)  # torch.export may be imported first
    images = torch.randn(2, 3, 8, 8)
    trained = inspected(UNet(), images)
    assert (trained.biased_conv_norm_pairs, trained.conv_norm_pairs, trained.norm_pairs_problem) == (4, 0, "")
    inferred = inspected(UNet(), images, Mode.INFER)
    assert (inferred.biased_conv_norm_pairs, inferred.conv_norm_pairs) == (4, 4)
    untraceable = inspected(DataDependent(), images)
    assert untraceable.biased_conv_norm_pairs == 0
    assert untraceable.norm_pairs_problem == (
        "has a forward that torch.export cannot follow: its operations depend on the values of a tensor"
    )
    exported_call = inspected(Optional(), images)
    assert (exported_call.biased_conv_norm_pairs, exported_call.norm_pairs_problem) == (1, "")
