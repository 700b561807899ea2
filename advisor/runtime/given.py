"""Sorts the arguments of ``prepare``: models, optimizers, loaders, and which optimizer trains which model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader


@dataclass(frozen=True, slots=True)
class Given:
    """The objects that settings are about, in the order given and each once; the others stay as they are."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    loaders: tuple[DataLoader[Any], ...]

    @classmethod
    def of(cls, objects: Iterable[Any]) -> Given:
        """Sort objects by kind. Parts of other modules, and modules without tensors beside others, are no models."""
        once = list({id(item): item for item in objects}.values())
        modules = [item for item in once if isinstance(item, nn.Module)]
        parts = {id(part) for module in modules for part in module.modules() if part is not module}
        models = [module for module in modules if id(module) not in parts]
        with_tensors = [model for model in models if next(chain(model.parameters(), model.buffers()), None) is not None]
        return cls(
            tuple(with_tensors or models),
            tuple(dict.fromkeys(_unwrapped(item) for item in once if isinstance(item, Optimizer))),
            tuple(item for item in once if isinstance(item, DataLoader)),
        )

    def optimizers_of(self, model: nn.Module) -> list[Optimizer]:
        """The optimizers that train a model; those that train none of the models go with the first."""
        found = [optimizer for optimizer in self.optimizers if _trains(optimizer, model)]
        if model is self.models[0]:
            found += [one for one in self.optimizers if not any(_trains(one, other) for other in self.models)]
        return found


def _unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside one that hands everything on to it, such as Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer


def _trains(optimizer: Optimizer, model: nn.Module) -> bool:
    own = set(map(id, model.parameters()))
    return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])
