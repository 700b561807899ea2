"""Lightning: a LightningModule's own training step and optimizers, with its loader or its DataModule's.

The module is attached to a Trainer, as it is while Lightning fits it, since its methods ask that for the number of
steps, its optimizers or its DataModule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.step.loss import is_callable_with
from advisor.workloads.hubs.contract import Adapted, Adapter

_PAIR = 2
_TRAINER = "lightning"
# The hooks that a batch goes through before ``training_step``, in their order.
_OF_A_BATCH = ("on_before_batch_transfer", "on_after_batch_transfer")
_EPOCHS = 1000  # of a Trainer that is told no number
_AUTOCAST = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


class Lightning(Adapter):
    """LightningModules, and pairs of one and its DataModule or DataLoader."""

    order = 40
    package = "lightning"

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        pytorch: Any = self.imported().pytorch if self.package == "lightning" else self.imported()
        given = _given(value, pytorch)
        return None if given is None else _workload(given, pytorch, spec)


class PytorchLightning(Lightning):
    """The same under the library's older name."""

    order = 50
    package = "pytorch_lightning"


class _Given(NamedTuple):
    """The Lightning objects that a target returned: the module, its DataModule or loader, and its Trainer."""

    module: Any
    data: Any
    trainer: Any
    notes: list[str]


