"""A loader that copies batches to the device, the next one ahead of time, and transforms that run there."""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.inlined.on_device import NormalizeStep
from advisor.recipe.plan import StepPlan
from advisor.step.batch import map_tensors, tensors_of
from advisor.step.spread import uses_accelerate
from advisor.step.step import mover_of


class DeviceLoader:
    """Yields a loader's batches, each copied to the device by ``move``.

    With ``ahead``, the next batch is copied on a separate CUDA stream during the current step; on other devices nothing
    is copied ahead. ``move`` must not wait for the device. ``len`` and attributes (``sampler``) are the loader's.
    """

    def __init__(self, loader: Any, device: torch.device, move: Callable[[Any], Any], ahead: bool) -> None:
        self.loader = loader
        self.device = device
        self.move = move
        # One stream for all epochs, because freed memory stays with the stream on which it was allocated.
        self.stream = torch.cuda.Stream(device) if ahead and device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        return map(self.move, self.loader) if self.stream is None else self._one_ahead(self.stream)

    def _one_ahead(self, stream: torch.cuda.Stream) -> Iterator[Any]:
        """The batches. The copy of the next batch starts before a batch is yielded."""
        ready: list[Any] = []
        for batch in self.loader:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(stream)
            stream.wait_stream(current)  # the current step may still read memory that an earlier batch freed
            with torch.cuda.stream(stream):
                upcoming = self.move(batch)
            yield from ready
            ready = [upcoming]
        torch.cuda.current_stream(self.device).wait_stream(stream)
        yield from ready


def loop_loader(data: Any, plan: StepPlan) -> Any:
    """Wrap a DataLoader for the loop as the plan says. Other data is returned unchanged.

    With Accelerate no batch is copied ahead, since Accelerate itself reads a batch ahead to know when an epoch ends.
    """
    if not isinstance(data, DataLoader) or not (plan.device_prefetch or plan.device_transform):
        return data
    move = mover_of(replace(plan, non_blocking=plan.non_blocking or plan.device_prefetch))
    transform = plan.device_transform
    moved = move if transform is None else lambda batch: transform(move(batch))
    return DeviceLoader(data, torch.device(plan.device), moved, plan.device_prefetch and not uses_accelerate())


def is_loader(data: Any) -> bool:
    """Whether ``data`` is a DataLoader, wrapped or not."""
    return isinstance(data, DataLoader | DeviceLoader)


class OnDevice:
    """Transforms that run on the images of a batch: its first tensor of four dimensions or more."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = [NormalizeStep(one) if hasattr(one, "mean") else one for one in transforms]

    def __call__(self, batch: Any) -> Any:
        """Return a copy of the batch with its images transformed."""
        images = next((tensor for tensor in tensors_of(batch) if tensor.dim() > 3), None)
        if images is None:
            return batch
        transformed = images
        for transform in self.transforms:
            transformed = transform(transformed)
        return map_tensors(lambda one: transformed if one is images else one, batch)


def without_last_transforms(dataset: Any) -> tuple[Any, list[Any]]:
    """A copy of a dataset without its last transforms that can run on batches, and the list of these transforms.

    They are taken from the end of the attribute ``transform`` (one transform or a ``Compose``), in a ``Subset`` from
    the inner dataset. The list is empty if there are none.
    """
    if not hasattr(dataset, "transform"):
        if not hasattr(dataset, "dataset"):
            return dataset, []
        changed = copy.copy(dataset)
        changed.dataset, moved = without_last_transforms(dataset.dataset)
        return changed, moved
    several = type(dataset.transform).__name__ == "Compose"
    steps = list(dataset.transform.transforms) if several else [dataset.transform]
    first = len(steps) - len(list(itertools.takewhile(is_movable, reversed(steps))))
    changed = copy.copy(dataset)
    if first < len(steps):
        changed.transform = type(dataset.transform)(steps[:first]) if first else torch.nn.Identity()
        both = getattr(dataset, "transforms", None)  # torchvision's datasets hold the transform here too
        if getattr(both, "transform", None) is dataset.transform:
            changed.transforms = copy.copy(both)
            changed.transforms.transform = changed.transform
    return changed, steps[first:]


def is_movable(transform: Any) -> bool:
    """Whether a torchvision transform treats every image the same, without random numbers."""
    of_torchvision = type(transform).__module__.startswith("torchvision.transforms")
    return of_torchvision and type(transform).__name__ in ("ToDtype", "ConvertImageDtype", "Normalize")
