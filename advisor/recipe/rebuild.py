"""Rebuilds a user's batches with one thing changed; and an optimizer's options.

Nothing here changes the object it is given, and torch is imported only when a function runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advisor.errors import RefusedError

if TYPE_CHECKING:
    from torch import Tensor

# Parts of a batch that say where samples begin in another part.
_NAMES_OF_PLACES = ("offset", "cu_seq", "cumulative", "row_splits", "edge_index")


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a ValueError, with which ``step/`` says why it changes nothing, into a RefusedError."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:  # as one of a trace, which is about the model and told as such
            raise
        raise RefusedError(str(error)) from error


def batch_size_of(batch: Any) -> int | None:
    """The first dimension of the first tensor in a batch, in the order of its nesting; None without one."""
    return next((tensor.shape[0] for tensor in _tensors(batch) if tensor.dim() > 0), None)


def resize_batch(batch: Any, size: int) -> Any:
    """A batch of ``size`` samples: every tensor whose first dimension is the batch size is repeated or cut.

    What holds tensors is copied: nested tuples, lists, mappings and objects. Raises ValueError when no dimension of its
    tensors is sure to count samples, or ``size`` is not positive.
    """
    from advisor.step.batch import map_tensors

    if problem := resizing_problem(batch):
        raise ValueError(problem)
    present = batch_size_of(batch) or 1
    if size < 1:
        raise ValueError(f"a batch cannot have {size} samples")
    return map_tensors(lambda tensor: _resized_tensor(tensor, present, size), batch)


def resizing_problem(batch: Any) -> str:
    """The reason that a batch cannot be resized: no dimension surely counts samples. Empty where it can."""
    from torch.nn.utils.rnn import PackedSequence

    tensors = [tensor for tensor in _tensors(batch) if tensor.dim() > 0]
    sizes = list(dict.fromkeys(tensor.shape[0] for tensor in tensors if _is_plain(tensor)))
    if not sizes or not sizes[0]:
        return "the batch has no tensor with samples, so it cannot be resized"
    if len(sizes) > 1 and sizes[1:] != [1]:  # one row is for all samples alike
        several = ", ".join(map(str, sizes[:4]))
        return f"the batch cannot be resized: the first dimensions of its tensors differ ({several})"
    if not all(map(_is_plain, tensors)) or isinstance(batch, PackedSequence):
        return "the batch cannot be resized: its samples are packed, sparse or nested"
    if named := _named_as_places(batch):
        return f"the batch cannot be resized: {named!r} says where in another tensor samples begin"
    if any(len(part) == sizes[0] for part in _plain_lists(batch)):
        return f"the batch cannot be resized: it holds a list of {sizes[0]} values that are no tensors"
    return ""


def _is_plain(tensor: Tensor) -> bool:
    import torch

    return tensor.layout is torch.strided and not tensor.is_nested


def _named_as_places(batch: Any) -> str:
    """The name of a part that says where samples begin, as EmbeddingBag, sparse matrices and attention have them."""
    for name, part in _named_parts(batch):
        lower = str(name).lower()
        if any(word in lower for word in _NAMES_OF_PLACES) or lower.endswith("ptr"):
            return str(name)
        if inner := _named_as_places(part):
            return inner
    return ""


def _named_parts(batch: Any) -> Sequence[tuple[Any, Any]]:
    if isinstance(batch, Mapping):
        return list(batch.items())
    fields = getattr(batch, "_fields", None) if isinstance(batch, tuple) else None
    names: Sequence[Any] = fields or [""] * len(_parts(batch))
    if _is_dataclass_instance(batch):
        names = [field.name for field in dataclasses.fields(batch)]
    return list(zip(names, _parts(batch), strict=True))


def _plain_lists(batch: Any) -> Iterator[Sequence[Any]]:
    if isinstance(batch, list | tuple) and batch and all(isinstance(part, str | int | float) for part in batch):
        yield batch
    for part in _parts(batch):
        yield from _plain_lists(part)


def _tensors(batch: Any) -> Iterator[Tensor]:
    from torch import Tensor

    if isinstance(batch, Tensor):
        yield batch
        return
    for part in _parts(batch):
        yield from _tensors(part)


def _parts(batch: Any) -> Sequence[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, tuple | list):
        return batch
    if _is_dataclass_instance(batch):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return ()


def _resized_tensor(tensor: Tensor, present: int, size: int) -> Tensor:
    """Concatenation and cloning keep the memory format, which indexing would not."""
    import torch

    if tensor.dim() == 0 or tensor.shape[0] != present or size == present:
        return tensor
    data = tensor.detach()
    resized = data[:size].clone() if size < present else torch.cat([data] * -(-size // present))[:size]
    return resized.requires_grad_(tensor.requires_grad)


def _is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
