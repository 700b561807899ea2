"""Bytes that the operators of a step read and write: what a step moves, estimated without counters of the hardware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Allocate, or look at a tensor's description: nothing is moved.
_MOVES_NOTHING = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}
)
# Of their first tensor they read (or, in place, write) only as much as the others are large.
_PICK = frozenset({"embedding", "_embedding_bag", "gather", "index", "index_select", "take"})
_PLACE = frozenset({"index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_"})
# Overwrite what they are given without reading it.
_OVERWRITE = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "_foreach_zero_", "_foreach_copy_"}
)


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes of every operator's tensors: inputs read once, outputs and changed tensors written once.

    What a kernel keeps in registers is not counted, what it reads twice is counted once, workspaces are not seen, and
    nothing is known of caches. Views move nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and add what it moves."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not (func.is_view or name in _MOVES_NOTHING):
            self.moved_bytes += _moved(func, name, args, kwargs or {}, result)
        return result


def _moved(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    given = _tensors((args, kwargs))
    changed = _tensors(_changed_arguments(func, args, kwargs))
    made = [tensor for tensor in _tensors(result) if not any(tensor is other for other in given)]
    written = sum(map(_bytes, made)) + sum(map(_bytes, changed))
    if name in _OVERWRITE:
        given = [tensor for tensor in given if not any(tensor is other for other in changed)]
    if name in _PICK and given:
        others = sum(map(_bytes, given[1:]))
        return written + others + min(_bytes(given[0]), written)
    if name in _PLACE and given:
        others = sum(map(_bytes, given[1:]))
        return others + 2 * min(_bytes(given[0]), others)
    return written + sum(map(_bytes, given))


def _changed_arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    values: list[Any] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        values.append(args[index] if index < len(args) else kwargs.get(argument.name))
    return values


def _tensors(values: Any) -> list[torch.Tensor]:
    """Every tensor in nested arguments, each once."""
    return list(_once(value for value in tree_leaves(values) if isinstance(value, torch.Tensor)))


def _once(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    return {id(tensor): tensor for tensor in tensors}.values()


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements; of an expanded one those that there are."""
    if tensor.layout is not torch.strided:
        return 0
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())
