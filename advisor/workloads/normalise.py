"""Turn any form that ``build()`` may return into a ``Loop``. Parts are recognised by their types and usual names."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from advisor.errors import RefusedError, TargetError
from advisor.records import Mode, TargetSpec
from advisor.step import loss as losses
from advisor.step.batch import tensors_of
from advisor.step.compile import Models, as_written, compiled_as
from advisor.step.loader import rebuild
from advisor.step.optimizer import Together, needs_closure
from advisor.workloads.guess import LARGEST_BATCH, with_samples
from advisor.workloads.hubs.contract import interpreted
from advisor.workloads.loop import Loop, batch_size_of, batches_in_data, has_target, resize_batch
from advisor.workloads.workload import Workload

_ORDER = ("model", "data", "loss", "optimizer")  # the documented order of a tuple
_ALIASES = {
    **dict.fromkeys(("net", "network"), "model"),
    **dict.fromkeys(("batch", "loader", "dataloader", "train_loader", "train_dataloader", "trainloader"), "data"),
    **dict.fromkeys(("criterion", "loss_fn", "loss_function"), "loss"),
    **dict.fromkeys(("opt", "optim"), "optimizer"),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), "clip_grad"),
}
_NAMES = ("model", "data", "loss", "optimizer", "mode", "current", "clip_grad", "step", "models", "optimizers")
_SHAPES = "a model, (model, data), (model, data, loss), (model, data, loss, optimizer), a dict of those, or a Workload"
_EXAMPLE = "Workload(step=step, models=[...], optimizers=[...], data=loader)"
_DEFAULT_LEARNING_RATE = 1e-3
# The hint if the first call of the user's own step fails.
_HINT = "Check the lines of step(batch) that are shown. The batch is on the models' device."


def normalise(value: Any, spec: TargetSpec) -> Loop:
    """Turn a build's return value into a loop, with the command line's options. Raises TargetError."""
    notes: list[str] = []
    loop = _parts_of(interpreted(value, spec), notes)
    compiled = compiled_as(loop.model)  # compiling becomes a setting, so that it is also measured off
    if compiled is None:
        notes.append("the model stays compiled: no setting matches its compile backend or options")
    elif compiled:
        loop.model, loop.current = as_written(loop.model), {**compiled, **loop.current}
    if loop.data is None:
        loop = with_samples(loop, spec)
    notes.extend(loop.notes)
    loop.data, loop.make_batch = _data(loop, batches_in_data(loop.data, notes), spec)
    loop.mode = _mode(loop, spec)
    if loop.mode is Mode.TRAIN and loop.step is None and loop.loss is None and not loop.notes:
        notes.append("no loss was given: the model's own is used if its output has one, else one that fits the targets")
    loop.notes = notes
    size = loop.data.batch_size if isinstance(loop.data, DataLoader) else batch_size_of(loop.data)
    loop.batch_size = size or loop.samples
    if loop.step is not None:
        found = [_checked_optimizer(one) for one in (*_listed(loop.optimizers), *_listed(loop.optimizer))]
        loop.optimizer = found[0] if len(found) == 1 else Together(found) if found else None
        loop.hint, loop.loss_text = _HINT, "inside your own step"
        return loop
    loop.optimizer = _optimizer(loop, notes) if loop.mode is Mode.TRAIN else None
    unnamed = "none" if loop.mode is Mode.INFER else "chosen by the outputs and targets"
    loop.loss_text = unnamed if loop.loss is None else losses.describe_loss(loop.loss)
    return loop


def _data(workload: Loop, data: Any, spec: TargetSpec) -> tuple[DataLoader[Any] | Any, Callable[[int], Any] | None]:
    # Some batches are callable (PyTorch Geometric's ``Data``). They have a method ``to``, which functions lack.
    is_batch = hasattr(data, "to") and not isinstance(data, nn.Module) and next(tensors_of(data), None) is not None
    if callable(data) and not is_batch:
        size = spec.batch_size or (spec.input_shape[0] if spec.input_shape else workload.usual_size or LARGEST_BATCH)
        made: Any = data(size)
        if not isinstance(made, DataLoader):
            _check_batch(made, "the result of the target's data function")
            return made, data
        data = made
    is_loader, wanted = isinstance(data, DataLoader), spec.batch_size
    if not is_loader:
        _check_batch(data, "the target's data")
    if wanted in (None, data.batch_size if is_loader else batch_size_of(data)):
        return data, None
    try:
        return rebuild(data, batch_size=wanted) if is_loader else resize_batch(data, wanted), None
    except (RefusedError, ValueError) as error:
        raise TargetError(
            f"--batch-size cannot be applied: {str(error).rstrip('.')}.",
            "Leave --batch-size out, or return a function batch_size -> batch as the data.",
        ) from error


def _check_batch(batch: Any, what: str) -> None:
    """Raise TargetError for an object that is not a batch: a dataset, several loaders, or no tensors."""
    has_tensors = next(tensors_of(batch), None) is not None
    if not has_tensors or isinstance(batch, Dataset) or any(isinstance(one, DataLoader) for one in tree_leaves(batch)):
        raise TargetError(
            f"{what} is {_described(batch)}, which is not a batch of tensors.",
            "Give one DataLoader(dataset, batch_size=...), or one batch (a tensor, a tuple, a dict), or a function "
            "batch_size -> batch. Convert arrays by torch.from_numpy(array).",
        )


def _mode(workload: Workload, spec: TargetSpec) -> Mode:
    """The mode of the command line, else of the workload, else train if there is a loss, an optimizer or a target."""
    own_step, said = workload.step is not None, workload.mode or Mode.TRAIN
    if own_step and spec.mode not in (None, said):
        raise TargetError(
            f"--mode {spec.mode} does not fit: the target's own step has the mode {said}.",
            f"Leave --mode out, or return a step for {spec.mode} and set its mode.",
        )
    if spec.mode or workload.mode or own_step:
        return Mode(spec.mode or said)
    if workload.loss is not None or workload.optimizer is not None:
        return Mode.TRAIN
    if not workload.model.training:
        return Mode.INFER
    # A loader's batches usually are (inputs, target), so no batch is read for this. A single batch can be inspected.
    carries_target = isinstance(workload.data, DataLoader) or has_target(workload.data, workload.model)
    return Mode.TRAIN if carries_target and _trainable(workload.model) else Mode.INFER


def _optimizer(workload: Workload, notes: list[str]) -> Any:
    parameters = _trainable(workload.model)
    if not parameters:
        raise TargetError(
            f"{type(workload.model).__name__} has no parameter that requires a gradient, so it cannot be trained.",
            "Give --mode infer, or set requires_grad of the parameters to train.",
        )
    of_loss = _trainable(workload.loss) if isinstance(workload.loss, nn.Module) else []  # it may learn class centres
    both = list(dict.fromkeys(parameters + of_loss))
    given = workload.optimizer
    if given is None:
        notes.append(f"SGD with momentum as the optimizer, learning rate {_DEFAULT_LEARNING_RATE:g}")
        return torch.optim.SGD(both, lr=_DEFAULT_LEARNING_RATE, momentum=0.9)
    made = _checked_optimizer(given(both) if callable(given) else given)
    if needs_closure(made):
        raise TargetError(
            f"{type(made).__name__} calls the loss itself, several times in each step (a closure).",
            f"Write a function step(batch) that calls optimizer.step(closure), and return {_EXAMPLE}.",
        )
    if {id(parameter) for group in made.param_groups for parameter in group["params"]}.isdisjoint(map(id, parameters)):
        notes.append("the optimizer holds no parameter of the model: its steps do not train this model")
    return made


def _checked_optimizer(made: Any) -> Optimizer:
    if not isinstance(made, Optimizer):
        raise TargetError(
            f"the target's optimizer is {_described(made)}.",
            "Give a torch.optim.Optimizer, or a function that makes one from the parameters.",
        )
    return made


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _parts_of(value: Any, notes: list[str]) -> Loop:
    """The parts that a build returned. Raises TargetError if they are not a workload, or do not fit together."""
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
        raise TargetError(f"the target returned {_described(value)}.", _may_return(value))
    return _checked(Loop(**parts))


def _in_order(values: Sequence[Any], notes: list[str]) -> dict[str, Any] | None:
    """The parts of a returned tuple by name; None if the tuple has more parts than a loop.

    A part whose type shows its role is recognised anywhere in the tuple. The other parts get the remaining names in
    the documented order. ``notes`` gets a note for each part that is left out.
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
    """Remove learning-rate schedulers from the parts, and add a note for each scheduler."""
    left_out = {
        name: type(value).__name__
        for name, value in parts.items()
        if isinstance(value, LRScheduler) or ("scheduler" in type(value).__name__.lower() and hasattr(value, "step"))
    }
    notes.extend(f"the {kind} is left out: the learning rate does not change in a trial" for kind in left_out.values())
    return {name: value for name, value in parts.items() if name not in left_out}


