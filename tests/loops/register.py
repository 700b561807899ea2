"""The loops by name, with the traits that decide which settings concern them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from advisor.records import Mode, Value
from loops.runs import Run

# A loop returns the objects that outlive it, by name: what has a state dict, or is a value to compare.
Body = Callable[[Run], Mapping[str, Any]]

MODULES = (
    "plain_loops",
    "rate_loops",
    "average_loops",
    "checkpoint_loops",
    "evaluation_loops",
    "batch_loops",
    "structure_loops",
    "loss_loops",
    "research_loops",
    "stateful_loops",
    "framework_loops",
    "inference_loops",
)
# What a loop may be marked with.
TRAITS = {
    "step": "its step comes from train_step or infer, so that settings of the step apply; else it uses prepare only",
    "only_steps": "nothing but its steps calls the model, so that weights may have another type",
    "loader": "it prepares a DataLoader",
    "workers": "it is also run with worker processes",
    "convolution": "its model convolves images",
    "activation": "its model has activations as modules",
    "biased_norm": "its model has a convolution with a bias before a batch norm",
    "attention": "its model calls scaled_dot_product_attention",
    "blocks": "its model repeats a block",
    "clip": "its step clips gradients",
    "random": "it draws random numbers on the device",
    "adam": "its optimizer is Adam or AdamW, and may become another",
    "sgd": "its optimizer is SGD, and may become another",
    "any_optimizer": "its optimizer is none of those that settings change",
    "framework": "a framework runs it, which costs a second a run",
}


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: its name, its code, its traits, and settings that it always runs under when it is tuned.

    ``directions`` (for loops that stop and go on): who runs the two parts.
    """

    name: str
    body: Body
    mode: Mode
    traits: frozenset[str]
    always: Mapping[str, Value]
    directions: tuple[str, ...] = ("tuned",)


_LOOPS: dict[str, Loop] = {}


def training(*traits: str, always: Mapping[str, Value] | None = None, resumes: bool = False) -> Callable[[Body], Body]:
    """Register a training loop under its function's name."""
    return _registered(Mode.TRAIN, traits, always or {}, resumes)


def inference(*traits: str) -> Callable[[Body], Body]:
    """Register an inference loop under its function's name."""
    return _registered(Mode.INFER, traits, {}, False)


def _registered(
    mode: Mode, traits: tuple[str, ...], always: Mapping[str, Value], resumes: bool
) -> Callable[[Body], Body]:
    unknown = set(traits) - TRAITS.keys()
    assert not unknown, f"no such traits: {unknown}"
    directions = ("tuned to plain", "plain to tuned", "tuned to tuned") if resumes else ("tuned",)

    def keep(body: Body) -> Body:
        name = body.__name__
        assert name not in _LOOPS, f"two loops are called {name}"
        _LOOPS[name] = Loop(name, body, mode, frozenset(traits), always, directions)
        return body

    return keep


def all_loops() -> dict[str, Loop]:
    """Every loop by name. What a framework needs that is not installed is known when the loop runs."""
    for module in MODULES:
        importlib.import_module(f"loops.{module}")
    return dict(_LOOPS)
