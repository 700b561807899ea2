"""A batch with another number of samples."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from advisor.step.batch import map_tensors, tensors_of


def batch_size_of(batch: Any) -> int | None:
    """The first dimension of the first tensor in a batch, in the order of its nesting; None without one."""
    return next((tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim() > 0), None)


def resize_batch(batch: Any, size: int) -> Any:
    """A batch of ``size`` samples: every tensor whose first dimension is the batch size is repeated or cut.

    Raises ValueError when no dimension of its tensors is sure to count samples, or ``size`` is not positive.
    """
    if problem := resizing_problem(batch):
        raise ValueError(problem)
    if size < 1:
        raise ValueError(f"a batch cannot have {size} samples")
    present = batch_size_of(batch) or 1

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != present or size == present:
            return tensor
        data = tensor.detach()  # cloning and concatenation keep the memory format, which indexing would not
        changed = data[:size].clone() if size < present else torch.cat([data] * -(-size // present))[:size]
        return changed.requires_grad_(tensor.requires_grad)

    return map_tensors(resized, batch)


def resizing_problem(batch: Any) -> str:
    """The reason a batch cannot be resized: it is unclear which dimension counts samples. Empty where it can."""
    tensors = [tensor for tensor in tensors_of(batch) if tensor.dim() > 0]
    plain = [tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested]
    sizes = list(dict.fromkeys(tensor.shape[0] for tensor in plain))
    if not sizes or not sizes[0]:
        return "the batch has no tensor with samples, so it cannot be resized"
    if len(sizes) > 1 and sizes[1:] != [1]:  # one row is for all samples alike
        several = ", ".join(map(str, sizes[:4]))
        return f"the batch cannot be resized: the first dimensions of its tensors differ ({several})"
    if len(plain) < len(tensors) or isinstance(batch, PackedSequence):
        return "the batch cannot be resized: its samples are packed, sparse or nested"
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    for part in parts:
        if isinstance(part, list | tuple) and len(part) == sizes[0] and not isinstance(part[0], torch.Tensor):
            return f"the batch cannot be resized: it holds a list of {sizes[0]} values that are no tensors"
    return ""
