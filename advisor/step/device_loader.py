"""A loader whose batches arrive on the device, the next one copied ahead, and transforms that run on them there."""

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
    """Yields a loader's batches after ``move``: a copy of each on the device.

    With ``ahead`` the next batch is copied on a separate CUDA stream while the step computes; on other devices nothing
    is copied ahead. ``move`` must not wait for the device. ``len`` and attributes such as ``sampler`` are the loader's.
    """

    def __init__(self, loader: Any, device: torch.device, move: Callable[[Any], Any], ahead: bool) -> None:
        self.loader = loader
        self.device = device
        self.move = move
        # One for all epochs: memory that is freed stays with the stream it was allocated on.
        self.stream = torch.cuda.Stream(device) if ahead and device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        return map(self.move, self.loader) if self.stream is None else self._one_ahead(self.stream)

    def _one_ahead(self, stream: torch.cuda.Stream) -> Iterator[Any]:
        """The batches, each copied before the one ahead of it is given out."""
        ready: list[Any] = []
        for batch in self.loader:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(stream)
            stream.wait_stream(current)  # memory that an earlier batch gave back may still be read by a step under way
            with torch.cuda.stream(stream):
                upcoming = self.move(batch)
            yield from ready
            ready = [upcoming]
        torch.cuda.current_stream(self.device).wait_stream(stream)
        yield from ready


def loop_loader(data: Any, plan: StepPlan) -> Any:
    """``data`` for the loop: a DataLoader wrapped as the plan says; anything else unchanged.

    Accelerate reads a batch ahead itself to know when an epoch ends, so nothing else is read ahead with it.
    """
    if not isinstance(data, DataLoader) or not (plan.device_prefetch or plan.device_transform):
        return data
    move = mover_of(replace(plan, non_blocking=plan.non_blocking or plan.device_prefetch))
    transform = plan.device_transform
    moved = move if transform is None else lambda batch: transform(move(batch))
    return DeviceLoader(data, torch.device(plan.device), moved, plan.device_prefetch and not uses_accelerate())


def is_loader(data: Any) -> bool:
    """Whether ``data`` yields batches, wrapped or not."""
    return isinstance(data, DataLoader | DeviceLoader)


class OnDevice:
    """Transforms that run on the images of a batch: its first tensor of four dimensions or more."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = [NormalizeStep(one) if hasattr(one, "mean") else one for one in transforms]

    def __call__(self, batch: Any) -> Any:
        """The batch with its images transformed; it is not changed itself."""
        images = next((tensor for tensor in tensors_of(batch) if tensor.dim() > 3), None)
        if images is None:
            return batch
        transformed = images
        for transform in self.transforms:
            transformed = transform(transformed)
        return map_tensors(lambda one: transformed if one is images else one, batch)


def without_last_transforms(dataset: Any) -> tuple[Any, list[Any]]:
    """A copy of a dataset without its last transforms, if these can run on batches; and these transforms.

    They are taken from the end of its attribute ``transform``, one transform or a ``Compose``, also of the dataset
    inside a ``Subset``. The list is empty if there are none.
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
        both = getattr(dataset, "transforms", None)  # in which torchvision's datasets keep it a second time
        if getattr(both, "transform", None) is dataset.transform:
            changed.transforms = copy.copy(both)
            changed.transforms.transform = changed.transform
    return changed, steps[first:]


def is_movable(transform: Any) -> bool:
    """Whether a torchvision transform of this name treats every image the same, without random numbers."""
    of_torchvision = type(transform).__module__.startswith("torchvision.transforms")
    return of_torchvision and type(transform).__name__ in ("ToDtype", "ConvertImageDtype", "Normalize")