def _kind_of(value: Any) -> str:
    """The role of a part by its type; empty if the type does not show it (a function, for example)."""
    if isinstance(value, Optimizer) or (isinstance(value, type) and issubclass(value, Optimizer)):
        return "optimizer"
    if isinstance(value, _Loss):
        return "loss"
    if isinstance(value, nn.Module):
        return "model"
    is_batch = isinstance(value, torch.Tensor | Mapping | tuple | list) and any(True for _ in tensors_of(value))
    return "data" if isinstance(value, DataLoader) or is_batch else ""


def _checked(workload: Loop) -> Loop:
    if workload.step is not None or workload.models is not None or workload.optimizers is not None:
        workload = replace(workload, model=_models_of_step(workload), models=None)
    _check_model(workload.model)
    loss = workload.loss
    if isinstance(loss, type) or (loss is not None and not callable(loss)):
        forms = "Give loss(model, batch), loss(output, target) or loss(output). Make an instance of a class: Loss(...)."
        raise TargetError(f"the target's loss is {_described(loss)}, not a function.", forms)
    if workload.mode not in (None, *Mode):
        raise TargetError(f"{workload.mode!r} is not a mode.", "Give train or infer.")
    return workload


def _models_of_step(workload: Workload) -> nn.Module:
    """Return the models of the user's own step as one module. Raises TargetError if the parts do not fit together."""
    models = _listed(workload.models) + _listed(workload.model)
    has_loss = workload.loss is not None or workload.clip_grad is not None
    problems = {
        "returns models or optimizers, but no step that uses them": workload.step is None,
        "returns a step, and also a loss or clip_grad, which belong into the step": has_loss,
        "returns a step, but no data": workload.data is None,
        "returns a step, but none of its models": not models,
    }
    if problem := next((problem for problem, is_met in problems.items() if is_met), ""):
        raise TargetError(f"the target {problem}.", f"Return {_EXAMPLE}. step(batch) must do the whole step.")
    for model in models:
        _check_model(model)
    return models[0] if len(models) == 1 else Models(models)


