"""A step of the target's own: its models as one module, its optimizers, its mode, and checks that they fit together."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.step.compile import Models
from advisor.step.optimizer import Together
from advisor.workloads.workload import Workload

#: Hint for a first step that fails.
HINT = "Check what step(batch) does at the lines shown; the batch is on the models' device."
EXAMPLE = "Workload(step=step, models=[...], optimizers=[...], data=loader)"


def with_own_step(workload: Workload) -> Workload:
    """The workload with its models as one module. Raises TargetError for what does not fit together."""
    if workload.step is None:
        raise TargetError(
            "the target names several models or optimizers, and no step that uses them.",
            f"Write the step as a function of a batch: {EXAMPLE}.",
        )
    _check_step(workload)
    models = _several(workload.models) + ([workload.model] if workload.model is not None else [])
    if not models:
        raise TargetError("the target's step comes without the models that it works with.", f"Return {EXAMPLE}.")
    for model in models:
        if not isinstance(model, nn.Module):
            raise TargetError(f"{type(model).__name__} in models is not an nn.Module.", f"Return {EXAMPLE}.")
    return replace(workload, model=models[0] if len(models) == 1 else Models(models), models=None)


def _check_step(workload: Workload) -> None:
    if workload.loss is not None or workload.clip_grad is not None:
        given = "a loss" if workload.loss is not None else "clip_grad"
        raise TargetError(f"the target has a step of its own and {given}.", f"Leave {given} to the step.")
    if workload.data is None:
        raise TargetError(
            "the target has a step of its own and no data.",
            "Give data: a loader, any iterable of batches, or one batch; step(batch) is called with each.",
        )


def mode_of_step(workload: Workload, spec: TargetSpec) -> Mode:
    """Training, unless the workload says otherwise. Raises TargetError where the command line says the opposite."""
    mode = Mode(workload.mode) if workload.mode else Mode.TRAIN
    if spec.mode not in (None, mode):
        raise TargetError(
            f"--mode {spec.mode} does not fit: the target's own step is for {mode.value}.",
            "Leave --mode out, or return another step with its mode.",
        )
    return mode


def optimizers_of(workload: Workload) -> Any:
    """The optimizers as recipes see them: none, one, or several together. Raises TargetError for something else."""
    found = _several(workload.optimizers) + ([workload.optimizer] if workload.optimizer is not None else [])
    for optimizer in found:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TargetError(
                f"{type(optimizer).__name__} in optimizers is not a torch.optim.Optimizer.",
                "Give the instances that the step uses.",
            )
    return None if not found else found[0] if len(found) == 1 else Together(found)


def _several(value: Any) -> list[Any]:
    """The elements of a list, a tuple or a mapping; any other object as a list with one element."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]
