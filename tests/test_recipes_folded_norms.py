"""Batch norms folded into the convolutions before them, for inference."""

import copy
import warnings

import pytest
import torch
from model_structures import (
    Pair,
    UNet,
    applied,
    coded,
    each_model,
    made,
    scrambled,
)
from torch import nn

from advisor.step.fold_norm import foldable_pairs


@each_model
def test_a_checkpoint_of_the_model_as_it_was_is_folded_as_it_is_loaded(way, name):
    model, images, _, _ = made(name)
    other = copy.deepcopy(model).eval()
    for tensor in other.state_dict().values():
        tensor.copy_(1.25 * tensor)
    changed = way("fold_norm", True, model.eval())
    saved = copy.deepcopy(changed.state_dict())
    changed.load_state_dict(other.state_dict(), strict=False)  # which would hide what is not loaded
    torch.testing.assert_close(changed(images), other(images))
    changed.load_state_dict(saved)
    assert all(torch.equal(tensor, changed.state_dict()[key]) for key, tensor in saved.items())
    nn.ModuleDict({"net": changed}).load_state_dict(nn.ModuleDict({"net": other}).state_dict())
    torch.testing.assert_close(copy.deepcopy(changed)(images), other(images))


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
