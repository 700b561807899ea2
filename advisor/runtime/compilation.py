"""Compiling what the plan says: the model or its repeated blocks, and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from advisor.plan import StepPlan
from advisor.portable.regions import compile_blocks
from advisor.rebuild import optimizer_with


def compiled(model: nn.Module, plan: StepPlan) -> nn.Module:
    """The compiled model; with the scope ``regional`` the model itself, its blocks compiled in place.

    What is compiled ``with_loss`` is compiled where model and loss meet, in the step: :func:`compiled_call`.
    """
    if plan.freezing:
        from torch._inductor import config

        config.freezing = True
    if plan.compiles_loss:
        return model
    options = _options(plan)
    if plan.compile_scope == "regional":
        compile_blocks(model, **options)
        return model
    # Module.compile() would keep the model's identity, but leaves a bare nn.Sequential uncompiled: Dynamo skips
    # the frames of torch.nn, and only torch.compile(module) wraps them.
    return cast("nn.Module", torch.compile(model, **options))


def compiled_call(call: Callable[..., Any], plan: StepPlan) -> Callable[..., Any]:
    """A function of the step, compiled as the plan says."""
    return torch.compile(call, **_options(plan))


def _options(plan: StepPlan) -> dict[str, Any]:
    dynamic = None if plan.compile_dynamic == "auto" else bool(plan.compile_dynamic)
    return {"mode": plan.compiles_with, "dynamic": dynamic}


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
