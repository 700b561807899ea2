"""Layers that are changed: biases that a norm cancels, norms folded into weights, outputs padded to a multiple."""

import copy
import pickle
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
    every_way,
    inspected,
    made,
    unread,
)
from torch import nn
from torch.nn import functional

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
    changed = way("conv_bias", False, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
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


# --- outputs padded to a multiple -----------------------------------------------------------------------------


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
    assert (padded.head.padded_features, padded.wide.padded_features) == (504, 104)
    assert type(padded.back) is nn.Linear
    for (name, value), (plain_name, plain) in zip(padded.named_parameters(), models[0].named_parameters(), strict=True):
        assert name == plain_name
        torch.testing.assert_close(value, plain)
        torch.testing.assert_close(value.grad, plain.grad)


def test_padded_models_can_be_copied_pickled_and_cast():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for other in (copied, pickled):
        assert other.head.weight is other.embedding.weight
        assert torch.equal(other(tokens), model(tokens))
    assert copied.to(torch.bfloat16)(tokens).dtype == torch.bfloat16


@pytest.mark.compile
def test_a_padded_model_can_be_compiled_and_traced():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(tokens), model(tokens))
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(tokens), model(tokens))


def test_outputs_to_pad_are_facts():
    tokens = torch.randint(0, 501, (2, 3))
    assert inspected(Decoder(), tokens).paddable_outputs == ((8, 2, 501), (64, 1, 501))
    assert inspected(nn.Linear(3, 1020), torch.randn(2, 3)).paddable_outputs == ((8, 1, 1020),)
    assert inspected(nn.Linear(3, 1024), torch.randn(2, 3)).paddable_outputs == ()
