"""Hooks that a loop adds to layers of a compiled model, or takes from them, run as in a plain loop."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from advisor.step.late_hooks import LateHooks
from advisor.step.pointwise import FusedForward
from advisor.step.tuning import Tuning


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.activation, self.last = nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.last(self.activation(self.first(x)) * 1.5 + 0.1)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *(Block() for _ in range(3)), nn.Linear(8, 3))


def plain_step(model, optimizer):
    def step(batch):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def losses_and_calls(settings, add_at, remove_at):
    """The losses of a loop that has two hooks for some of its steps, and the number of their calls."""
    model, calls = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if settings:
        tuning = Tuning(settings)
        model, optimizer = tuning.prepare(model, optimizer)
        step = tuning.train_step(model, optimizer, nn.functional.cross_entropy)
    else:
        step = plain_step(model, optimizer)

    def halve(module, inputs, output):
        calls.append("activation")
        return output * 0.5

    generator, losses, handles = torch.Generator().manual_seed(1), [], []
    for at in range(6):
        if at == add_at:
            handles += [model[1].activation.register_forward_hook(halve)]
            handles += [model[2].register_forward_hook(lambda *_: calls.append("block"))]
            handles += [model.register_forward_hook(halve)]
        if at == remove_at:
            for handle in handles:
                handle.remove()
        losses.append(step((torch.randn(5, 4, generator=generator), torch.arange(5) % 3)))
    return torch.stack(losses), calls


SETTINGS = [
    {"compile.mode": "default"},
    {"compile.mode": "default", "compile.scope": "regional"},
    {"compile.mode": "default", "compile.scope": "with_loss"},
    {"compile.pointwise_only": True},
]


@pytest.mark.parametrize(("add_at", "remove_at"), [(2, 4), (0, 4)])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.filterwarnings("ignore:.*runs uncompiled while")
def test_hooks_that_come_and_go_run_as_in_a_plain_loop(settings, add_at, remove_at, eager_backend, fresh_compiler):
    expected, called = losses_and_calls({}, add_at, remove_at)
    found, calls = losses_and_calls(settings, add_at, remove_at)
    torch.testing.assert_close(found, expected)
    assert calls == called


def test_it_is_told_once_and_hooks_of_other_packages_do_not_count(monkeypatch):
    model = net()
    hooks = LateHooks(model)
    assert not hooks.differ
    handle = model[1].register_forward_pre_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="this Sequential runs uncompiled while its layers have other hooks"):
        assert hooks.differ
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hooks.differ
    handle.remove()
    assert not hooks.differ
    monkeypatch.setattr("advisor.step.late_hooks.is_installed", lambda hook: True)
    handle = model[1].register_forward_hook(lambda *_: None)
    assert not hooks.differ


OPTIONS = SimpleNamespace(gain=1.0)


def test_values_that_change_are_followed_in_fused_chains(eager_backend, monkeypatch):
    share = 0.5

    class Scaled(Block):
        scale = 1.0

        def forward(self, x):
            return (super().forward(x) * self.scale + share) * OPTIONS.gain

    def is_followed(model):
        found = model(inputs)
        torch.testing.assert_close(found, plain(model, inputs))
        return not torch.equal(found, before)

    model, inputs = Scaled(), torch.ones(2, 8)
    plain, before = type(model).forward, model(inputs)
    model = Tuning({"compile.pointwise_only": True}).prepare(model)
    assert isinstance(model.forward, FusedForward)
    copied = copy.deepcopy(model)
    assert not is_followed(model)
    assert not is_followed(copied)
    model.scale = 0.25
    assert is_followed(model)
    assert not is_followed(copied)
    del model.scale
    assert not is_followed(model)
    share = 0.25
    assert is_followed(model)
    assert is_followed(copied)
    share = 0.5
    monkeypatch.setattr(OPTIONS, "gain", 2.0)
    assert is_followed(model)
    monkeypatch.undo()
    assert not is_followed(model)
