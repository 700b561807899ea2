"""The parts of a workload as people return them: told apart by their kinds, in any order and under the usual names."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from advisor.step.batch import tensors_of

# The documented order of a tuple.
ORDER = ("model", "data", "loss", "optimizer")
ALIASES = {
    **dict.fromkeys(("net", "network"), "model"),
    **dict.fromkeys(("batch", "loader", "dataloader", "train_loader", "train_dataloader", "trainloader"), "data"),
    **dict.fromkeys(("criterion", "loss_fn", "loss_function"), "loss"),
    **dict.fromkeys(("opt", "optim"), "optimizer"),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), "clip_grad"),
}


def in_order(values: Sequence[Any], notes: list[str]) -> dict[str, Any] | None:
    """The parts of a returned tuple by name; None if a loop does not have these parts.

    A part that can only be one thing is recognised anywhere in the tuple. The others get the remaining names in the
    documented order. ``notes`` get the parts that are left out.
    """
    parts: dict[str, Any] = {}
    open_ones = []
    for value in without_schedulers({str(place): value for place, value in enumerate(values)}, notes).values():
        kind = kind_of(value)
        if kind and kind not in parts:
            parts[kind] = value
        else:
            open_ones.append(value)
    left = [name for name in ORDER if name not in parts]
    return None if len(open_ones) > len(left) else {**parts, **dict(zip(left, open_ones, strict=False))}


def without_schedulers(parts: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The parts but for learning-rate schedulers, with a note for each."""
    left_out = {
        name: type(value).__name__
        for name, value in parts.items()
        if isinstance(value, LRScheduler) or ("scheduler" in type(value).__name__.lower() and hasattr(value, "step"))
    }
    notes.extend(f"the {kind} is left out: the learning rate does not change in a trial" for kind in left_out.values())
    return {name: value for name, value in parts.items() if name not in left_out}


def kind_of(value: Any) -> str:
    """The kind of a part; empty for a function, and for values of several possible kinds."""
    if isinstance(value, Optimizer) or (isinstance(value, type) and issubclass(value, Optimizer)):
        return "optimizer"
    if isinstance(value, _Loss):
        return "loss"
    if isinstance(value, nn.Module):
        return "model"
    if isinstance(value, tuple | list) and any(isinstance(part, nn.Module) for part in value):
        return ""
    is_batch = isinstance(value, torch.Tensor | Mapping | tuple | list) and any(True for _ in tensors_of(value))
    return "data" if isinstance(value, DataLoader) or is_batch else ""
