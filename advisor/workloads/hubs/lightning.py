"""Lightning: a LightningModule's own training step and optimizers, on its own loader or its DataModule's.

The module is attached to a Trainer, as during Lightning's fit, because the module's methods read the number of steps,
the optimizers or the DataModule from its Trainer.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.step.loss import is_callable_with
from advisor.workloads.hubs.contract import Adapter
from advisor.workloads.loop import Loop

# The hooks that Lightning calls on a batch before ``training_step``, in this order.
_OF_A_BATCH = ("on_before_batch_transfer", "on_after_batch_transfer")
_EPOCHS = 1000  # the epochs of a Trainer without a number of epochs
_AUTOCAST = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


class Lightning(Adapter):
    """A LightningModule, alone or with a DataModule, a DataLoader or a Trainer, in any order."""

    package = "lightning"

    def workload(self: Adapter, value: Any, spec: TargetSpec) -> Any:
        pytorch: Any = self.imported().pytorch if self.package == "lightning" else self.imported()
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else [value]
        own = (pytorch.LightningModule, pytorch.LightningDataModule)
        parts = [part() if isinstance(part, type) and issubclass(part, own) else part for part in values]
        modules = [part for part in parts if isinstance(part, pytorch.LightningModule)]
        trainers = [part for part in parts if isinstance(part, pytorch.Trainer)]
        loaders = [part for part in parts if isinstance(part, pytorch.LightningDataModule | DataLoader)]
        if len(modules) != 1 or len(trainers) > 1 or len(modules) + len(loaders) + len(trainers) != len(parts):
            return None
        trainer = _attached(pytorch, modules[0], next(iter(loaders), None), next(iter(trainers), None))
        notes = ["the second loader is left out: training steps are measured"] if len(loaders) > 1 else []
        return _workload(pytorch, modules[0], trainer, spec, notes)


class PytorchLightning(Adapter):
    """The same library under its older name."""

    package = "pytorch_lightning"
    workload = Lightning.workload


def _attached(pytorch: Any, module: Any, data: Any, trainer: Any) -> Any:
    """Attach the module and its data to the given Trainer, or to one with default arguments. Return the Trainer."""
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = trainer or pytorch.Trainer(
        accelerator="cpu", devices=1, logger=pytorch.loggers.logger.DummyLogger(), **quiet
    )
    if trainer.max_epochs is None:
        trainer.fit_loop.max_epochs = _EPOCHS
    trainer.barebones = True  # so that log() does nothing: it works only inside fit()
    trainer.training = True
    trainer.strategy.connect(module)
    kind = "train_dataloaders" if isinstance(data, DataLoader) else "datamodule"
    trainer._data_connector.attach_data(module, **{kind: data})
    return trainer


def _workload(pytorch: Any, module: Any, trainer: Any, spec: TargetSpec, notes: list[str]) -> Any:
    for parameter, learns in module._param_requires_grad_state.items():  # undo a toggle_optimizer() of a paused script
        parameter.requires_grad = learns
    loader = _loader(module, trainer)
    if loader is None and (module.example_input_array is not None or spec.input_shape):
        return module
    if loader is None:
        raise TargetError(
            f"{type(module).__name__} has no train_dataloader.",
            "Return (module, datamodule) from a build(), or (module, loader, loss, optimizer); --input SHAPE measures "
            "inference alone.",
        )
    if spec.mode is Mode.INFER:
        return Loop(model=module, data=loader, mode=Mode.INFER, notes=notes)

    trainer.strategy.setup_optimizers(trainer)
    # A LightningOptimizer wraps the optimizer.
    optimizers = [getattr(one, "optimizer", one) for one in trainer.strategy.optimizers]
    if not any(one.param_groups for one in optimizers):  # Lightning's mock optimizer has no parameter groups
        raise TargetError(
            f"{type(module).__name__}.configure_optimizers returns no optimizer.",
            "Return one, or return (module, loader, loss, optimizer) from a build() of your own.",
        )
    name, steps = type(module).__name__, trainer.accumulate_grad_batches
    said = [f"{name}'s own training_step and optimizer; callbacks, schedules and its other hooks are left out"]
    if not module.automatic_optimization:
        said = [f"{name}'s own training_step, which also updates the weights; callbacks are left out"]
    if steps > 1:
        said.append(f"each step is one of the {steps} that the Trainer accumulates")
    clip = trainer.gradient_clip_val or None
    if clip and trainer.gradient_clip_algorithm == "value":
        clip = None
        said.append("the Trainer's clipping of gradients by value is left out")
    training_step = _training_step(module, trainer.datamodule, pytorch)
    found = Loop(data=loader, mode=Mode.TRAIN, notes=[*said, *notes], trainer="lightning")
    if not module.automatic_optimization:
        return replace(found, step=_by_hand(module, training_step), models=[module], optimizers=optimizers)
    autocast = _AUTOCAST.get(str(trainer.precision))
    current = {"precision.autocast": autocast} if autocast else {}
    return replace(found, model=module, loss=training_step, optimizer=optimizers[0], clip_grad=clip, current=current)


def _loader(module: Any, trainer: Any) -> Any:
    """The given training loader, else the DataModule's, else the module's own; None if there is none."""
    source = trainer.fit_loop._data_source
    if not source.is_defined():  # no loader was given, and no DataModule has one
        source.instance = module
    if not source.is_defined():
        return None
    named = "the loader"
    if source.is_module():
        named = f"{type(source.instance).__name__}.train_dataloader"
        for owner in dict.fromkeys((source.instance, module)):
            owner.prepare_data()
            owner.setup("fit")
    loader = source.dataloader()
    if not isinstance(loader, DataLoader):
        raise TargetError(
            f"{named} returns {type(loader).__name__}, not a DataLoader.",
            "Return (module, loader, loss, optimizer) from a build(), with one DataLoader.",
        )
    source.instance = loader
    return loader


def _training_step(module: Any, data: Any, pytorch: Any) -> Any:
    """A function that runs ``training_step`` on a batch after the batch hooks of the DataModule, else of the module."""
    takes_number = is_callable_with(inspect.signature(module.training_step), 2)
    of_data = {hook for hook in _OF_A_BATCH if pytorch.utilities.model_helpers.is_overridden(hook, data)}

    def training_step(model: Any, batch: Any) -> Any:
        for hook in _OF_A_BATCH:
            batch = getattr(data if hook in of_data else model, hook)(batch, 0)
        return model.training_step(batch, 0) if takes_number else model.training_step(batch)

    return training_step


def _by_hand(module: Any, training_step: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """The step of a module that updates its weights itself. It returns the sum of the losses of its backward passes."""
    losses: list[torch.Tensor] = []
    backward = module.manual_backward

    def noting_backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        losses.append(loss.detach())
        backward(loss, *args, **kwargs)

    def step(batch: Any) -> Any:
        losses.clear()
        result = training_step(module, batch)
        return sum(losses) if losses else result

    module.manual_backward = noting_backward
    return step
