"""A loader whose batches arrive on the device, the next one copied while the present one is computed on."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.recipe.plan import StepPlan
from advisor.step.spread import uses_accelerate
from advisor.step.step import mover_of

# The attributes of a DeviceLoader that are its own, and not those of its loader.
_OWN = ("loader", "device", "move", "stream", "end_of_dataloader")


class DeviceLoader:
    """Yields a loader's batches after ``move``: a copy of each on the device.

    With ``ahead`` the next batch is copied on a CUDA stream of its own while the present one is computed on; elsewhere
    than on CUDA there is no such stream and nothing runs ahead. ``move`` must not wait for the device. Attributes are
    those of the loader, read or set, so ``len``, ``loader.sampler``, ``loader.epoch = 3`` and the like work as before.

    Accelerate accumulates gradients by ``end_of_dataloader``, which says when the last batch of an epoch is given out.
    """

    def __init__(self, loader: Any, device: torch.device, move: Callable[[Any], Any], ahead: bool) -> None:
        self.loader = loader
        self.device = device
        self.move = move
        # One for all epochs: memory that is freed stays with the stream it was allocated on.
        self.stream = torch.cuda.Stream(device) if ahead and device.type == "cuda" else None
        self.end_of_dataloader = False

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not there yet while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    @property
    def remainder(self) -> int:
        """The number of samples of the last batch that Accelerate keeps of what it gathers; 0 for all of them."""
        return getattr(self.loader, "remainder", 0)

    def __iter__(self) -> Iterator[Any]:
        if uses_accelerate():
            return self._announced()
        return map(self.move, self.loader) if self.stream is None else self._one_ahead()

    def _announced(self) -> Iterator[Any]:
        """The batches, while this is the loader in Accelerate's record of those that are read."""
        state = sys.modules["accelerate.state"].GradientState()
        try:
            for place, batch in enumerate(self._one_ahead()):
                if not place:  # a loader of Accelerate's inside has begun by now, and would be in front
                    state._add_dataloader(self)
                yield batch
        finally:
            state._remove_dataloader(self)

    def _one_ahead(self) -> Iterator[Any]:
        """The batches, each copied before the one ahead of it is given out."""
        self.end_of_dataloader = False
        ready: list[Any] = []
        for batch in self.loader:
            upcoming = self._copied(batch)
            yield from ready
            ready = [upcoming]
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        self.end_of_dataloader = True
        yield from ready

    def _copied(self, batch: Any) -> Any:
        """A batch, its copy under way, once that of the batch before it is waited for."""
        if self.stream is None:
            return self.move(batch)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        self.stream.wait_stream(current)  # memory that an earlier batch gave back may still be read by a step under way
        with torch.cuda.stream(self.stream):
            return self.move(batch)


def loop_loader(data: Any, plan: StepPlan) -> Any:
    """``data`` as the loop gets it: a DataLoader wrapped as the plan says; anything else as it is."""
    if not isinstance(data, DataLoader) or not (plan.device_prefetch or plan.device_transform):
        return data
    move = mover_of(replace(plan, non_blocking=plan.non_blocking or plan.device_prefetch))
    transform = plan.device_transform
    moved = move if transform is None else lambda batch: transform(move(batch))
    return DeviceLoader(data, torch.device(plan.device), moved, plan.device_prefetch)


def is_loader(data: Any) -> bool:
    """Whether ``data`` yields batches, wrapped or not."""
    return isinstance(data, DataLoader | DeviceLoader)
