"""Nested structures of tensors, such as batches and outputs: walked, changed, moved, compared and copied.

Walked are mappings, lists, tuples, dataclasses, and objects of other classes whose attributes hold tensors.
"""

import copy
import enum
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

RANK_OF_FORMAT = {"channels_last": 4, "channels_last_3d": 5}
# Attributes of attributes are searched for tensors this deep. Levels; a PyTorch Geometric batch needs two.
DEEPEST = 4
# Plain values, which two batches can be compared by.
PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
# Tensors that stay on the host are compared by value up to this size. Elements.
MOST_HOST_ELEMENTS = 65_536
# Of these there is one object for each value.
UNIQUE = (type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, torch.dtype, torch.layout)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """``batch`` with every tensor in it replaced by ``function(tensor)``; containers of tensors are copied."""
    return mapped(function, None, batch, {})


def mapped(
    function: Callable[[torch.Tensor], torch.Tensor], own: Callable[[Any], Any] | None, part: Any, done: dict[int, Any]
) -> Any:
    """A part of a batch with ``function`` applied to its tensors, and ``own`` to the objects that have a ``to``."""
    if isinstance(part, torch.Tensor):
        return function(part)
    if type(part) in PLAIN:
        return part
    if own is not None and callable(getattr(part, "to", None)):
        return own(part)
    if isinstance(part, Mapping):
        values = {key: mapped(function, own, value, done) for key, value in part.items()}
        return values if type(part) is dict else filled(part, values)
    if isinstance(part, list | tuple):
        changed = [mapped(function, own, value, done) for value in part]
        return part._make(changed) if hasattr(part, "_make") else type(part)(changed)
    if id(part) not in done:
        done[id(part)] = part  # an object that refers to itself
        if attributes_with_tensors(part):
            done[id(part)] = new = copy.copy(part)
            before = attributes_of(part)
            for name, value in attributes_of(new).items():
                set_part(new, name, value, mapped(function, own, value, done), shared=value is before.get(name))
    return done[id(part)]


def filled(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the same class and with the same attributes; a plain dict where that cannot be copied or changed."""
    try:
        new: Any = copy.copy(mapping)
        for key, value in values.items():
            new[key] = value
    except (TypeError, NotImplementedError):
        return values
    return new


def set_part(new: Any, name: str, present: Any, value: Any, *, shared: bool) -> None:
    """Set an attribute of a copied object, also of a frozen one; a mapping that was copied with it is filled in place.

    Such a mapping may know its owner, as the stores of a PyTorch Geometric batch do.
    """
    if isinstance(present, MutableMapping) and not shared:
        for key, part in value.items():
            present[key] = part
    else:
        object.__setattr__(new, name, value)


def attributes_of(part: Any) -> dict[str, Any]:
    """The attributes of an object that could be a batch, or a part of one; empty for anything else."""
    if isinstance(part, (*UNIQUE, torch.nn.Module, types.ModuleType)):
        return {}
    names = [name for kind in type(part).__mro__ for name in slots_of(kind)]
    slots = {name: getattr(part, name) for name in names if hasattr(part, name)}
    return {**slots, **getattr(part, "__dict__", {})}


def slots_of(kind: type) -> list[str]:
    """The names in a class's own slots."""
    slots = vars(kind).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]


def attributes_with_tensors(part: Any, seen: frozenset[int] = frozenset()) -> dict[str, Any]:
    """The attributes of an object, of a dataclass or of another class; empty when no tensor is found in them."""
    if len(seen) >= DEEPEST or id(part) in seen:
        return {}
    attributes = attributes_of(part)
    inside = seen | {id(part)}
    return attributes if any(True for value in attributes.values() for _ in tensors_of(value, inside)) else {}


