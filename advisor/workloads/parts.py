"""A build's result as a workload: parts are told apart by their kinds, in any order and under the usual names."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.records import Mode
from advisor.step.batch import tensors_of
from advisor.step.compile import Models
from advisor.workloads.hubs.contract import Adapted
from advisor.workloads.workload import Workload

# The documented order of a tuple.
_ORDER = ("model", "data", "loss", "optimizer")
_ALIASES = {
    **dict.fromkeys(("net", "network"), "model"),
    **dict.fromkeys(("batch", "loader", "dataloader", "train_loader", "train_dataloader", "trainloader"), "data"),
    **dict.fromkeys(("criterion", "loss_fn", "loss_function"), "loss"),
    **dict.fromkeys(("opt", "optim"), "optimizer"),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), "clip_grad"),
}
_NAMES = ("model", "data", "loss", "optimizer", "mode", "current", "clip_grad", "step", "models", "optimizers")
_SHAPES = "a model, (model, data), (model, data, loss), (model, data, loss, optimizer), a dict of those, or a Workload"
EXAMPLE = "Workload(step=step, models=[...], optimizers=[...], data=loader)"


def workload_of(value: Any, notes: list[str]) -> Adapted:
    """The parts that a build returned. Raises TargetError where they are none, or do not fit together."""
    parts: dict[str, Any] | None = None
    if isinstance(value, Workload):
        parts = {one.name: getattr(value, one.name) for one in fields(value)}
    elif isinstance(value, nn.Module):
        parts = {"model": value}
    elif isinstance(value, Mapping):
        named = _without_schedulers({str(name): part for name, part in value.items()}, notes)
        parts = {_ALIASES.get(name, name): part for name, part in named.items()}
        unknown = [name for name in parts if name not in _NAMES]
        if unknown or not ("model" in parts or "step" in parts):
            problem = f"with the unknown keys {', '.join(unknown)}" if unknown else "without a model"
            usual = f"Its keys may be: {', '.join(_NAMES)}."
            raise TargetError(f"the target returned a dict {problem}.", _for_several(value.values()) or usual)
    elif isinstance(value, tuple | list) and value:
        parts = _in_order(value, notes)
    if not parts:
        raise TargetError(f"the target returned {described(value)}.", _may_return(value))
    return _checked(Adapted(**parts))


def _in_order(values: Sequence[Any], notes: list[str]) -> dict[str, Any] | None:
    """The parts of a returned tuple by name; None if a loop does not have these parts.

    A part that can only be one thing is recognised anywhere in the tuple. The others get the remaining names in the
    documented order. ``notes`` get the parts that are left out.
    """
    parts: dict[str, Any] = {}
    open_ones = []
    for value in _without_schedulers({str(place): value for place, value in enumerate(values)}, notes).values():
        kind = _kind_of(value)
        if kind and kind not in parts:
            parts[kind] = value
        else:
            open_ones.append(value)
    left = [name for name in _ORDER if name not in parts]
    return None if len(open_ones) > len(left) else {**parts, **dict(zip(left, open_ones, strict=False))}


def _without_schedulers(parts: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The parts but for learning-rate schedulers, with a note for each."""
    left_out = {
        name: type(value).__name__
        for name, value in parts.items()
        if isinstance(value, LRScheduler) or ("scheduler" in type(value).__name__.lower() and hasattr(value, "step"))
    }
    notes.extend(f"the {kind} is left out: the learning rate does not change in a trial" for kind in left_out.values())
    return {name: value for name, value in parts.items() if name not in left_out}


def _kind_of(value: Any) -> str:
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


# --- parts that do not fit --------------------------------------------------------------------------------------------


def _checked(workload: Adapted) -> Adapted:
    if workload.step is not None or workload.models is not None or workload.optimizers is not None:
        workload = replace(workload, model=_models_of_step(workload), models=None)
    _check_model(workload.model)
    loss = workload.loss
    if isinstance(loss, type) or (loss is not None and not callable(loss)):
        forms = "Give loss(model, batch), loss(output, target) or loss(output); of a class an instance: Loss(...)."
        raise TargetError(f"the target's loss is {described(loss)}, not a function.", forms)
    if workload.mode not in (None, *(mode.value for mode in Mode)):
        raise TargetError(f"{workload.mode!r} is not a mode.", "Give train or infer.")
    clip = workload.clip_grad
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, int | float) or not clip > 0):
        raise TargetError(f"clip_grad={clip!r} is not a norm to clip gradients to.", "Give a number above 0, or None.")
    return workload


def _models_of_step(workload: Workload) -> nn.Module:
    """The models that a step of one's own works with, as one module. Raises TargetError for what does not fit."""
    models = listed(workload.models) + listed(workload.model)
    has_loss = workload.loss is not None or workload.clip_grad is not None
    problems = {
        "names several models or optimizers, and no step that uses them": workload.step is None,
        "has a step of its own, and a loss or clip_grad, which belong into the step": has_loss,
        "has a step of its own, and no data": workload.data is None,
        "has a step of its own, and none of the models that it works with": not models,
    }
    if problem := next((problem for problem, is_met in problems.items() if is_met), ""):
        raise TargetError(f"the target {problem}.", f"Return {EXAMPLE}, where step(batch) does all that a step does.")
    for model in models:
        _check_model(model)
    return models[0] if len(models) == 1 else Models(models)


def _check_model(model: Any) -> None:
    """Refuse a model that cannot run a step. Add a training mode to a frozen TorchScript model, which has none."""
    if not isinstance(model, nn.Module):
        raise TargetError(f"the target's model is {described(model)}, not an nn.Module.", _may_return(model))
    if isinstance(model, torch.jit.ScriptModule) and not hasattr(model, "training"):
        model.eval()


def _may_return(value: Any) -> str:
    """A hint for a value that is no workload: the forms that a build may return."""
    if isinstance(value, type):
        return f"Return {value.__name__}(...), with its arguments."
    if inspect.isfunction(value) or inspect.ismethod(value):
        return f"Return {_SHAPES}. A step of your own, a function of a batch, is {EXAMPLE}."
    return (_for_several(value) if isinstance(value, tuple | list) else "") or f"Return {_SHAPES}."


def _for_several(parts: Iterable[Any]) -> str:
    """A hint for a value with several models; empty for one with fewer."""
    several = sum(isinstance(part, nn.Module) and not isinstance(part, _Loss) for part in parts) > 1
    return f"Several models need a step of your own, a function of a batch: return {EXAMPLE}." if several else ""


def described(value: Any) -> str:
    """A value of the user's as an error names it, such as ``a tuple of 2``."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def listed(value: Any) -> list[Any]:
    """The elements of a list, a tuple or a mapping; any other object as a list with one element, none for None."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
