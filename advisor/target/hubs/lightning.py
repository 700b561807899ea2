"""Lightning: a LightningModule's own training step and optimizers, with its loader or its DataModule's.

The module is attached to a Trainer, as it is while Lightning fits it, since its methods ask that for the number of
steps, its optimizers or its DataModule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.step.loss import is_callable_with
from advisor.target.hubs.contract import Adapted, Adapter

_PAIR = 2
_TRAINER = "lightning"
# The hooks that a batch goes through before ``training_step``, in their order.
_OF_A_BATCH = ("on_before_batch_transfer", "on_after_batch_transfer")
# The hooks of a module around its training step, which a step without Lightning does not call.
_AROUND_A_STEP = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
    "on_train_batch_end",
)
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


@dataclass(slots=True)
class _Given:
    """The Lightning objects that a target returned: the module, its DataModule or loader, and its Trainer."""

    module: Any
    data: Any = None
    trainer: Any = None
    notes: list[str] = field(default_factory=list)


def _given(value: Any, pytorch: Any) -> _Given | None:
    """The module and its Trainer and data, in any order; None where there is no module, or another thing beside it."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else [value]
    own = (pytorch.LightningModule, pytorch.LightningDataModule)
    parts = [_instance(part) if isinstance(part, type) and issubclass(part, own) else part for part in values]
    modules = [part for part in parts if isinstance(part, pytorch.LightningModule)]
    trainers = [part for part in parts if isinstance(part, pytorch.Trainer)]
    combined = pytorch.utilities.CombinedLoader
    kinds = pytorch.LightningDataModule | DataLoader | combined
    loaders = [part for part in parts if isinstance(part, kinds) or (trainers and _are_loaders(part))]
    if len(modules) != 1 or len(trainers) > 1 or len(modules) + len(loaders) + len(trainers) != len(parts):
        return None
    notes = ["the second loader is left out: training steps are measured"] if len(loaders) > 1 else []
    return _Given(modules[0], next(iter(loaders), None), next(iter(trainers), None), notes)


def _instance(kind: type) -> Any:
    """An instance of a class that needs no arguments. Raises TargetError for another one."""
    parameters = inspect.signature(kind).parameters.values()
    named = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    if required := [p.name for p in named if p.default is p.empty]:
        raise TargetError(
            f"{kind.__name__} needs the arguments {', '.join(required)}: it is a class.",
            f"Return an instance, {kind.__name__}({', '.join(f'{name}=...' for name in required)}).",
        )
    return kind()


def _workload(given: _Given, pytorch: Any, spec: TargetSpec) -> Any:
    module, data = given.module, given.data
    for parameter, learns in module._param_requires_grad_state.items():  # left between toggle and untoggle_optimizer
        parameter.requires_grad = learns
    trainer = _attached(given, pytorch)
    loader = _loader(given, pytorch)
    if loader is None:
        return module if module.example_input_array is not None or spec.input_shape else _no_data(module)
    batches = loader if isinstance(loader, DataLoader) else _read_together(loader)
    if spec.mode is Mode.INFER:
        return Adapted(model=module, data=batches, mode=Mode.INFER.value, notes=given.notes)
    trainer.fit_loop._data_source.instance = loader
    trainer.strategy.setup_optimizers(trainer)
    training_step, optimizers = _training_step(module, data), _optimizers(module, trainer)
    notes = [_told_of_step(module), *_told_of(given.trainer), *given.notes]
    if not module.automatic_optimization:
        step = _ByHand(module, training_step)
        return Adapted(
            data=batches,
            step=step,
            models=[module],
            optimizers=optimizers,
            mode=Mode.TRAIN.value,
            notes=notes,
            trainer=_TRAINER,
        )
    return Adapted(
        model=module,
        data=batches,
        loss=training_step,
        optimizer=optimizers[0],
        mode=Mode.TRAIN.value,
        **_of_trainer(given.trainer),
        notes=notes,
        trainer=_TRAINER,
    )


def _attached(given: _Given, pytorch: Any) -> Any:
    """The Trainer that was given, or one that is told nothing, with the module and its DataModule attached to it."""
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


def _told_of_step(module: Any) -> str:
    """The note on the measured parts of the module, and the others."""
    name = type(module).__name__
    if not module.automatic_optimization:
        return f"{name}'s own training_step, which updates the weights of {name} itself; callbacks are left out"
    left = [hook for hook in _AROUND_A_STEP if _defines(module, hook)]
    left_out = f"; so are its {', '.join(left)}" if left else ""
    return f"{name}'s own training_step and optimizer; callbacks and schedules are left out{left_out}"


