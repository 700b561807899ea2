"""Tensors that a step makes on the host and then copies to the device: they could be created there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.portable.nested import tensors_of
from advisor.runtime.step import InferStep, TrainStep
from advisor.trial.measurement.feed import Feed

# What torch.tensor() ends in: its numbers come from Python, and go to the device by a copy wherever it is called.
_FROM_PYTHON = ("lift_fresh", "lift_fresh_copy", "lift")


def host_made_tensors(step: TrainStep | InferStep, feed: Feed) -> int | None:
    """Count the tensors that the model and the loss make on the host and copy to the device, in one step.

    None on the CPU, and where the operators cannot be followed. Runs one step.
    """
    if step.device.type == "cpu":
        return None
    batch = step.to_device(feed.next())
    counter = HostTensorCounter()
    # Some custom operators refuse dispatch in Python: the profile is worth having without this count.
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError, AttributeError), counter:
        output = step.forward(batch)
        if isinstance(step, TrainStep):
            step.loss(output, batch)
        return counter.copied
    return None


class HostTensorCounter(TorchDispatchMode):
    """Counts copies to another device of tensors that were made on the host from nothing, or from such tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copied = 0
        # Kept alive, so that no other tensor gets the id of one of them.
        self._made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = list(tensors_of([args, kwargs or {}]))
        outputs = list(tensors_of(result)) if isinstance(result, torch.Tensor | tuple | list) else []
        if any(id(tensor) in self._made for tensor in inputs):
            self.copied += sum(tensor.device.type != "cpu" for tensor in _new(outputs, inputs))
            self.copied += _copies_into_device(func, inputs)
        if func.overloadpacket.__name__ not in _FROM_PYTHON and all(id(tensor) in self._made for tensor in inputs):
            self._made |= {id(tensor): tensor for tensor in outputs if tensor.device.type == "cpu"}
        return result


def _new(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The outputs of an operator that reads the host only: on the device they are copies."""
    if all(tensor.device.type == "cpu" for tensor in inputs):
        yield from outputs


def _copies_into_device(func: Any, inputs: list[torch.Tensor]) -> bool:
    """Whether the operator copies from the host into a tensor that is on the device: ``device[...] = host``."""
    return func.overloadpacket.__name__ == "copy_" and inputs[0].device.type != "cpu"
