"""Traffic: the bytes that the operators of a step read and write, estimated, and tensors made on the host."""

from collections.abc import Sequence
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


# What torch.tensor() ends in: its numbers come from Python, and go to the device by a copy wherever it is called.
_FROM_PYTHON = frozenset({"lift_fresh", "lift_fresh_copy", "lift"})


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes of every operator's tensors: inputs read once, outputs and changed tensors written once.

    What a kernel keeps in registers is not counted, what it reads twice is counted once, workspaces are not seen, and
    nothing is known of caches. Views move nothing.

    ``host_made`` counts copies to another device of tensors that were made on the host from nothing, or from such
    tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved_bytes = 0
        self.host_made = 0
        # Kept alive, so that no other tensor gets the id of one of them.
        self._made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and add its bytes."""
        result = func(*args, **(kwargs or {}))
        name, given, made = func.overloadpacket.__name__, _tensors((args, kwargs)), _tensors(result)
        if not (func.is_view or name in _MOVES_NOTHING):
            self.moved_bytes += _moved(func, name, args, kwargs or {}, result)
        if any(id(tensor) in self._made for tensor in given):
            if all(tensor.device.type == "cpu" for tensor in given):  # what it makes on the device are copies
                self.host_made += sum(tensor.device.type != "cpu" for tensor in made)
            elif name == "copy_" and given[0].device.type != "cpu":  # device[...] = host
                self.host_made += 1
        if name not in _FROM_PYTHON and all(id(tensor) in self._made for tensor in given):
            self._made |= {id(tensor): tensor for tensor in made if tensor.device.type == "cpu"}
        return result


def _moved(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    given = _tensors((args, kwargs))
    written_to = [
        args[index] if index < len(args) else kwargs.get(argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    changed = _tensors(written_to)
    made = [tensor for tensor in _tensors(result) if not any(tensor is other for other in given)]
    written = sum(map(_bytes, made)) + sum(map(_bytes, changed))
    if name in _OVERWRITE:
        given = [tensor for tensor in given if not any(tensor is other for other in changed)]
    others = sum(map(_bytes, given[1:]))
    if name in _PICK and given:
        return written + others + min(_bytes(given[0]), written)
    if name in _PLACE and given:
        return others + 2 * min(_bytes(given[0]), others)
    return written + sum(map(_bytes, given))


def _tensors(values: Any) -> list[torch.Tensor]:
    """Every tensor in nested arguments, each once."""
    return list({id(value): value for value in tree_leaves(values) if isinstance(value, torch.Tensor)}.values())


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements; of an expanded one those that there are."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes()) if tensor.layout is torch.strided else 0
