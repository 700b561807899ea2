"""Batches: walking nested structures of tensors, moving them, and splitting them into a model's inputs and a target."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

TARGET_NAMES = ("labels", "label", "targets", "target", "y")
_RANK_OF_FORMAT = {"channels_last": 4, "channels_last_3d": 5}


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """``batch`` with every tensor replaced by ``function(tensor)``; tuples, lists, dicts and dataclasses are walked.

    An object of another kind that has a ``to`` method is returned as it is.
    """
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        mapped = {key: map_tensors(function, value) for key, value in batch.items()}
        return mapped if type(batch) is dict else _like_mapping(batch, mapped)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(function, value) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: map_tensors(function, getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a nested batch, depth first."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_of(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from tensors_of(getattr(batch, field.name))


def mover(
    device: torch.device, *, non_blocking: bool = False, memory_format: str = "none", dtype: str = "none"
) -> Callable[[Any], Any]:
    """A function that moves a batch to ``device``.

    Its tensors of the matching rank get the memory format, and its floating-point ones the type, unless it is ``none``.
    """
    rank = _RANK_OF_FORMAT.get(memory_format)
    layout = getattr(torch, memory_format) if rank else None
    wanted = None if dtype == "none" else getattr(torch, dtype)

    def move_tensor(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == rank:
            moved = tensor.to(device, non_blocking=non_blocking, memory_format=layout)
        else:
            moved = tensor.to(device, non_blocking=non_blocking)
        # After the copy: converting on the host is slow, and would copy pinned memory into memory that is not.
        return moved.to(wanted) if wanted is not None and moved.is_floating_point() else moved

    return lambda batch: map_tensors(move_tensor, batch)


def copy_into(static: Any, batch: Any) -> None:
    """Copy a batch's tensors into the tensors of a batch of the same structure and shapes; types are converted."""
    for destination, source in zip(tensors_of(static), tensors_of(batch), strict=True):
        # A copy that converts does so on the host first, and waits.
        moved = source if source.dtype == destination.dtype else source.to(destination.device, non_blocking=True)
        destination.copy_(moved, non_blocking=True)


def signature_of(batch: Any) -> tuple[Any, ...]:
    """Shapes and types of a batch's tensors: equal signatures fit one captured graph."""
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors_of(batch))


def describe(batch: Any) -> str:
    """A batch as a person reads it, for example ``float32[64, 3, 224, 224], int64[64]``."""
    texts = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors_of(batch)]
    shown = ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")
    return shown or type(batch).__name__


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A batch as a model call: positional inputs, keyword inputs, and the target (None when there is none)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None


def splitter(model: nn.Module, *, with_target: bool) -> Callable[[Any], SplitBatch]:
    """How this model's batches are split.

    A mapping becomes keyword arguments, less a target that the model does not take, or that is wanted apart and the
    model can do without; of a tuple or list the last element is the target when ``with_target``, or when the model's
    ``forward`` takes fewer inputs than the batch has; anything else is the one input.
    """
    accepted = _positional_parameters(model)
    keywords, required = _keyword_parameters(model), _required_keywords(model)

    def split(batch: Any) -> SplitBatch:
        if isinstance(batch, Mapping):
            return _split_mapping(batch, keywords, required, with_target=with_target)
        if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
            return _split_sequence(tuple(batch), accepted, with_target=with_target)
        return SplitBatch((batch,), {}, batch if with_target else None)

    return split


def has_target(batch: Any, model: nn.Module) -> bool:
    """Whether a batch carries a target beside the model's inputs."""
    if isinstance(batch, Mapping):
        return any(name in batch for name in TARGET_NAMES)
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return len(batch) > _required_parameters(model)
    return False


def _split_mapping(
    batch: Mapping[str, Any], accepted: frozenset[str] | None, required: frozenset[str], *, with_target: bool
) -> SplitBatch:
    name = next((name for name in TARGET_NAMES if name in batch), None)
    if name is None:
        return SplitBatch((), dict(batch))
    inputs = {key: value for key, value in batch.items() if key != name}
    if with_target:
        return SplitBatch((), dict(batch) if name in required else inputs, batch[name])
    return SplitBatch((), dict(batch) if accepted is None or name in accepted else inputs)


def _split_sequence(batch: tuple[Any, ...], accepted: int | None, *, with_target: bool) -> SplitBatch:
    if len(batch) == 1:
        return SplitBatch(batch, {}, batch[0] if with_target else None)
    if with_target:
        return SplitBatch(batch[:-1], {}, batch[-1])
    return SplitBatch(batch[:accepted] if accepted is not None else batch, {})


def _parameters(model: nn.Module) -> list[inspect.Parameter] | None:
    try:
        # A compiled model's own forward takes anything.
        return list(inspect.signature(getattr(model, "_orig_mod", model).forward).parameters.values())
    except (TypeError, ValueError):
        return None


def _keyword_parameters(model: nn.Module) -> frozenset[str] | None:
    """The keywords that the model is called with; None when it takes any."""
    parameters = _parameters(model)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def _required_keywords(model: nn.Module) -> frozenset[str]:
    """The keywords without which the model cannot be called."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in _parameters(model) or () if p.kind in kinds and p.default is p.empty)


def _positional(model: nn.Module) -> list[inspect.Parameter] | None:
    parameters = _parameters(model)
    if parameters is None or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _positional_parameters(model: nn.Module) -> int | None:
    """How many inputs the model is called with: its required ones, at least one; None when it takes any number."""
    positional = _positional(model)
    return None if positional is None else max(1, sum(p.default is p.empty for p in positional))


def _required_parameters(model: nn.Module) -> int:
    return _positional_parameters(model) or 1


def _like_mapping(original: Any, mapped: dict[Any, Any]) -> Any:
    """A mapping of the original's class (a BatchEncoding, say), or a plain dict when it is made another way."""
    try:
        return type(original)(mapped)
    except TypeError:
        return mapped
