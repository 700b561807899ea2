"""Batches that come from something else than a DataLoader: an iterable, a generator, a list of batches."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from advisor.errors import TargetError
from advisor.runtime.batches import tensors_of
from advisor.runtime.loader import GivenBatches

# Batches that are kept of what can be read only once. A count; enough that steps do not all see the same batch.
MOST_KEPT = 32
# Bytes of such batches that are kept at most.
_MOST_KEPT_BYTES = 2**30


class _Source(IterableDataset[Any]):
    """An iterable of batches as a dataset that is read from its beginning in each epoch."""

    def __init__(self, begin: Callable[[], Iterable[Any]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self.begin())


def batches_in_data(data: Any, notes: list[str]) -> Any:
    """``data`` with an iterable of batches as a loader of them; one batch, or a callable of a size, as it is.

    A list of tuples or mappings is a list of batches. What can be read only once is read ahead and repeated, which a
    note says.
    """
    if isinstance(data, DataLoader | torch.Tensor | Mapping | tuple | str) or data is None:
        return data
    if isinstance(data, list):
        return GivenBatches(_Source(lambda: data), "a list") if _is_list_of_batches(data) else data
    if isinstance(data, Iterator):
        kept = _read_ahead(data)
        notes.append(f"the {_name(data)} can be read only once: its first {len(kept)} batches are repeated")
        return GivenBatches(_Source(lambda: kept), _name(data))
    if isinstance(data, Iterable) and next(tensors_of(data), None) is None:
        return GivenBatches(_Source(lambda: data), _name(data))
    return data


def _is_list_of_batches(data: list[Any]) -> bool:
    """Whether all elements are tuples, or all mappings, with tensors: a batch as a list holds tensors itself."""
    kinds = {tuple if isinstance(part, tuple) else Mapping if isinstance(part, Mapping) else None for part in data}
    return len(kinds) == 1 and None not in kinds and next(tensors_of(data[0]), None) is not None


def _read_ahead(iterator: Iterator[Any]) -> list[Any]:
    """The first batches of an iterator, as many as may be kept. Raises TargetError where there is none."""
    kept, room = [], _MOST_KEPT_BYTES
    for batch in itertools.islice(iterator, MOST_KEPT):
        kept.append(batch)
        room -= sum(tensor.nbytes for tensor in tensors_of(batch)) or sys.getsizeof(batch)
        if room < 0:
            break
    if not kept:
        raise TargetError(f"the {_name(iterator)} yields no batch.", "Return one that has not been read to its end.")
    return kept


def _name(data: Any) -> str:
    return getattr(data, "made_by", type(data).__name__)