def _optimizers(module: Any, trainer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers that ``configure_optimizers`` returned. Raises TargetError for none."""
    found = [getattr(one, "optimizer", one) for one in trainer.strategy.optimizers]  # of a LightningOptimizer its own
    if not any(one.param_groups for one in found):  # a stand-in without parameters where there is none
        raise TargetError(
            f"{type(module).__name__}.configure_optimizers returns no optimizer.",
            "Return one, or return (module, loader, loss, optimizer) from a build() of your own.",
        )
    return found


def _training_step(module: Any, data: Any) -> Any:
    """The loss of a batch: ``training_step`` after the DataModule's hooks of a batch, else the module's."""
    owners = {hook: next((one for one in (data, module) if _has(one, hook)), None) for hook in _OF_A_BATCH}
    of_data = {hook: getattr(data, hook) for hook, owner in owners.items() if owner is not None and owner is data}
    hooks = [hook for hook, owner in owners.items() if owner is not None]
    takes_number = is_callable_with(inspect.signature(module.training_step), _PAIR)

    def training_step(model: Any, batch: Any) -> Any:
        for hook in hooks:
            batch = (of_data.get(hook) or getattr(model, hook))(batch, 0)
        return model.training_step(batch, 0) if takes_number else model.training_step(batch)

    return training_step


def _has(owner: Any, hook: str) -> bool:
    return hasattr(type(owner), hook) and _defines(owner, hook)


def _of_trainer(trainer: Any) -> dict[str, Any]:
    """The options of a workload that a Trainer sets: its precision, and the norm that it clips gradients to."""
    if trainer is None:
        return {}
    clip = trainer.gradient_clip_val if _clips_norm(trainer) else None
    autocast = _AUTOCAST.get(str(trainer.precision))
    current = {"precision.autocast": autocast} if autocast else {}
    return {"clip_grad": clip or None, "current": current}


def _told_of(trainer: Any) -> list[str]:
    """Notes on a Trainer's handling of gradients that is not measured."""
    if trainer is None:
        return []
    steps = trainer.accumulate_grad_batches
    notes = [f"each step is one of the {steps} that the Trainer accumulates"] if steps > 1 else []
    if trainer.gradient_clip_val and not _clips_norm(trainer):
        notes.append("the Trainer clips gradients by value, which is left out")
    return notes


def _clips_norm(trainer: Any) -> bool:
    return str(trainer.gradient_clip_algorithm or "norm").rpartition(".")[2].lower() == "norm"


def _no_data(module: Any) -> Any:
    raise TargetError(
        f"{type(module).__name__} has no train_dataloader.",
        "Return (module, datamodule) from a build(), or (module, loader, loss, optimizer); --input SHAPE measures "
        "inference alone.",
    )


def _loader(given: _Given, pytorch: Any) -> Any:
    """The training loader, or several as one CombinedLoader: what was given, the DataModule's, else the module's own.

    None where there is none of them.
    """
    module, data = given.module, given.data
    if data is not None and not isinstance(data, pytorch.LightningDataModule):
        return _as_one(data, "the loader", pytorch)
    for owner in filter(lambda owner: owner is not None, (data, module)):
        if not _defines(owner, "train_dataloader"):
            continue
        owner.prepare_data()
        owner.setup("fit")
        loader = owner.train_dataloader()
        if owner is data:
            module.setup("fit")
        return _as_one(loader, f"{type(owner).__name__}.train_dataloader", pytorch)
    return None


def _as_one(loader: Any, owner: str, pytorch: Any) -> Any:
    """A DataLoader, or several as Lightning reads them together."""
    if isinstance(loader, Mapping | list | tuple) and len(loader) == 1:
        loader = next(iter(loader.values() if isinstance(loader, Mapping) else loader))
    combined = pytorch.utilities.CombinedLoader
    if _are_loaders(loader):
        return combined(loader, "max_size_cycle")
    if not isinstance(loader, DataLoader | combined):
        raise TargetError(
            f"{owner} returns {type(loader).__name__}, not a DataLoader.",
            "Return (module, loader, loss, optimizer) from a build(), with one DataLoader.",
        )
    return loader


def _are_loaders(value: Any) -> bool:
    """Whether a value is several loaders, of which each step gets a batch, as Lightning takes them."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return len(parts) > 0 and all(isinstance(part, DataLoader) for part in parts)


def _read_together(combined: Any) -> Callable[[], Iterator[Any]]:
    """A function that yields the batches of Lightning's CombinedLoader, without their indices."""

    def combined_loader() -> Iterator[Any]:
        for batch, _, _ in iter(combined):
            yield batch

    return combined_loader


def _defines(owner: Any, method: str) -> bool:
    """Whether a class overrides a method of Lightning's."""
    defined = next(kind for kind in type(owner).__mro__ if method in vars(kind))
    return not defined.__module__.startswith(("lightning.", "pytorch_lightning."))
