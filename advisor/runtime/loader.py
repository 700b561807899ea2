"""The loader that a loop iterates over: the user's, or one that hands out batches on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, default_convert

from advisor.portable.device_loader import DeviceLoader
from advisor.portable.nested import tensors_of
from advisor.portable.plan import StepPlan
from advisor.runtime.step import mover_of


class GivenBatches(DataLoader[Any]):
    """Batches from something else than a DataLoader: its way of making them cannot be changed."""

    def __init__(self, dataset: Any, made_by: str) -> None:
        super().__init__(dataset, batch_size=None, collate_fn=_as_given)
        self.made_by = made_by


def _as_given(batch: Any) -> Any:
    """A batch with tensors as it is; PyTorch would make lists of its tuples. What has none is made to tensors."""
    return batch if next(tensors_of(batch), None) is not None else default_convert(batch)


def loop_loader(data: Any, plan: StepPlan) -> Any:
    """``data`` as the loop gets it: a DataLoader wrapped as the plan says; anything else as it is."""
    if not isinstance(data, DataLoader) or not (plan.device_prefetch or plan.device_transform):
        return data
    return DeviceLoader(data, torch.device(plan.device), _move(plan), plan.device_prefetch)


def is_loader(data: Any) -> bool:
    """Whether ``data`` yields batches, wrapped or not."""
    return isinstance(data, DataLoader | DeviceLoader)


def batches_in(loader: Any) -> int | None:
    """The number of batches of an epoch; None where the loader or its dataset does not know."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _move(plan: StepPlan) -> Callable[[Any], Any]:
    """Moves a batch and then runs the transforms that were left for the device."""
    move = mover_of(replace(plan, non_blocking=plan.non_blocking or plan.device_prefetch))
    transform = plan.device_transform
    return move if transform is None else lambda batch: transform(move(batch))