def tensors_of(batch: Any, inside: frozenset[int] = frozenset()) -> Iterator[torch.Tensor]:
    """Every tensor in a nested batch, depth first. ``inside`` are the objects around it, which are not entered."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif type(batch) in PLAIN:
        return
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part, inside)
    elif len(inside) < DEEPEST and id(batch) not in inside:
        for part in attributes_of(batch).values():
            yield from tensors_of(part, inside | {id(batch)})


def mover(
    device: torch.device, *, non_blocking: bool = False, memory_format: str = "none", dtype: str = "none"
) -> Callable[[Any], Any]:
    """A function that moves a batch to ``device``; an object with a ``to`` method is moved by that, as in a plain loop.

    Tensors of the matching rank get the memory format, and floating-point ones the type, unless it is ``none``.
    """
    rank = RANK_OF_FORMAT.get(memory_format)
    layout = getattr(torch, memory_format) if rank else torch.preserve_format
    wanted = None if dtype == "none" else getattr(torch, dtype)

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == rank:
            tensor = tensor.contiguous(memory_format=layout)
        return tensor.to(wanted) if wanted is not None and tensor.is_floating_point() else tensor

    def move_tensor(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == rank:
            moved = tensor.to(device, non_blocking=non_blocking, memory_format=layout)
        else:
            moved = tensor.to(device, non_blocking=non_blocking)
        # After the copy: converting on the host is slow, and would copy pinned memory into memory that is not.
        return moved.to(wanted) if wanted is not None and moved.is_floating_point() else moved

    def move_object(part: Any) -> Any:
        moved = (
            part.to(device, non_blocking=True) if non_blocking and takes_non_blocking(type(part)) else part.to(device)
        )
        moved = part if moved is None else moved  # a ``to`` that works in place
        return map_tensors(convert, moved) if rank is not None or wanted is not None else moved

    return lambda batch: mapped(move_tensor, move_object, batch, {})


def takes_non_blocking(kind: type) -> bool:
    """Whether the ``to`` of a class takes ``non_blocking``."""
    try:
        parameters = inspect.signature(kind.to).parameters  # type: ignore[attr-defined]
    except (TypeError, ValueError, AttributeError):
        return False
    return "non_blocking" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def copy_of_batch(batch: Any) -> Any:
    """A batch of the same structure with tensors of its own, which need gradients where those of ``batch`` do."""
    return map_tensors(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), batch)


@torch.no_grad()
def copy_into(static: Any, batch: Any) -> None:
    """Copy a batch's tensors into the tensors of a batch of the same structure and shapes; types are converted."""
    for destination, source in zip(tensors_of(static), tensors_of(batch), strict=True):
        # A copy that converts does so on the host first, and waits.
        moved = source if source.dtype == destination.dtype else source.to(destination.device, non_blocking=True)
        destination.copy_(moved, non_blocking=True)


def signature_of(batch: Any) -> tuple[Any, ...]:
    """The signature of a batch: structure, shapes, types and Python values, without the contents of its tensors.

    Batches of equal signatures fit one captured graph. What cannot be compared makes a signature that equals no other.
    """
    found: list[Any] = []
    add_signature(batch, found, frozenset())
    return tuple(found)


def add_signature(part: Any, found: list[Any], inside: frozenset[int]) -> None:
    """Append the structure of a part of a batch, without its tensors' contents. ``inside``: the enclosing objects."""
    kind = type(part)
    if kind is torch.Tensor or isinstance(part, torch.Tensor):
        found += (part.shape, part.dtype, part.requires_grad)
        if part.layout is not torch.strided:
            found.append(object())  # copying into a sparse tensor gives it other memory
    elif kind in PLAIN:
        found += (kind, part)
    elif isinstance(part, list | tuple):
        found.append(len(part))
        for value in part:
            add_signature(value, found, inside)
    elif isinstance(part, Mapping):
        found += (kind, *part)
        for value in part.values():
            add_signature(value, found, inside)
    elif id(part) not in inside:
        add_signature_of_object(part, found, inside)


def add_signature_of_object(part: Any, found: list[Any], inside: frozenset[int]) -> None:
    """Append an object's signature: its attributes where they hold tensors, else itself where it can be compared."""
    attributes = attributes_with_tensors(part, inside)
    found += (type(part), *attributes)
    if attributes:
        for value in attributes.values():
            add_signature(value, found, inside | {id(part)})
    elif isinstance(part, UNIQUE) or is_comparable(type(part)):
        found.append(part)
    else:
        found.append(object())  # equals nothing but itself


def is_comparable(kind: Any) -> bool:
    """Whether a class says when two of its objects are equal, and its objects stay as they are."""
    return kind.__eq__ is not object.__eq__ and kind.__hash__ is not None


def host_places(batch: Any, device: torch.device) -> tuple[int, ...]:
    """Indices of the moved batch's tensors that stay on the host: a graph reads those only while it is captured."""
    return tuple(place for place, tensor in enumerate(tensors_of(batch)) if tensor.device.type != device.type)


def values_at(batch: Any, places: tuple[int, ...]) -> list[Any]:
    """The contents of these tensors; for a tensor too large to compare, an object that equals nothing."""
    if not places:
        return []
    tensors = list(tensors_of(batch))
    return [tensors[p].tolist() if tensors[p].numel() <= MOST_HOST_ELEMENTS else object() for p in places]
