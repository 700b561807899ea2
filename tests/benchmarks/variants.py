"""A workload's loop as it was written, with perf-advisor's settings, and with the peer's stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from expert import Loop
from script import Script, loss_of, on, output_of
from small import module_of
from torch.utils.data import DataLoader

import advisor


def baseline(script: Script) -> Loop:
    """The loop that everybody writes first; the model is called as sessions take it to be, with gradients on."""
    device = script.device
    if not script.trains:
        forward = output_of(script)
        return lambda batch: forward(on(device, batch)), script.data
    optimizer, loss_function = script.make_optimizer(script.model.parameters()), loss_of(script)

    def train(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_function(on(device, batch))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train, script.data


def tuned(script: Script, settings: Path) -> Loop:
    """The loop with exported settings, applied as a user applies them: by the public API."""
    tuning = advisor.load(settings)
    if not script.trains:
        return tuning.infer(script.model), script.data
    optimizer = script.make_optimizer(script.model.parameters())
    if not isinstance(script.data, DataLoader):
        model, optimizer = tuning.prepare(script.model, optimizer)
        return tuning.train_step(model, optimizer, script.loss), script.data
    model, optimizer, loader = tuning.prepare(script.model, optimizer, script.data)
    return tuning.train_step(model, optimizer, script.loss), loader


def python_file(script: Script, file: Path) -> Loop:
    """The loop with an exported Python file, applied as the file's header says."""
    written = module_of(file, "exported")
    loader = script.data if isinstance(script.data, DataLoader) else None
    if not script.trains:
        model, _, prepared = written.prepare(script.model, loader=loader)
        return written.infer_step(model), script.data if prepared is None else prepared
    optimizer = script.make_optimizer(script.model.parameters())
    model, optimizer, prepared = written.prepare(script.model, optimizer, loader)
    return written.train_step(model, optimizer, script.loss), script.data if prepared is None else prepared


def peer(script: Script, budget: str) -> tuple[Loop, Any]:
    """The loop with the configuration of pytorch-autotune, as its README writes it; and its result.

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