def _check_model(model: Any) -> None:
    """Raise TargetError for a model that is not a module. Give a frozen TorchScript model a training mode."""
    if not isinstance(model, nn.Module):
        raise TargetError(f"the target's model is {_described(model)}, not an nn.Module.", _may_return(model))
    if isinstance(model, torch.jit.ScriptModule) and not hasattr(model, "training"):
        model.eval()


def _may_return(value: Any) -> str:
    """A hint for a value that is no workload: the forms that a build may return."""
    if isinstance(value, type):
        return f"Return {value.__name__}(...), with its arguments."
    if inspect.isfunction(value) or inspect.ismethod(value):
        return f"Return {_SHAPES}. For a step of your own, a function of a batch, return {_EXAMPLE}."
    return (_for_several(value) if isinstance(value, tuple | list) else "") or f"Return {_SHAPES}."


def _for_several(parts: Iterable[Any]) -> str:
    """The hint for a value that holds several models; empty if it holds one or none."""
    several = sum(isinstance(part, nn.Module) and not isinstance(part, _Loss) for part in parts) > 1
    return f"Several models need a step of your own, a function of a batch: return {_EXAMPLE}." if several else ""


def _described(value: Any) -> str:
    """The words for a user's value in an error message, for example ``a tuple of 2``."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _listed(value: Any) -> list[Any]:
    """The elements of a list, a tuple or a mapping; [] for None; a list of one element for any other object."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