def _given(value: Any, pytorch: Any) -> _Given | None:
    """The module, its Trainer and its data, in any order; None if there is no module, or any other object."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else [value]
    own = (pytorch.LightningModule, pytorch.LightningDataModule)
    parts = [part() if isinstance(part, type) and issubclass(part, own) else part for part in values]
    modules = [part for part in parts if isinstance(part, pytorch.LightningModule)]
    trainers = [part for part in parts if isinstance(part, pytorch.Trainer)]
    loaders = [part for part in parts if isinstance(part, pytorch.LightningDataModule | DataLoader)]
    if len(modules) != 1 or len(trainers) > 1 or len(modules) + len(loaders) + len(trainers) != len(parts):
        return None
    notes = ["the second loader is left out: training steps are measured"] if len(loaders) > 1 else []
    return _Given(modules[0], next(iter(loaders), None), next(iter(trainers), None), notes)


def _workload(given: _Given, pytorch: Any, spec: TargetSpec) -> Any:
    module, data = given.module, given.data
    for parameter, learns in module._param_requires_grad_state.items():  # left between toggle and untoggle_optimizer
        parameter.requires_grad = learns
    trainer = _attached(given, pytorch)
    loader = _loader(given, pytorch)
    if loader is None and (module.example_input_array is not None or spec.input_shape):
        return module
    if loader is None:
        raise TargetError(
            f"{type(module).__name__} has no train_dataloader.",
            "Return (module, datamodule) from a build(), or (module, loader, loss, optimizer); --input SHAPE measures "
            "inference alone.",
        )

    if spec.mode is Mode.INFER:
        return Adapted(model=module, data=loader, mode=Mode.INFER.value, notes=given.notes)
    trainer.fit_loop._data_source.instance = loader
    trainer.strategy.setup_optimizers(trainer)
    # Of a LightningOptimizer its own.
    optimizers = [getattr(one, "optimizer", one) for one in trainer.strategy.optimizers]
    if not any(one.param_groups for one in optimizers):  # a stand-in without parameters where there is none
        raise TargetError(
            f"{type(module).__name__}.configure_optimizers returns no optimizer.",
            "Return one, or return (module, loader, loss, optimizer) from a build() of your own.",
        )
    training_step = _training_step(module, data, pytorch)
    notes = [*_told_of(module, given.trainer), *given.notes]
    common: dict[str, Any] = {"data": loader, "mode": Mode.TRAIN.value, "notes": notes, "trainer": _TRAINER}
    if not module.automatic_optimization:
        return Adapted(step=_ByHand(module, training_step), models=[module], optimizers=optimizers, **common)
    autocast = _AUTOCAST.get(str(getattr(given.trainer, "precision", "")))
    clip = getattr(given.trainer, "gradient_clip_val", None) if _clips_norm(given.trainer) else None
    return Adapted(
        model=module,
        loss=training_step,
        optimizer=optimizers[0],
        clip_grad=clip or None,
        current={"precision.autocast": autocast} if autocast else {},
        **common,
    )


def _attached(given: _Given, pytorch: Any) -> Any:
    """The given Trainer, or one with default arguments, with the module and its DataModule attached."""
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = given.trainer or pytorch.Trainer(
        accelerator="cpu", devices=1, logger=pytorch.loggers.logger.DummyLogger(), **quiet
    )
    if trainer.max_epochs is None:
        trainer.fit_loop.max_epochs = _EPOCHS
    trainer.barebones = True  # log() does nothing: it needs the results that a running fit collects
    trainer.training = True
    trainer.strategy.connect(given.module)
    data = given.data if isinstance(given.data, pytorch.LightningDataModule) else None
    trainer._data_connector.attach_data(given.module, datamodule=data)
    return trainer


class _ByHand:
    """A step of a module that updates its weights itself. Returns the sum of what it went backward from."""

    def __init__(self, module: Any, training_step: Callable[[Any, Any], Any]) -> None:
        self._module = module
        self._training_step = training_step
        self._losses: list[torch.Tensor] = []
        self._backward = module.manual_backward
        module.manual_backward = self._noted_backward

    def _noted_backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self._losses.append(loss.detach())
        self._backward(loss, *args, **kwargs)

    def __call__(self, batch: Any) -> Any:
        """Run ``training_step`` on a batch."""
        self._losses.clear()
        result = self._training_step(self._module, batch)
        return sum(self._losses) if self._losses else result


def _told_of(module: Any, trainer: Any) -> list[str]:
    """Notes on the measured parts of the module and its Trainer, and the others."""
    name = type(module).__name__
    if not module.automatic_optimization:
        notes = [f"{name}'s own training_step, which updates the weights of {name} itself; callbacks are left out"]
    else:
        notes = [f"{name}'s own training_step and optimizer; callbacks, schedules and its other hooks are left out"]
    if (steps := getattr(trainer, "accumulate_grad_batches", 1)) > 1:
        notes.append(f"each step is one of the {steps} that the Trainer accumulates")
    if getattr(trainer, "gradient_clip_val", None) and not _clips_norm(trainer):
        notes.append("the Trainer clips gradients by value, which is left out")
    return notes


def _training_step(module: Any, data: Any, pytorch: Any) -> Any:
    """The loss of a batch: ``training_step`` after the DataModule's hooks of a batch, else the module's."""
    takes_number = is_callable_with(inspect.signature(module.training_step), _PAIR)
    owned = data if isinstance(data, pytorch.LightningDataModule) else None
    of_data = {hook for hook in _OF_A_BATCH if pytorch.utilities.model_helpers.is_overridden(hook, owned)}

    def training_step(model: Any, batch: Any) -> Any:
        for hook in _OF_A_BATCH:
            batch = getattr(data if hook in of_data else model, hook)(batch, 0)
        return model.training_step(batch, 0) if takes_number else model.training_step(batch)

    return training_step


def _clips_norm(trainer: Any) -> bool:
    return str(getattr(trainer, "gradient_clip_algorithm", None) or "norm").rpartition(".")[2].lower() == "norm"


def _loader(given: _Given, pytorch: Any) -> Any:
    """The training loader: what was given, the DataModule's, else the module's own; None where there is none."""
    module, data = given.module, given.data
    loader, named = data, "the loader"
    if data is None or isinstance(data, pytorch.LightningDataModule):
        defines = pytorch.utilities.model_helpers.is_overridden
        owner = next((owner for owner in (data, module) if defines("train_dataloader", owner)), None)
        if owner is None:
            return None
        owner.prepare_data()
        owner.setup("fit")
        loader, named = owner.train_dataloader(), f"{type(owner).__name__}.train_dataloader"
        if owner is data:
            module.setup("fit")
    if not isinstance(loader, DataLoader):
        raise TargetError(
            f"{named} returns {type(loader).__name__}, not a DataLoader.",
            "Return (module, loader, loss, optimizer) from a build(), with one DataLoader.",
        )
    return loader
