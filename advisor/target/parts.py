"""The parts of a workload as people return them: told apart by their kinds, in any order and under the usual names."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from advisor.step.batch import tensors_of

# The documented order of a tuple.
ORDER = ("model", "data", "loss", "optimizer")
ALIASES = {
    **dict.fromkeys(("net", "network"), "model"),
    **dict.fromkeys(("batch", "loader", "dataloader", "train_loader", "train_dataloader", "train_dl"), "data"),
    **dict.fromkeys(("loaders", "dataloaders", "dls", "trainloader", "data_loader"), "data"),
    **dict.fromkeys(("criterion", "crit", "loss_fn", "loss_func", "loss_function"), "loss"),
    **dict.fromkeys(("opt", "optim", "opt_func"), "optimizer"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "clip_grad_norm", "gradient_clip_val"), "clip_grad"),
}
# The loader to train with, by its name among several.
_TO_TRAIN_WITH = ("train", "training", "train_loader", "trainloader", "train_dataloader", "train_dl")
# Why parts of a loop beside its steps are left out.
_NO_SCHEDULER = "the learning rate does not change in a trial"
_NO_OTHER_LOADER = "training steps are measured"
_SET_BY_OPTIONS = ("device", "epochs", "num_epochs")


def why_not_used(name: str, part: Any) -> str:
    """The reason why a part of a returned dict is left out, by its kind or name; empty for a part of a workload."""
    if name in _SET_BY_OPTIONS:
        return "the command line sets the device and the time"
    if kind_of(part) == "scheduler" or "sched" in name:
        return _NO_SCHEDULER
    is_loader = isinstance(part, DataLoader) or part is None
    return _NO_OTHER_LOADER if is_loader and name.startswith(("val", "test", "eval")) else ""


def in_order(values: Sequence[Any], notes: list[str]) -> dict[str, Any] | None:
    """The parts of a returned tuple by their names; None where they are more, or others, than a loop has.

    A part that can be one thing only has its name wherever it stands; functions have the names that are left, in the
    documented order. ``notes`` get what is left out.
    """
    parts: dict[str, Any] = {}
    open_ones = []
    for value in values:
        kind = kind_of(value)
        if isinstance(value, torch.amp.GradScaler):
            parts["current"] = current_with(value, notes)
        elif isinstance(value, torch.device):
            notes.append("the device is left out: the command line sets it")
        elif kind == "scheduler":
            notes.append(f"the {type(value).__name__} is left out: {_NO_SCHEDULER}")
        elif kind == "data" and "data" in parts and isinstance(value, DataLoader):
            notes.append(f"the second loader is left out: {_NO_OTHER_LOADER}")
        elif isinstance(value, torch.Tensor) and isinstance(before := parts.get("data"), torch.Tensor | tuple):
            parts["data"] = (*(before if isinstance(before, tuple) else (before,)), value)  # inputs and a target
        elif kind and kind not in parts:
            parts[kind] = value
        elif kind == "model" and "loss" not in parts:  # a module of the person's own that computes it
            parts["loss"] = value
        else:
            open_ones.append(value)
    left = [name for name in ORDER if name not in parts]
    if len(open_ones) > len(left):
        return None
    return {**parts, **dict(zip(left, open_ones, strict=False))}


def current_with(scaler: torch.amp.GradScaler, notes: list[str]) -> dict[str, Any]:
    """The settings that a loop has already where it scales its gradients: one in float16."""
    if not scaler.is_enabled():
        notes.append("the GradScaler is left out: it is disabled")
        return {}
    notes.append("the GradScaler says that the loop runs under autocast in float16: so does the baseline")
    return {"precision.autocast": "float16"}


def kind_of(value: Any) -> str:
    """The kind of a part; empty for a function, and for values of several possible kinds."""
    if isinstance(value, torch.optim.Optimizer) or is_optimizer_class(value) or optimizers_among(value):
        return "optimizer"
    if isinstance(value, LRScheduler) or ("scheduler" in type(value).__name__.lower() and hasattr(value, "step")):
        return "scheduler"
    if isinstance(value, _Loss):
        return "loss"
    if isinstance(value, nn.Module):
        return "model"
    if isinstance(value, tuple | list) and any(isinstance(part, nn.Module) for part in value):
        return ""
    is_batch = isinstance(value, torch.Tensor | Mapping | tuple | list) and any(True for _ in tensors_of(value))
    return "data" if isinstance(value, DataLoader) or is_batch else ""


def is_optimizer_class(value: Any) -> bool:
    """Whether a value is a class of optimizers, such as ``torch.optim.AdamW``."""
    return isinstance(value, type) and issubclass(value, torch.optim.Optimizer)


def optimizers_among(value: Any) -> list[torch.optim.Optimizer]:
    """The optimizers of a list, or of a pair of lists of optimizers and schedulers, as Lightning has them."""
    if not isinstance(value, tuple | list):
        return []
    found = value[0] if value and isinstance(value[0], tuple | list) else value
    return [part for part in found if isinstance(part, torch.optim.Optimizer)]


def attributes_of(value: Any) -> dict[str, Any]:
    """The parts that an object holds under the usual names, such as a dataclass or a trainer; empty without a model.

    A method ``compute_loss`` comes before a loss that the object holds, which it calls.
    """
    held = {ALIASES.get(name, name): part for name, part in getattr(value, "__dict__", {}).items() if part is not None}
    if inspect.isroutine(getattr(type(value), "compute_loss", None)):
        held["loss"] = value.compute_loss
    parts = {name: held[name] for name in (*ORDER, "clip_grad", "step") if name in held}
    if not parts.get("clip_grad", True):  # 0, by which trainers say that they do not clip
        del parts["clip_grad"]
    return parts if isinstance(parts.get("model"), nn.Module) else {}


def loader_to_train_with(data: Any, notes: list[str]) -> Any:
    """The training loader out of several in a dict, a pair, or an object with their names; other data as it is."""
    if isinstance(data, DataLoader | torch.Tensor | nn.Module) or data is None:
        return data
    if isinstance(data, tuple | list):
        if len(data) <= 1 or not all(isinstance(part, DataLoader) for part in data):
            return data
        notes.append(f"the first of the {len(data)} loaders is measured")
        return data[0]
    held = data if isinstance(data, Mapping) else getattr(data, "__dict__", {})
    name = next((name for name in _TO_TRAIN_WITH if isinstance(held.get(name), DataLoader)), None)
    if name is None:
        return data
    notes.append(f"the loader {name!r} is measured, and no other of the {type(data).__name__}")
    return held[name]
