"""Batches: nested structures of tensors walked, moved and copied, and a batch taken apart into a model's call."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch

from advisor.step.wrappers import unwrapped

RANK_OF_FORMAT = {"channels_last": 4, "channels_last_3d": 5}
# Objects inside objects are searched for tensors to this depth. Levels; a PyTorch Geometric batch needs two.
_DEEPEST = 4
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device})
TARGET_NAMES = ("labels", "label", "targets", "target", "y")
# Names of a model's only parameter where it takes a batch as it is.
_BATCH_NAMES = frozenset({"batch", "batch_dict", "batched_inputs", "data", "data_dict", "inputs", "sample"})
# Elements of a batch that is inputs and a target. A count.
PAIR = 2


# --- nested structures ------------------------------------------------------------------------------------------------


def tensors_of(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor in a nested batch, depth first: in mappings, lists, tuples, and attributes of other objects."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_of(part, depth)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from tensors_of(part, depth)
    elif depth < _DEEPEST:
        for part in _attributes_of(batch).values():
            yield from tensors_of(part, depth + 1)


def attributes_with_tensors(part: Any) -> dict[str, Any]:
    """The attributes of an object that holds tensors, such as a dataclass; empty for anything else."""
    attributes = _attributes_of(part)
    return attributes if next(tensors_of(attributes, 1), None) is not None else {}


def _attributes_of(part: Any) -> dict[str, Any]:
    if type(part) in _PLAIN or isinstance(part, torch.nn.Module | type) or inspect.ismodule(part):
        return {}
    names = [name for kind in type(part).__mro__ for name in _slots_of(kind)]
    slots = {name: getattr(part, name) for name in names if hasattr(part, name)}
    return {**slots, **getattr(part, "__dict__", {})}


def _slots_of(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """``batch`` with every tensor in it replaced by ``function(tensor)``; what holds tensors is copied."""
    return _mapped(function, None, batch, 0)


def _mapped(
    function: Callable[[torch.Tensor], torch.Tensor], of_object: Callable[[Any], Any] | None, part: Any, depth: int
) -> Any:
    """A part of a batch, ``function`` applied to its tensors and ``of_object`` to objects with a method ``to``."""
    if isinstance(part, torch.Tensor):
        return function(part)
    if of_object is not None and type(part) not in _PLAIN and callable(getattr(part, "to", None)):
        return of_object(part)
    if isinstance(part, Mapping):
        return _filled(part, {key: _mapped(function, of_object, value, depth) for key, value in part.items()})
    if isinstance(part, list | tuple):
        changed = [_mapped(function, of_object, value, depth) for value in part]
        return part._make(changed) if hasattr(part, "_make") else type(part)(changed)
    attributes = attributes_with_tensors(part) if depth < _DEEPEST else {}
    if not attributes:
        return part
    new = copy.copy(part)
    own = _attributes_of(new)
    for name, value in attributes.items():
        changed = _mapped(function, of_object, value, depth + 1)
        if isinstance(own[name], Mapping) and own[name] is not value:  # copied with its owner, which it may know
            own[name].update(changed)
        else:
            object.__setattr__(new, name, changed)  # also of a frozen dataclass
    return new


def _filled(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the same class with these values; a plain dict where the class cannot be copied or filled."""
    if type(mapping) is dict:
        return values
    try:
        new: Any = copy.copy(mapping)
        for key, value in values.items():
            new[key] = value
    except (TypeError, NotImplementedError):
        return values
    return new


