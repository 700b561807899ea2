"""Optimizers as compiled and captured steps need them: no host in their step, learning rates in tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor.rebuild import optimizer_implementation, optimizer_with


def compiled_step(optimizer: Any) -> Callable[[], Any]:
    """The optimizer's step, compiled. PyTorch tutorials, Compiling the optimizer with torch.compile."""

    def step() -> None:
        optimizer.step()

    return torch.compile(step)


def with_tensor_rates(optimizer: Any, device: torch.device) -> Any:
    """The optimizer with what changes between steps in tensors: a number would be compiled in, and again when changed.

    On a GPU the step counts go to the device too, where the optimizer's class knows how. Of the classes that do not,
    only SGD takes its learning rate as a tensor; the others keep a number, and a schedule makes them compile again.
    """
    capturable = "capturable" in optimizer.defaults
    if capturable and device.type == "cuda":
        optimizer = optimizer_with(optimizer, capturable=True)
    if capturable or type(optimizer) is torch.optim.SGD:
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] = torch.tensor(float(group["lr"]), device=device)
    return optimizer


def capturable(optimizer: Any, device: torch.device) -> Any:
    """The optimizer in a form whose step needs no host: on-device step counts, learning rates in tensors."""
    if "capturable" in optimizer.defaults:
        changed = optimizer_with(optimizer, capturable=True)
    elif optimizer_implementation(optimizer) == "fused":
        changed = optimizer
    else:
        return optimizer
    for group in changed.param_groups:
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    return changed


def updates_without_host(optimizer: Any) -> bool:
    """Whether every hyper-parameter that schedules change is a tensor that a captured step reads anew."""
    return all(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups)
