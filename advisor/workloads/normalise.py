"""From any of the shapes that ``build()`` may return to a ``Loop``."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from advisor.errors import RefusedError, TargetError
from advisor.records import Mode, TargetSpec
from advisor.step import loss as losses
from advisor.step.batch import tensors_of
from advisor.step.compile import as_written, compiled_as
from advisor.step.loader import rebuild
from advisor.step.optimizer import Together, needs_closure
from advisor.workloads.adapters import interpreted, with_samples
from advisor.workloads.batches import batch_size_of, batches_in_data, resize_batch
from advisor.workloads.guess import LARGEST_BATCH
from advisor.workloads.hubs.contract import Adapted
from advisor.workloads.loop import Loop, has_target
from advisor.workloads.parts import EXAMPLE, described, listed, workload_of
from advisor.workloads.workload import Workload

_DEFAULT_LEARNING_RATE = 1e-3
# Hint for a first step of the user's own that fails.
_HINT = "Check what step(batch) does at the lines shown; the batch is on the models' device."


def normalise(value: Any, spec: TargetSpec) -> Loop:
    """The loop that a build's return value describes, under the command line's options. Raises TargetError."""
    notes: list[str] = []
    workload = _as_written(workload_of(interpreted(value, spec), notes), notes)
    if workload.data is None:
        workload = with_samples(workload, spec)
    notes.extend(workload.notes)
    data, make_batch = _data(workload, batches_in_data(workload.data, notes), spec)
    mode = _mode(workload, data, spec)
    if mode is Mode.TRAIN and workload.step is None and workload.loss is None and not workload.notes:
        notes.append("no loss was given: it is the model's own if its output has one, else chosen by the targets")
    loop = Loop(
        model=workload.model,
        data=data,
        loss=workload.loss,
        optimizer=None,
        mode=mode,
        batch_size=(data.batch_size if isinstance(data, DataLoader) else batch_size_of(data)) or workload.samples,
        make_batch=make_batch,
        current=dict(workload.current),
        notes=notes,
        clip_norm=None if workload.clip_grad is None else float(workload.clip_grad),
        hint=_HINT if workload.step is not None else workload.hint,
        step=workload.step,
        trainer=workload.trainer,
        places=workload.places,
        whole_round=workload.whole_round,
    )
    if loop.step is not None:
        found = [_checked_optimizer(one) for one in (*listed(workload.optimizers), *listed(workload.optimizer))]
        loop.optimizer = found[0] if len(found) == 1 else Together(found) if found else None
        loop.loss_text = "inside your own step"
        return loop
    if mode is Mode.TRAIN:
        loop.optimizer = _optimizer(workload, notes)
    unnamed = "none" if mode is Mode.INFER else "chosen by the outputs and targets"
    loop.loss_text = unnamed if loop.loss is None else losses.describe_loss(loop.loss)
    return loop


def _as_written(workload: Adapted, notes: list[str]) -> Adapted:
    """The original of a model that was compiled as a whole: compiling is now a setting, and is measured off, too."""
    compiled = compiled_as(workload.model)
    if compiled is None:
        notes.append("the model is compiled in a way that no setting says (its backend or its options): it is kept so")
    if not compiled:
        return workload
    return replace(workload, model=as_written(workload.model), current={**compiled, **workload.current})


def _data(workload: Adapted, data: Any, spec: TargetSpec) -> tuple[DataLoader[Any] | Any, Callable[[int], Any] | None]:
    # A batch may be callable, as PyTorch Geometric's ``Data`` is: it can be moved.
    is_batch = hasattr(data, "to") and not isinstance(data, nn.Module) and next(tensors_of(data), None) is not None
    if callable(data) and not is_batch:
        if inspect.isfunction(data) and not losses.is_callable_with(inspect.signature(data), 1):
            raise TargetError(
                f"the target's data function {data.__name__} takes no batch size.",
                "Write it as `def batch(batch_size):`; or give a loader or a list of batches.",
            )
        usual = workload.usual_size or LARGEST_BATCH
        size = spec.batch_size or (spec.input_shape[0] if spec.input_shape else usual)
        made, make = data(size), cast("Callable[[int], Any]", data)
        if not isinstance(made, DataLoader):
            _check_batch(made, "the result of the target's data function")
            return made, make
        data = made
    if isinstance(data, DataLoader):
        if spec.batch_size in (None, data.batch_size):
            return data, None
        try:
            return rebuild(data, batch_size=spec.batch_size), None
        except RefusedError as error:
            raise TargetError(f"--batch-size cannot be applied: {error}", "Leave --batch-size out.") from error
    _check_batch(data, "the target's data")
    if not spec.batch_size or spec.batch_size == batch_size_of(data):
        return data, None
    try:
        return resize_batch(data, spec.batch_size), None
    except ValueError as error:
        raise TargetError(
            f"--batch-size cannot be applied: {error}.",
            "Leave --batch-size out, or return a function that makes a batch of a size.",
        ) from error


def _check_batch(batch: Any, what: str) -> None:
    """Raise TargetError for what is no batch: a dataset, several loaders, or nothing with a tensor in it."""
    has_tensors = next(tensors_of(batch), None) is not None
    if not has_tensors or isinstance(batch, Dataset) or any(isinstance(one, DataLoader) for one in tree_leaves(batch)):
        raise TargetError(
            f"{what} is {described(batch)}, which is no batch of tensors.",
            "Give one DataLoader, as DataLoader(dataset, batch_size=...); one batch (a tensor, a tuple, a dict), with "
            "torch.from_numpy(array) for arrays; or a function batch_size -> batch.",
        )


def _mode(workload: Workload, data: Any, spec: TargetSpec) -> Mode:
    """The command line's, else the workload's, else train when there is something to train against."""
    if workload.step is not None:
        mode = Mode(workload.mode) if workload.mode else Mode.TRAIN
        if spec.mode not in (None, mode):
            raise TargetError(
                f"--mode {spec.mode} does not fit: the target's own step is for {mode.value}.",
                "Leave --mode out, or return another step with its mode.",
            )
        return mode
    if spec.mode is not None:
        return spec.mode
    if workload.mode is not None:
        return Mode(workload.mode)
    if workload.loss is not None or workload.optimizer is not None:
        return Mode.TRAIN
    if not workload.model.training:
        return Mode.INFER
    # A loader's batches are (inputs, target) far more often than not; one batch can be looked at.
    carries_target = isinstance(data, DataLoader) or has_target(data, workload.model)
    return Mode.TRAIN if carries_target and _trainable(workload.model) else Mode.INFER


def _optimizer(workload: Workload, notes: list[str]) -> Any:
    parameters = _trainable(workload.model)
    if not parameters:
        raise TargetError(
            f"{type(workload.model).__name__} has no parameter that requires a gradient, so it cannot be trained.",
            "Give --mode infer, or set requires_grad on the parameters to train.",
        )
    of_loss = _trainable(workload.loss) if isinstance(workload.loss, nn.Module) else []  # such as centres of classes
    both = list(dict.fromkeys(parameters + of_loss))
    given = workload.optimizer
    if given is None:
        notes.append(f"SGD with momentum as the optimizer, learning rate {_DEFAULT_LEARNING_RATE:g}")
        return torch.optim.SGD(both, lr=_DEFAULT_LEARNING_RATE, momentum=0.9)
    is_made = isinstance(given, torch.optim.Optimizer) or not callable(given)
    made = _checked_optimizer(given if is_made else given(both))
    if needs_closure(made):
        raise TargetError(
            f"{type(made).__name__} calls the loss itself, several times a step (a closure).",
            f"Write the step, with optimizer.step(closure) in it, as a function of a batch: return {EXAMPLE}.",
        )
    updated = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    if updated.isdisjoint(map(id, parameters)):
        notes.append("the optimizer holds no parameter of the model: its steps do not train this model")
    return made


def _checked_optimizer(made: Any) -> torch.optim.Optimizer:
    if not isinstance(made, torch.optim.Optimizer):
        raise TargetError(
            f"the target's optimizer is {described(made)}.",
            "Give a torch.optim.Optimizer, or beside a loss a function that makes one from the parameters.",
        )
    return made


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
