"""Batches as nested structures of tensors: find, move and copy tensors, and split a batch into a model's call."""

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from advisor.inlined.chunked_loss import Scores
from advisor.step.compile import as_prepared

_RANK_OF_FORMAT = {"channels_last": 4, "channels_last_3d": 5}
# The depth to which objects inside objects are searched for tensors, in levels. PyTorch Geometric needs two.
_DEEPEST = 4
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device})
TARGET_NAMES = ("labels", "label", "targets", "target", "y")
# If a model's only parameter has one of these names, the model takes the whole batch.
_BATCH_NAMES = frozenset({"batch", "batch_dict", "batched_inputs", "data", "data_dict", "inputs", "sample"})
# The number of elements in a batch (inputs, target).
PAIR = 2


# --- nested structures ------------------------------------------------------------------------------------------------


def tensors_of(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """All tensors in a nested batch, depth first: in mappings, lists, tuples, and attributes of other objects."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Scores):
        yield batch.whole()
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part, depth)
    elif depth < _DEEPEST:
        for part in _attributes_of(batch).values():
            yield from tensors_of(part, depth + 1)


def attributes_with_tensors(part: Any) -> dict[str, Any]:
    """The attributes of an object if it holds tensors (a dataclass, for example); otherwise empty."""
    attributes = _attributes_of(part)
    return attributes if next(tensors_of(attributes, 1), None) is not None else {}


def _attributes_of(part: Any) -> dict[str, Any]:
    if type(part) in _PLAIN or isinstance(part, torch.nn.Module | type) or inspect.ismodule(part):
        return {}
    state: Any = object.__getstate__(part)  # ``__dict__``, or the pair (``__dict__``, slots)
    own, slots = state if isinstance(state, tuple) else (state, None)
    return {**(slots or {}), **(own or {})}


def map_tensors(
    function: Callable[[torch.Tensor], Any], part: Any, of_object: Callable[[Any], Any] | None = None, depth: int = 0
) -> Any:
    """A copy of a batch with every tensor replaced by ``function(tensor)``. Containers of tensors are copied.

    Objects with a method ``to`` are replaced by ``of_object(object)``, unless ``of_object`` is None.
    """
    if isinstance(part, torch.Tensor):
        return function(part)
    if of_object is not None and type(part) not in _PLAIN and callable(getattr(part, "to", None)):
        return of_object(part)
    if isinstance(part, Mapping):
        filled: Any = copy.copy(part) if hasattr(part, "__setitem__") else {}
        for key, value in part.items():
            filled[key] = map_tensors(function, value, of_object, depth)
        return filled
    if isinstance(part, list | tuple):
        changed = [map_tensors(function, value, of_object, depth) for value in part]
        return part._make(changed) if hasattr(part, "_make") else type(part)(changed)
    attributes = attributes_with_tensors(part) if depth < _DEEPEST else {}
    if not attributes:
        return part
    new = copy.copy(part)
    own = _attributes_of(new)
    for name, value in attributes.items():
        changed = map_tensors(function, value, of_object, depth + 1)
        if isinstance(own[name], Mapping) and own[name] is not value:  # the copied owner has its own mapping
            own[name].update(changed)
        else:
            object.__setattr__(new, name, changed)  # works for frozen dataclasses too
    return new


def mover(
    device: torch.device, *, non_blocking: bool = False, memory_format: str = "none", dtype: str = "none"
) -> Callable[[Any], Any]:
    """A function that moves a batch to ``device``. Objects with a method ``to`` are moved by it.

    Tensors of the matching rank get the memory format, and floating-point tensors the type, unless it is ``none``.
    """
    rank = _RANK_OF_FORMAT.get(memory_format)
    layout = getattr(torch, memory_format) if rank else torch.preserve_format
    wanted = None if dtype == "none" else getattr(torch, dtype)

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == rank:
            tensor = tensor.to(memory_format=layout)
        return tensor.to(wanted) if wanted is not None and tensor.is_floating_point() else tensor

    def move(part: Any) -> Any:
        try:
            moved = part.to(device, non_blocking=non_blocking)
        except TypeError:  # a method that takes only a device
            moved = part.to(device)
        return part if moved is None else moved  # None: it was moved in place

    if rank is None and wanted is None:
        return lambda batch: map_tensors(move, batch, move)
    # Convert after the copy: on the host it is slow, and its result is not in pinned memory.
    return lambda batch: map_tensors(converted, map_tensors(move, batch, move))


@torch.no_grad()
def copy_into(static: Any, batch: Any) -> None:
    """Copy a batch's tensors into ``static``, a batch with the same structure and shapes. Types are converted."""
    for destination, source in zip(tensors_of(static), tensors_of(batch), strict=True):
        # A copy with a conversion would convert on the host and wait, so convert on the device.
        moved = source if source.dtype == destination.dtype else source.to(destination.device, non_blocking=True)
        destination.copy_(moved, non_blocking=True)


def signature_of(part: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind of part
    """The structure, shapes, types and Python values of a batch, without the values of its tensors.

    Signatures can be hashed. Batches with equal signatures can use the same captured graph.
    """
    kind = type(part)
    if isinstance(part, torch.Tensor):
        return part.shape, part.dtype, part.requires_grad, part.layout
    if kind in _PLAIN:
        return kind, part
    if isinstance(part, list | tuple):
        return tuple([signature_of(value, depth) for value in part])
    if isinstance(part, Mapping):
        return kind, *part, *(signature_of(value, depth) for value in part.values())
    if depth >= _DEEPEST:
        return kind
    if attributes := attributes_with_tensors(part):
        return kind, *attributes, *(signature_of(value, depth + 1) for value in attributes.values())
    return part if kind.__hash__ is not None else object()


# --- a batch as a model's call ----------------------------------------------------------------------------------------


class SplitBatch(NamedTuple):
    """A batch as a model call: positional inputs, keyword inputs, and the target (None without a target)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None


class ForwardInputs:
    """The inputs of a model, from the signature of its forward pass. Without a signature, any inputs are allowed.

    ``required`` are the names of inputs without a default, in order. ``names`` are all inputs that can be given by
    name. ``places`` are the inputs that can be given by position, or None for any number. ``takes_list``: the first
    input is annotated as a list (detectors take a list of images).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        signature = inspect.signature(lambda *args, **kwargs: None)
        with suppress(TypeError, ValueError):
            signature = inspect.signature(as_prepared(model).forward)
        given = list(signature.parameters.values())
        by_name = [one for one in given if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        by_place = [one for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        self.required = [one.name for one in by_name if one.default is one.empty]
        self.names = [one.name for one in by_name]
        self.takes_any_name = any(one.kind is one.VAR_KEYWORD for one in given)
        self.places = None if any(one.kind is one.VAR_POSITIONAL for one in given) else by_place
        annotation = str(by_place[0].annotation) if by_place else ""
        self.takes_list = re.match(r"(<class '|typing\.)?list\b", annotation, re.IGNORECASE) is not None

    def count(self, *, with_labels: bool = False) -> int | None:
        """The number of inputs that the model needs, at least one; None if it takes any number.

        ``with_labels`` also counts optional labels.
        """
        if self.places is None:
            return None
        labels = TARGET_NAMES if with_labels else ()
        return max(1, sum(one.default is one.empty or one.name in labels for one in self.places))


def splitter(
    model: torch.nn.Module, *, with_target: bool, with_labels: bool = False, target_name: str = ""
) -> Callable[[Any], SplitBatch]:
    """Return a function that splits this model's batches into inputs and target, by the model's inputs.

    - A mapping becomes keyword arguments, without keys that the model does not take. The target is the entry
      ``target_name``, ``labels``, ``target``, ``y`` ..., or else the whole mapping. If no key names an input and the
      model has one input, that is the only entry besides a target, or the only tensor, or else the whole mapping.
    - An object with the model's inputs as attributes (a batch of graphs, a dataclass) is used like a mapping.
    - The last part of a tuple or a list is the target, and the others are inputs. If there are too many parts, the
      model gets as many as it needs, and the target is a tuple of the other parts. ``((x1, x2), y)`` means ``(x1, x2,
      y)``. A mapping of several inputs in place of one input is unpacked.
    - Any other object is the only input. If the model's only parameter is ``batch``, so is every batch.

    ``with_target``: return a target too, and do not pass it to a model that does not need it. ``with_labels``: pass
    optional labels to the model, which computes its own loss; if a target is returned too, only labels in mappings.
    """
    inputs = ForwardInputs(model)
    required, needed = frozenset(inputs.required), inputs.count(with_labels=with_labels and not with_target)
    of_batches = len(required) == 1 and required <= _BATCH_NAMES

    def split(batch: Any) -> SplitBatch:
        if isinstance(batch, Mapping):
            return split_fields(batch, batch)
        if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
            return split_parts(batch)
        fields = {} if of_batches else _fields_of(batch, inputs)
        return split_fields(fields, batch) if fields else as_it_is(batch)

    def as_it_is(batch: Any) -> SplitBatch:
        return SplitBatch((batch,), {}, batch if with_target else None)

    def names_inputs(part: Any) -> bool:
        return isinstance(part, Mapping) and required <= part.keys() and len(part.keys() & inputs.names) > 1

    def by_name(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if inputs.takes_any_name or name in inputs.names}

    def split_fields(fields: Mapping[str, Any], batch: Any) -> SplitBatch:
        label = next((name for name in (target_name, *TARGET_NAMES) if name in fields), None)
        target = (batch if label is None else fields[label]) if with_target else None
        others = {name: value for name, value in fields.items() if name != label}
        if len(others) == 1 and names_inputs(inside := next(iter(others.values()))):
            return SplitBatch((), by_name(inside), target)
        without_label = with_target and not with_labels and label not in required
        kwargs = by_name(others if without_label else fields)
        if len(required) > 1 or (kwargs and required <= kwargs.keys()):
            return SplitBatch((), kwargs, target)
        left = [value for name, value in others.items() if name not in kwargs]
        alone = left if len(left) == 1 else [value for value in left if isinstance(value, torch.Tensor)]
        return SplitBatch(tuple(alone) if len(alone) == 1 and not of_batches else (batch,), kwargs, target)

    def split_parts(batch: Sequence[Any]) -> SplitBatch:
        # A list of mappings is a list of samples (for detectors), unless it is a pair of inputs and targets.
        mappings = needed == 1 and isinstance(batch, list) and all(isinstance(sample, Mapping) for sample in batch)
        samples = mappings and (len(batch) != PAIR or batch[0].keys() == batch[1].keys())
        images = inputs.takes_list and isinstance(batch, list) and all(isinstance(one, torch.Tensor) for one in batch)
        if samples or images or required == {"batch"}:
            return as_it_is(batch)
        parts = tuple(batch)
        first: Any = batch[0] if len(batch) == PAIR else None
        if names_inputs(first):
            return SplitBatch((), by_name(first), parts[1] if with_target else None)
        if not with_target:
            return SplitBatch(parts[:needed], {})
        fewest, most = needed or 1, len(parts) if inputs.places is None else len(inputs.places)
        if isinstance(first, tuple | list) and 1 < fewest <= len(first) <= most:
            parts = (*first, parts[1])
        if len(parts) <= fewest:  # the model needs all parts
            return SplitBatch(parts, {}, parts[0] if len(parts) == 1 else batch)
        count = len(parts) - 1 if len(parts) - 1 <= most else fewest
        return SplitBatch(parts[:count], {}, parts[-1] if count == len(parts) - 1 else parts[count:])

    return split


def _fields_of(batch: Any, inputs: ForwardInputs) -> dict[str, Any]:
    """The inputs and the target in an object's attributes; empty if the model takes the object itself.

    A model with one input gets the object's attribute with that name, or the only tensor besides a target.
    """
    required = inputs.required
    if isinstance(batch, torch.Tensor) or not required:
        return {}
    fields: dict[str, Any] = batch._asdict() if hasattr(batch, "_asdict") else _attributes_of(batch)
    if len(required) > 1 or required[0] in fields:
        found = {name: getattr(batch, name, None) for name in (*inputs.names, *TARGET_NAMES)}
        held = {name: value for name, value in found.items() if value is not None and not callable(value)}
        return held if held.keys() >= set(required) else {}
    tensors = [name for name, value in fields.items() if isinstance(value, torch.Tensor) and name not in TARGET_NAMES]
    return fields if len(tensors) == 1 and not fields.keys().isdisjoint(TARGET_NAMES) else {}