def mover(
    device: torch.device, *, non_blocking: bool = False, memory_format: str = "none", dtype: str = "none"
) -> Callable[[Any], Any]:
    """A function that moves a batch to ``device``; an object with a ``to`` method is moved by that.

    Tensors of the matching rank get the memory format, and floating-point ones the type, unless it is ``none``.
    """
    rank = RANK_OF_FORMAT.get(memory_format)
    layout = getattr(torch, memory_format) if rank else torch.preserve_format
    wanted = None if dtype == "none" else getattr(torch, dtype)

    def move_tensor(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == rank:
            moved = tensor.to(device, non_blocking=non_blocking, memory_format=layout)
        else:
            moved = tensor.to(device, non_blocking=non_blocking)
        # After the copy: converting on the host is slow, and would copy pinned memory into memory that is not.
        return moved.to(wanted) if wanted is not None and moved.is_floating_point() else moved

    def move_object(part: Any) -> Any:
        moved = (
            part.to(device, non_blocking=True) if non_blocking and _takes_non_blocking(type(part)) else part.to(device)
        )
        moved = part if moved is None else moved  # a ``to`` that works in place
        return map_tensors(convert, moved) if rank is not None or wanted is not None else moved

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == rank:
            tensor = tensor.contiguous(memory_format=layout)
        return tensor.to(wanted) if wanted is not None and tensor.is_floating_point() else tensor

    return lambda batch: _mapped(move_tensor, move_object, batch, 0)


def _takes_non_blocking(kind: type) -> bool:
    try:
        parameters = inspect.signature(kind.to).parameters  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    return "non_blocking" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def copy_of_batch(batch: Any) -> Any:
    """A batch of the same structure with tensors of its own, which need gradients where those of ``batch`` do."""
    return map_tensors(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), batch)


@torch.no_grad()
def copy_into(static: Any, batch: Any) -> None:
    """Copy a batch's tensors into those of a batch of the same structure and shapes; types are converted."""
    for destination, source in zip(tensors_of(static), tensors_of(batch), strict=True):
        # A copy that converts does so on the host first, and waits.
        moved = source if source.dtype == destination.dtype else source.to(destination.device, non_blocking=True)
        destination.copy_(moved, non_blocking=True)


def signature_of(batch: Any) -> tuple[Any, ...]:
    """The structure, shapes, types and Python values of a batch, without the contents of its tensors.

    Batches of equal signatures fit one captured graph.
    """
    found: list[Any] = []
    _add_signature(batch, found, 0)
    return tuple(found)


def _add_signature(part: Any, found: list[Any], depth: int) -> None:
    kind = type(part)
    if isinstance(part, torch.Tensor):
        found += (part.shape, part.dtype, part.requires_grad, part.layout)
    elif kind in _PLAIN:
        found += (kind, part)
    elif isinstance(part, list | tuple):
        found.append(len(part))
        for value in part:
            _add_signature(value, found, depth)
    elif isinstance(part, Mapping):
        found += (kind, *part)
        for value in part.values():
            _add_signature(value, found, depth)
    elif depth >= _DEEPEST:
        found.append(kind)
    elif attributes := attributes_with_tensors(part):
        found += (kind, *attributes)
        for value in attributes.values():
            _add_signature(value, found, depth + 1)
    else:
        found.append(part if kind.__hash__ is not None else object())


# --- a batch as a model's call ----------------------------------------------------------------------------------------


