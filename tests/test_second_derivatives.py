"""Workloads that differentiate a gradient again: known beforehand, and not compiled."""

from dataclasses import replace

import pytest
import torch
from facts import cpu_facts
from proposals import reason
from torch import nn

from advisor import Workload
from advisor.records import TargetSpec
from advisor.target.normalise import normalise
from advisor.trial.inspection import differentiates_twice

COMPILED = ("compile", "compile_scope")


def penalty(model, inputs):
    inputs = inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


class Helpers:
    penalty = staticmethod(penalty)


def by_function(model, batch):
    return model(batch).mean() + penalty(model, batch)


def by_method(model, batch):
    return model(batch).mean() + Helpers.penalty(model, batch)


def plainly(model, batch):
    return model(batch).square().mean()


class Energies(nn.Linear):
    """A model whose outputs are gradients itself."""

    def forward(self, positions):
        positions = positions.requires_grad_()
        energy = super().forward(positions).sum()
        return torch.autograd.grad(energy, positions, create_graph=self.training)[0]


def loop_of(loss, model=None):
    return normalise(
        Workload(model or nn.Linear(4, 1), data=torch.randn(8, 4), loss=loss, mode="train"), TargetSpec("t:build", ".")
    )


@pytest.mark.parametrize(
    ("loss", "model", "twice"),
    [
        (by_function, None, True),
        (by_method, None, True),
        (lambda model, batch: by_function(model, batch), None, True),  # noqa: PLW0108 - lambdas are read too
        (plainly, Energies(4, 4), True),
        (plainly, None, False),
        (plainly, nn.TransformerEncoderLayer(4, 2, 8), False),
    ],
    ids=["function", "method", "lambda", "model", "plain", "of PyTorch"],
)
def test_what_differentiates_twice_is_read_off_the_code(loss, model, twice):
    assert differentiates_twice(loop_of(loss, model)) is twice


@pytest.mark.parametrize("recipe_id", COMPILED)
def test_nothing_is_compiled_then(recipe_id):
    facts = cpu_facts()
    twice = replace(facts, workload=replace(facts.workload, differentiates_twice=True))
    assert "differentiates a gradient" in reason(recipe_id, twice)
