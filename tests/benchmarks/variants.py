"""A workload's loop as it was written, and with perf-advisor's settings."""

from pathlib import Path
from typing import Any

import torch
from expert import Loop
from script import Script, loss_of, on, output_of
from torch.utils.data import DataLoader

import advisor


def baseline(script: Script) -> Loop:
    """The loop that everybody writes first. The model is called as in a session, with gradients on."""
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
