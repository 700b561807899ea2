"""Norms behind convolutions: the bias that they cancel is removed, or they are folded into the weights."""

import copy
import warnings

import pytest
import torch
from model_structures import (
    Branch,
    DataDependent,
    Pair,
    SharedConv,
    SharedNorm,
    UNet,
    applied,
    each_model,
    inspected,
    made,
    unread,
)
from torch import nn

from advisor.inlined.conv_bias import removable_biases
from advisor.inlined.fold_norm import is_foldable
from advisor.inlined.pairs import layers_in_a_row
from advisor.records import Mode


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
        assert set(expected) - set(found) == lost
        for key in found:
            torch.testing.assert_close(found[key], expected[key])


def test_checkpoints_without_the_biases_go_both_ways():
    plain, images, _, _ = made("U-Net")
    model = applied("conv_bias", False, copy.deepcopy(plain))
    assert list(model.state_dict()) == list(plain.state_dict())
    for tensor in plain.state_dict().values():
        tensor.copy_(1.25 * tensor)
    for loading in (model, copy.deepcopy(model)):
        loading.load_state_dict(plain.state_dict())
        torch.testing.assert_close(loading.eval()(images), plain.eval()(images))
        assert loading.first[0].bias is None
    expected = copy.deepcopy(plain)(images)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(images), expected)


def test_a_frozen_norm_keeps_the_bias_that_learns_before_it():
    model = UNet()
    model.up_norm.eval()
    assert model.up not in [layer for layer, _ in removable_biases(model, layers_in_a_row(model))]


def test_norms_without_running_statistics_cancel_biases_always():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, 5, 1), nn.InstanceNorm2d(5)
    )
    images = torch.randn(2, 3, 5, 5)
    expected = model.eval()(images)
    torch.testing.assert_close(applied("conv_bias", False, model)(images), expected, rtol=1e-4, atol=1e-5)
    assert not any(is_foldable(*pair) for pair in layers_in_a_row(model))


@pytest.mark.parametrize("build", [Branch, SharedConv, SharedNorm, DataDependent])
def test_layers_that_something_else_reads_stay(build):
    model = build()
    assert removable_biases(model, layers_in_a_row(model)) == []
    assert not any(is_foldable(*pair) for pair in layers_in_a_row(model.eval()))


def test_tracing_leaves_no_stand_in_for_a_tensor_in_the_model():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.filters, self.layer = None, nn.Linear(2, 2)

        def forward(self, x):
            self.filters = self.latest = x * 2
            return self.layer(self.filters)

    model = Keeps()
    layers_in_a_row(nn.Sequential(model, nn.Linear(2, 2)))
    assert model.filters is None
    assert not hasattr(model, "latest")


def test_parts_are_followed_where_the_whole_model_cannot_be():
    model = nn.ModuleDict({"inner": nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), "other": DataDependent()})
    assert removable_biases(model, layers_in_a_row(model)) == [tuple(model["inner"])]


# --- norms folded ---------------------------------------------------------------------------------------------


@each_model
def test_folded_models_give_the_same_outputs(way, name):
    model, images, _, folds = made(name)
    expected = copy.deepcopy(model).eval()(images)
    kind = type(model)
    changed = way("fold_norm", True, model.eval())
    assert type(changed) is kind
    assert sum(isinstance(module, nn.Identity) for module in changed.modules()) == folds
    torch.testing.assert_close(changed(images), expected)


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_layers_with_computed_weights_are_not_folded(wrap):
    model = Pair().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.conv = wrap(model.conv)
    assert not any(is_foldable(*pair) for pair in layers_in_a_row(model))


# --- what is proposed -----------------------------------------------------------------------------------------


def test_pairs_are_facts():
    images = torch.randn(2, 3, 8, 8)
    trained = inspected(UNet(), images)
    assert (trained.biased_conv_norm_pairs, trained.conv_norm_pairs) == (4, 0)
    inferred = inspected(UNet(), images, Mode.INFER)
    assert (inferred.biased_conv_norm_pairs, inferred.conv_norm_pairs) == (4, 3)
    assert inspected(DataDependent(), images).biased_conv_norm_pairs == 0
