"""Lightning: a LightningModule's own training step and optimizer, with its loader or its DataModule's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.target.hubs.contract import Adapted, Adapter

_PAIR = 2


class Lightning(Adapter):
    """LightningModules, and pairs of one and its DataModule or DataLoader."""

    order = 40
    package = "lightning"

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        """The loop that Lightning would run, without its callbacks."""
        pytorch: Any = self.imported().pytorch if self.package == "lightning" else self.imported()
        module, data = value if isinstance(value, tuple | list) and len(value) == _PAIR else (value, None)
        module, data = (
            _instance(part) if isinstance(part, type) and issubclass(part, known) else part
            for part, known in ((module, pytorch.LightningModule), (data, pytorch.LightningDataModule))
        )
        if not isinstance(module, pytorch.LightningModule):
            return None
        if data is not None and not isinstance(data, pytorch.LightningDataModule | DataLoader):
            return None
        return _workload(module, data, spec)


class PytorchLightning(Lightning):
    """The same under the library's older name."""

    order = 50
    package = "pytorch_lightning"


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


def _workload(module: Any, data: Any, spec: TargetSpec) -> Any:
    loader = data if isinstance(data, DataLoader) else _loader(module, data)
    if loader is None:
        return module if module.example_input_array is not None or spec.input_shape else _no_data(module)
    if spec.mode is Mode.INFER:
        return Adapted(model=module, data=loader, mode=Mode.INFER.value)
    if not module.automatic_optimization:
        raise TargetError(
            f"{type(module).__name__} optimizes by hand (automatic_optimization is False).",
            "Return its model, loader, loss and optimizer from a build() of your own, or give --mode infer.",
        )
    return Adapted(
        model=module,
        data=loader,
        loss=_training_step,
        optimizer=_one_optimizer(module.configure_optimizers(), type(module).__name__),
        mode=Mode.TRAIN.value,
        notes=[f"{type(module).__name__}'s own training_step and optimizer; callbacks and schedules are left out"],
    )


def _training_step(model: Any, batch: Any) -> Any:
    return model.training_step(batch, 0)


def _no_data(module: Any) -> Any:
    raise TargetError(
        f"{type(module).__name__} has no train_dataloader.",
        "Return (module, datamodule) from a build(), or (module, loader, loss, optimizer); --input SHAPE measures "
        "inference alone.",
    )


def _loader(module: Any, data: Any) -> Any:
    """The training loader: the DataModule's, else the module's own; None where there is neither."""
    for owner in filter(lambda owner: owner is not None, (data, module)):
        if not _defines(owner, "train_dataloader"):
            continue
        owner.prepare_data()
        owner.setup("fit")
        loader = owner.train_dataloader()
        if owner is data:
            module.setup("fit")
        if isinstance(loader, Mapping | list | tuple) and len(loader) == 1:
            loader = next(iter(loader.values() if isinstance(loader, Mapping) else loader))
        if not isinstance(loader, DataLoader):
            raise TargetError(
                f"{type(owner).__name__}.train_dataloader returns {type(loader).__name__}, not a DataLoader.",
                "Return (module, loader, loss, optimizer) from a build(), with one DataLoader.",
            )
        return loader
    return None


def _defines(owner: Any, method: str) -> bool:
    """Whether a class overrides a method of Lightning's."""
    defined = next(kind for kind in type(owner).__mro__ if method in vars(kind))
    return not defined.__module__.startswith(("lightning.", "pytorch_lightning."))


def _one_optimizer(configured: Any, shown: str) -> torch.optim.Optimizer:
    """The optimizer in what ``configure_optimizers`` returns: alone, with its schedules, in a dict or in a list."""
    found = configured
    if isinstance(found, tuple) and len(found) == _PAIR and isinstance(found[0], list):
        found = found[0]  # optimizers, schedules
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    if isinstance(found, Mapping):
        found = found.get("optimizer")
    found = getattr(found, "optimizer", found)  # LightningOptimizer
    if isinstance(found, torch.optim.Optimizer):
        return found
    several = f"{len(found)} optimizers" if isinstance(found, list | tuple) else "no optimizer"
    raise TargetError(
        f"{shown}.configure_optimizers returns {several}; one is measured.",
        "Return (module, loader, loss, optimizer) from a build(), with the one to measure.",
    )