class SplitBatch(NamedTuple):
    """A batch as a model call: positional inputs, keyword inputs, and the target (None when there is none)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None


def splitter(
    model: torch.nn.Module, *, with_target: bool, with_labels: bool = False, target_name: str = ""
) -> Callable[[Any], SplitBatch]:
    """The function that takes this model's batches apart, by the names and the number of its inputs.

    - A mapping becomes keyword arguments. A target among them (``labels``, ``target``, ``y`` ... or ``target_name``)
      is left out where the model does not take it, or can do without it and it is wanted apart.
    - An object with the model's inputs as attributes, such as a batch of graphs, becomes keyword arguments too.
    - Of a tuple or a list the last part is the target, the others are the inputs. Of more parts than the model takes it
      gets those that it needs, and the target is the tuple of the others.
    - Anything else is the one input, and so is a batch for a model whose only parameter is called ``batch``.

    ``with_labels``: the model also gets labels that it can do without, as one that computes its own loss.
    """
    needed = positional_count(model, with_labels=with_labels)
    places, keywords, required = positional_inputs(model), keyword_inputs(model), required_keywords(model)
    of_lists = takes_list(model)

    def split(batch: Any) -> SplitBatch:
        if isinstance(batch, Mapping):
            return _split_mapping(batch, keywords, required, with_target=with_target, target_name=target_name)
        if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
            return split_parts(batch)
        if _names_inputs_as_attributes(batch, required):
            target = next((found for name in TARGET_NAMES if (found := getattr(batch, name, None)) is not None), batch)
            inputs = {name: getattr(batch, name) for name in sorted(required)}
            return SplitBatch((), inputs, target if with_target else None)
        if fields_of := _labelled_fields(batch, required):
            return _split_mapping(fields_of, keywords, required, with_target=with_target, target_name=target_name)
        return SplitBatch((batch,), {}, batch if with_target else None)

    def split_parts(batch: Sequence[Any]) -> SplitBatch:
        whole = SplitBatch((batch,), {}, batch if with_target else None)
        samples = isinstance(batch, list) and needed == 1 and _lists_samples(batch)
        if samples or (of_lists and lists_tensors(batch)) or required == {"batch"}:
            return whole
        inputs, target = batch if len(batch) == PAIR else (None, None)
        if _names_inputs(inputs, keywords, required):
            return SplitBatch((), _taken_of(inputs, keywords), target if with_target else None)
        several = needed is not None and needed > 1 and with_target
        if several and isinstance(inputs, tuple | list) and (needed or 0) <= len(inputs) <= len(places or ()):
            return SplitBatch(tuple(inputs), {}, target)
        return _split_sequence(tuple(batch), needed, None if places is None else len(places), with_target=with_target)

    return split


def _split_sequence(batch: tuple[Any, ...], needed: int | None, most: int | None, *, with_target: bool) -> SplitBatch:
    """The parts that the model takes are its inputs, what is left the target.

    Of more parts than the model could take it gets those that it needs. Where it needs all, the target is the batch.
    """
    if not with_target:
        return SplitBatch(batch if needed is None else batch[:needed], {})
    if len(batch) == 1:
        return SplitBatch(batch, {}, batch[0])
    if len(batch) == needed and not any(isinstance(part, Mapping | tuple | list) for part in batch):
        return SplitBatch(batch, {}, batch)
    inputs = len(batch) - 1 if needed is None or most is None or len(batch) - 1 <= most else needed
    left = batch[inputs:]
    return SplitBatch(batch[:inputs], {}, left[0] if len(left) == 1 else left)


def _split_mapping(
    batch: Mapping[str, Any],
    accepted: frozenset[str] | None,
    required: frozenset[str],
    *,
    with_target: bool,
    target_name: str = "",
) -> SplitBatch:
    """A mapping as keyword inputs and a target: the whole mapping where none is named as one.

    A model of one input, which the mapping does not name, gets the mapping where that input is called a batch, else
    what alone stands beside the target, or is the only tensor there. Texts are left out.
    """
    name = next((name for name in (target_name, *TARGET_NAMES) if name in batch), None)
    target = None if not with_target else batch if name is None else batch[name]
    others = {key: value for key, value in batch.items() if key != name}
    inside = next(iter(others.values())) if len(others) == 1 else None
    if _names_inputs(inside, accepted, required):
        return SplitBatch((), _taken_of(inside, accepted), target)
    if accepted is None:
        return SplitBatch((), others if with_target and name not in required else dict(batch), target)
    if len(required) == 1 and not accepted & others.keys():
        alone = [batch] if required <= _BATCH_NAMES else _input_among(others)
        return SplitBatch(tuple(alone), {}, target) if alone else SplitBatch((), others, target)
    inputs = {key: value for key, value in others.items() if key in accepted or not (with_target or _is_text(value))}
    if name in (required if with_target else accepted):
        inputs[name] = batch[name]
    return SplitBatch((), inputs, target)


def _names_inputs(inputs: Any, keywords: frozenset[str] | None, required: frozenset[str]) -> bool:
    """Whether inputs are a mapping of the model's keywords rather than the value of its one parameter."""
    if not isinstance(inputs, Mapping) or keywords is None or len(inputs) <= 1:
        return False
    return required <= inputs.keys() and len(keywords & inputs.keys()) > 1


