"""Batches that come from something else than a DataLoader: an iterable, a generator, a list of batches."""

import functools
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from advisor.errors import TargetError
from advisor.step.batch import ForwardInputs, attributes_with_tensors, tensors_of
from advisor.step.loss import is_callable_with
from advisor.target.loop import GivenBatches

# Batches that are kept of what can be read only once. A count; enough that steps do not all see the same batch.
MOST_KEPT = 32
# Bytes of such batches that are kept at most.
_MOST_KEPT_BYTES = 2**30
# Names of a first parameter that says which part of the data is wanted.
_SPLITS = frozenset({"split", "mode", "phase", "stage", "subset"})
# Parts of the usual batch. A count.
_INPUTS_AND_TARGET = 2
# The most tensors of one form that a step or a loss of somebody's own gets as one batch. A count; triplets are common.
_PARTS_FOR_A_STEP = 4


class _Source(IterableDataset[Any]):
    """An iterable of batches as a dataset that is read from its beginning in each epoch."""

    def __init__(self, begin: Callable[[], Iterable[Any]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self.begin())


def batches_in_data(
    data: Any, notes: list[str], model: Any = None, *, own_step: bool = False, own_call: bool = False
) -> Any:
    """``data`` with an iterable of batches as a loader of them; one batch, or a callable of a size, as it is.

    ``own_step``: the batches go to a step of the target's own, ``own_call``: to a loss that calls the model. What can
    be read only once is read ahead and repeated; a note says so, and also where a list of tensors is taken for a list
    of batches.
    """
    if inspect.isfunction(_inner(data)) or inspect.ismethod(_inner(data)):
        return _batches_of(data, notes)
    if isinstance(data, DataLoader | torch.Tensor | Mapping | str) or data is None:
        return data
    if isinstance(data, list | tuple):
        taken_apart = own_step or (own_call and isinstance(data, tuple))
        most_parts = _PARTS_FOR_A_STEP if taken_apart else _most_parts(model)
        samples = model is not None and not own_step and ForwardInputs(model).takes_whole(data)
        return data if samples or not _is_sequence_of_batches(data, most_parts) else _given_sequence(data, notes)
    if isinstance(data, Iterator):
        kept = _read_ahead(data)
        notes.append(f"the {_name(data)} can be read only once: its first {len(kept)} batches are repeated")
        return GivenBatches(_Source(lambda: kept), _name(data))
    is_array = hasattr(data, "__array__")  # its rows, or a table's columns, are no batches
    of_batches = isinstance(data, Iterable) and not is_array and next(tensors_of(data), None) is None
    return GivenBatches(_Source(lambda: data), _name(data)) if of_batches else data


def _given_sequence(data: list[Any] | tuple[Any, ...], notes: list[str]) -> GivenBatches:
    """The batches of a list or a tuple, with a note where each is one tensor."""
    if isinstance(data[0], torch.Tensor):
        notes.append(f"the {_name(data)} is taken for {len(data)} batches, each one tensor")
    return GivenBatches(_Source(lambda: data), f"a {_name(data)}")


def _batches_of(function: Callable[..., Any], notes: list[str]) -> Any:
    """The batches of a function that takes no size: it yields them, or is called for each. One of a size, as it is."""
    signature, name = inspect.signature(function), _inner(function).__name__
    first = next(iter(signature.parameters), "")
    if first in _SPLITS and is_callable_with(signature, 1):
        notes.append(f"{name} is called with {first}='train'")
        return _batches_of(functools.partial(function, "train"), notes)
    yields = inspect.isgeneratorfunction(_inner(function)) and is_callable_with(signature, 0)
    if not yields and is_callable_with(signature, 1):
        return function
    made = function()
    if isinstance(made, DataLoader):
        return made
    if yields or isinstance(made, Iterator) or (isinstance(made, Iterable) and next(tensors_of(made), None) is None):
        return GivenBatches(_Source(function), name)
    notes.append(f"{name} is called for each batch")
    return GivenBatches(_Source(lambda: (function() for _ in itertools.count())), name)


def _is_sequence_of_batches(data: Any, most_parts: float) -> bool:
    """Whether the elements of a list or a tuple are batches, not parts of one batch.

    A list of tuples, of mappings or of a class's objects that hold tensors, such as graphs, is. Others have to be built
    alike, and to be more than inputs and a target; tensors more than ``most_parts``.
    """
    if hasattr(data, "_fields") or next(tensors_of(data), None) is None:
        return False
    if isinstance(data, list) and len({type(part) for part in data}) == 1 and attributes_with_tensors(data[0]):
        return True
    kinds = {kind for part in data for kind in (tuple, Mapping, list, torch.Tensor) if isinstance(part, kind)}
    if len(kinds) != 1 or not all(isinstance(part, tuple | Mapping | list | torch.Tensor) for part in data):
        return False
    [kind] = kinds
    if isinstance(data, list) and kind in (tuple, Mapping):
        return next(tensors_of(data[0]), None) is not None
    alike = len({_form(part) for part in data}) == 1
    if kind is torch.Tensor:
        return alike and len(data) > most_parts
    return alike and len(data) > (1 if isinstance(data, list) else _INPUTS_AND_TARGET)


def _form(value: Any) -> Any:
    """The form of a batch: its containers, and the types and sizes of its tensors but for the number of samples."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape[1:]), value.dim()
    if isinstance(value, Mapping):
        return tuple((key, _form(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(_form, value))
    return type(value).__name__


def _most_parts(model: Any) -> float:
    """The most tensors that a batch may have for a model: its inputs and a target."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return math.inf
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return math.inf
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return max(_INPUTS_AND_TARGET, len(places) + 1)


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


def _inner(function: Any) -> Any:
    """The function of a ``functools.partial``; anything else as it is."""
    return function.func if isinstance(function, functools.partial) else function


def _name(data: Any) -> str:
    return getattr(data, "made_by", type(data).__name__)
