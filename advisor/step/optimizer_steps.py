"""Optimizers as compiled and captured steps need them: no host in their step, learning rates in tensors."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach

from advisor.step.optimizer_options import TensorRates, mark_stepped, on_device, set_options, torch_class

# Their loop over the parameters hands the rate to each kernel as a number, which asks the device for it.
READ_RATES_IN_LOOPS = (torch.optim.RMSprop, torch.optim.Adadelta)


def make_capturable(optimizer: Any, device: torch.device) -> None:
    """Let an optimizer count its steps on the device, so that its step needs no host; where its class knows how."""
    if device.type == "cuda" and "capturable" in optimizer.defaults and torch_class(optimizer) is not None:
        set_options(optimizer, capturable=True)


def updates_without_host(optimizer: Any) -> bool:
    """Whether the optimizer's step can be captured: it counts on the device and reads its learning rate there.

    The hooks of a step are functions on the host, which a graph would leave out.
    """
    kind = torch_class(optimizer)
    if kind is None or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if kind in READ_RATES_IN_LOOPS and any(map(runs_in_loop, optimizer.param_groups)):
        return False
    return all(map(on_device, optimizer.param_groups))


def runs_in_loop(group: dict[str, Any]) -> bool:
    """Whether a group's parameters are updated one after the other."""
    if group["foreach"] is not None:
        return not group["foreach"]
    return not _default_to_fused_or_foreach(group["params"], group["differentiable"])[1]


def check_compilable(optimizer: Any) -> None:
    """Raise ValueError for an optimizer whose step is not one of PyTorch's: the compiler may fail in it, or skip it."""
    if optimizer is not None and torch_class(optimizer) is None:
        name = type(optimizer).__name__
        raise ValueError(f"{name} has a step of its own, and only the steps of torch.optim are known to compile")


def compiled_step(optimizer: Any, device: torch.device) -> Callable[[], None]:
    """The optimizer's step, compiled. PyTorch tutorials, Compiling the optimizer with torch.compile.

    A learning rate that is a number would be compiled in, and again when it changes. Of the classes that cannot be
    capturable, only SGD takes a tensor; the others keep a number, and a schedule makes them compile again.
    """
    takes_tensors = "capturable" in optimizer.defaults or torch_class(optimizer) is torch.optim.SGD
    rates = TensorRates(optimizer, device) if takes_tensors else None

    @torch.compile
    def step() -> None:
        optimizer.step()

    def run() -> None:
        with rates.inside() if rates is not None else nullcontext():
            step()
        mark_stepped(optimizer)

    return run
