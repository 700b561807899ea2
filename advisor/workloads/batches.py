"""Batches: made of an iterable, a generator or a list, with another number of samples, and drawn with a seed."""

import itertools
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.step.batch import attributes_with_tensors, map_tensors, tensors_of
from advisor.workloads.loop import GivenBatches

# Batches that are kept of what can be read only once. A count; enough that steps do not all see the same batch.
MOST_KEPT = 32
# Bytes of such batches that are kept at most.
_MOST_KEPT_BYTES = 2**30
# The most tensors of a list that are the parts of one batch. A count; inputs, targets and weights, or a triplet.
_PARTS = 4


def batches_in_data(data: Any, notes: list[str]) -> Any:
    """``data`` with an iterable of batches as a loader of them; one batch, or a callable of a size, as it is.

    A tuple is one batch. So is a list of a few tensors; any other list is one of batches. What can be read only once
    is read ahead and repeated, and a note says so.
    """
    if isinstance(data, DataLoader | torch.Tensor | Mapping | str | tuple) or data is None:
        return data
    name = type(data).__name__
    if isinstance(data, list):
        return GivenBatches(lambda: data, "a list") if _are_batches(data) else data
    if isinstance(data, Iterator):
        kept = _read_ahead(data)
        notes.append(f"the {name} can be read only once: its first {len(kept)} batches are repeated")
        return GivenBatches(lambda: kept, name)
    is_array = hasattr(data, "__array__")  # its rows, or a table's columns, are no batches
    of_batches = isinstance(data, Iterable) and not is_array and next(tensors_of(data), None) is None
    return GivenBatches(lambda: data, name) if of_batches else data


def _are_batches(data: list[Any]) -> bool:
    """Whether the elements of a list are batches: several tuples, mappings or objects with tensors, or many tensors."""
    if next(tensors_of(data), None) is None:
        return len(data) > 0 and bool(attributes_with_tensors(data[0]))
    tensors = all(isinstance(part, torch.Tensor) for part in data)
    parts = all(isinstance(part, tuple | Mapping) for part in data) or bool(attributes_with_tensors(data[0]))
    return len(data) > _PARTS if tensors else parts


def _read_ahead(iterator: Iterator[Any]) -> list[Any]:
    """The first batches of an iterator, as many as may be kept. Raises TargetError where there is none."""
    kept, room = [], _MOST_KEPT_BYTES
    for batch in itertools.islice(iterator, MOST_KEPT):
        kept.append(batch)
        room -= sum(tensor.nbytes for tensor in tensors_of(batch)) or sys.getsizeof(batch)
        if room < 0:
            break
    if not kept:
        name = type(iterator).__name__
        raise TargetError(f"the {name} yields no batch.", "Return one that has not been read to its end.")
    return kept


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


def seed_host(seed: int) -> None:
    """Seed the generators of PyTorch, Python and NumPy, from which datasets, samplers and transforms draw."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
