"""A workload's loop as it was written, with perf-advisor's settings, and with what the peer found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scripts import Script, on

import advisor

# A step, and what its loop goes over: one batch or a loader.
Loop = tuple[Callable[[Any], torch.Tensor], Any]


def baseline(script: Script) -> Loop:
    """The loop that everybody writes first."""
    model, device = script.model, script.device
    if not script.trains:

        @torch.no_grad()
        def infer(batch: Any) -> torch.Tensor:
            return model(*on(device, batch))

        return infer, script.data
    optimizer = script.make_optimizer(model.parameters())

    def train(batch: Any) -> torch.Tensor:
        *inputs, target = on(device, batch)
        optimizer.zero_grad()
        loss = script.loss(model(*inputs), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train, script.data


def tuned(script: Script, settings: Path) -> Loop:
    """The loop with exported settings, applied as a user applies them: by the public API."""
    tuning = advisor.load(settings)
    if not script.trains:
        infer = tuning.infer(script.model)
        return lambda batch: infer(*batch), script.data
    optimizer = script.make_optimizer(script.model.parameters())
    if isinstance(script.data, tuple):
        model, optimizer = tuning.prepare(script.model, optimizer)
        return tuning.train_step(model, optimizer, script.loss), script.data
    model, optimizer, loader = tuning.prepare(script.model, optimizer, script.data)
    return tuning.train_step(model, optimizer, script.loss), loader


def peer(script: Script, budget: str) -> tuple[Loop, Any]:
    """The loop with what pytorch-autotune found, as its README writes it; and its result.

    It searches unless its cache knows the workload already.
    """
    from pytorch_autotune import autotune

    *inputs, target = script.data
    optimizer = script.make_optimizer(script.model.parameters())
    result = autotune(
        script.model,
        (*inputs, target),
        loss_fn=script.loss,
        optimizer=_name_of(optimizer) or script.make_optimizer,
        lr=optimizer.defaults["lr"],
        budget=int(budget) if budget.isdecimal() else budget,
        device=str(script.device),
    )
    return (lambda batch: result.step(*batch).detach(), script.data), result


def _name_of(optimizer: torch.optim.Optimizer) -> str:
    """The peer's name for an optimizer, which lets it try the fused one; empty where it has none for these options."""
    rate, parameters = optimizer.defaults["lr"], [torch.nn.Parameter(torch.zeros(1))]
    named = {
        "adamw": torch.optim.AdamW(parameters, lr=rate),
        "adam": torch.optim.Adam(parameters, lr=rate),
        "sgd": torch.optim.SGD(parameters, lr=rate, momentum=0.9),
    }
    return next(
        (
            name
            for name, known in named.items()
            if (type(known), known.defaults) == (type(optimizer), optimizer.defaults)
        ),
        "",
    )