def _taken_of(inputs: Any, keywords: frozenset[str] | None) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if keywords is None or key in keywords}


def _lists_samples(batch: Sequence[Any]) -> bool:
    """Whether a batch is a list of its samples, each a mapping, as detectors take it; a pair of mappings is none."""
    mappings = all(isinstance(sample, Mapping) for sample in batch)
    return mappings and (len(batch) != PAIR or batch[0].keys() == batch[1].keys())


def lists_tensors(batch: Any) -> bool:
    """Whether a batch is a list of tensors and of nothing else."""
    return isinstance(batch, list) and all(isinstance(sample, torch.Tensor) for sample in batch)


def takes_list(model: torch.nn.Module) -> bool:
    """Whether a model says, by its first input's annotation, that it takes a list, as detectors take their images."""
    places = positional_inputs(model)
    annotation = places[0].annotation if places else ""
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.removeprefix("typing.").partition("[")[0] in ("list", "List")


def _names_inputs_as_attributes(batch: Any, required: frozenset[str]) -> bool:
    """Whether a batch is an object whose attributes are the inputs of a model; one name may mean anything else."""
    fewest = 1 if required <= set(getattr(batch, "_fields", ())) else PAIR
    if isinstance(batch, torch.Tensor) or len(required) < fewest:
        return False
    values = [getattr(batch, name, None) for name in required]
    found = any(next(tensors_of(value), None) is not None for value in values)
    return found and not any(value is None or callable(value) for value in values)


def _labelled_fields(batch: Any, required: frozenset[str]) -> dict[str, Any]:
    """The fields of a named tuple or a dataclass of one tensor and a target; empty for any other batch."""
    if len(required) != 1 or required <= _BATCH_NAMES:
        return {}
    found: dict[str, Any] = batch._asdict() if hasattr(batch, "_asdict") else vars(batch) if is_dataclass(batch) else {}
    name = next((name for name in TARGET_NAMES if name in found), None)
    others = [key for key, value in found.items() if key != name and isinstance(value, torch.Tensor)]
    return found if name is not None and len(others) == 1 else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and len(value) > 0 and isinstance(value[0], str))


def _input_among(others: Mapping[str, Any]) -> list[Any]:
    """The one input among the values beside a target, in a list: the only value, or the only tensor; else empty."""
    values = list(others.values())
    alone = values if len(values) == 1 else [value for value in values if isinstance(value, torch.Tensor)]
    return alone if len(alone) == 1 else []


def inputs_of(model: torch.nn.Module) -> list[inspect.Parameter] | None:
    """The parameters of the forward pass that the user wrote; None where it has no signature."""
    inner = unwrapped(model)
    try:
        return list(inspect.signature(getattr(inner, "_orig_mod", inner).forward).parameters.values())
    except (TypeError, ValueError):
        return None


def keyword_inputs(model: torch.nn.Module) -> frozenset[str] | None:
    """The keywords that the model is called with; None when it takes any."""
    parameters = inputs_of(model)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def required_keywords(model: torch.nn.Module) -> frozenset[str]:
    """The keywords without which the model cannot be called."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in inputs_of(model) or () if p.kind in kinds and p.default is p.empty)


def positional_inputs(model: torch.nn.Module) -> list[inspect.Parameter] | None:
    """The inputs that a model can be given by position; None when it takes any number."""
    parameters = inputs_of(model)
    if parameters is None or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def positional_count(model: torch.nn.Module, *, with_labels: bool = False) -> int | None:
    """The number of inputs that a model needs, at least one; None when it takes any number.

    ``with_labels`` counts labels too that the model can do without.
    """
    places = positional_inputs(model)
    if places is None:
        return None
    return max(1, sum(p.default is p.empty or (with_labels and p.name in TARGET_NAMES) for p in places))


def takes_labels(model: torch.nn.Module) -> bool:
    """Whether a model can be given its target beside its inputs, as ``forward(idx, targets=None)``."""
    return positional_count(model) != positional_count(model, with_labels=True)
