"""Batches that come from something else than a DataLoader: an iterable, a generator, a list of batches."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.step.batch import attributes_with_tensors, tensors_of
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
