"""Prints of batches, to compare the data of two trials; and the batches that cannot be pinned."""

import dataclasses
import itertools
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from advisor.records import BatchPrint, PartPrint
from advisor.step.layouts import strided_parts

# Elements of a tensor that go into its print, evenly spaced. A count: 16 Ki of them take less than a millisecond.
_SAMPLED = 2**14
_MOST_PARTS = 32
# Parts that are looked through for a tensor. A count.
_MOST_LOOKED_AT = 500
_DEEPEST = 6


def fingerprint_of(batch: Any) -> BatchPrint:
    """The fingerprint of a batch: tensors, arrays, numbers and texts in containers and objects of any class."""
    parts: list[PartPrint] = []
    for place, part in _parts(batch, "", _DEEPEST):
        parts.append(_part_print(place or "batch", part))
        if len(parts) == _MOST_PARTS:
            break
    return BatchPrint(tuple(parts))


def pinning_problem(batch: Any) -> str:
    """The reason that a loader's ``pin_memory`` would reach no tensor of its batches; empty where it reaches one."""
    parts = itertools.islice(_parts(batch, "", _DEEPEST), _MOST_LOOKED_AT)
    tensors = (part for _, part in parts if isinstance(part, torch.Tensor))
    if _is_pinned(batch, _DEEPEST) or next(tensors, None) is None:
        return ""
    return f"a batch is a {type(batch).__name__}, whose tensors pin_memory does not find: give it a method pin_memory()"


def _is_pinned(value: Any, depth: int) -> bool:
    """Whether a DataLoader that pins memory finds a tensor here, or an object that pins itself."""
    if isinstance(value, torch.Tensor) or hasattr(value, "pin_memory"):
        return True
    if not depth or isinstance(value, str | bytes) or not isinstance(value, Mapping | Sequence):
        return False
    parts = value.values() if isinstance(value, Mapping) else value[:_MOST_PARTS]
    return any(_is_pinned(part, depth - 1) for part in parts)


def _parts(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Containers and objects by themselves, for their type, then what they hold."""
    yield place, value
    inner = _held(value) if depth else {}
    for name, held in inner.items():
        yield from _parts(held, f"{place}.{name}" if place else str(name), depth - 1)


def _held(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, torch.Tensor | str | bytes | int | float | bool | type(None) | type):
        return {}
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return dict(enumerate(value[:_MOST_PARTS]))
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return getattr(value, "__dict__", {})


def _part_print(place: str, part: Any) -> PartPrint:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(part, numpy.ndarray) and part.dtype.kind in "biuf":
        part = torch.from_numpy(numpy.ascontiguousarray(part))
    if isinstance(part, torch.Tensor):
        return _tensor_print(place, part)
    # Pinning memory makes lists of tuples: to a loop they are the same.
    name = "sequence" if type(part) in (list, tuple) else type(part).__name__
    plain = isinstance(part, str | bytes | int | float | bool | type(None))
    return PartPrint(place, name, checksum=zlib.crc32(repr(part).encode()) if plain else 0)


@torch.no_grad()
def _tensor_print(place: str, tensor: torch.Tensor) -> PartPrint:
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        checksum = 0
        for part in filter(torch.numel, strided_parts(tensor)):
            checksum = _checksum(_sampled(part), checksum)
        return PartPrint(place, f"{kind} {tensor.layout}".replace("torch.", ""), checksum=checksum)
    shape = tuple(tensor.shape)
    if not tensor.numel():
        return PartPrint(place, kind, shape)
    sample = _sampled(tensor.detach())
    return PartPrint(place, kind, shape, _checksum(sample), _sums(sample) if sample.is_floating_point() else ())


def _checksum(sample: torch.Tensor, before: int = 0) -> int:
    return zlib.crc32(sample.view(torch.uint8).numpy().tobytes(), before)


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """At most ``_SAMPLED`` elements, evenly spaced, in memory of the host that is their own."""
    if not tensor.dim():
        return tensor.reshape(1).cpu().resolve_conj().clone()
    stride = -(-tensor.numel() // _SAMPLED)
    places = torch.arange(0, tensor.numel(), stride)
    picked = tensor[torch.unravel_index(places, tensor.shape)]
    return picked.cpu().resolve_conj().resolve_neg().contiguous()


def _sums(sample: torch.Tensor) -> tuple[float, ...]:
    values = sample.double()
    weights = torch.cos(torch.arange(len(values), dtype=torch.float64))
    sums = (float(torch.linalg.vector_norm(values)), float(values @ weights))
    return sums if all(map(math.isfinite, sums)) else ()
