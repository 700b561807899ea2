"""Rebuilds a user's DataLoaders and batches with one thing changed; and an optimizer's options.

Nothing here changes the object it is given, and torch is imported only when a function runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import textwrap
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, cast

from advisor.errors import RefusedError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

# Longest line of code for the user. Characters; it is indented further in an exported file.
_CODE_WIDTH = 100
# Parts of a batch that say where samples begin in another part.
_NAMES_OF_PLACES = ("offset", "cu_seq", "cumulative", "row_splits", "edge_index")


def loader_with(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A copy of a loader, of the same class and with all that it holds, with these constructor arguments changed.

    Without workers, the options that need them are dropped. Raises RefusedError, with the reason, where the copy would
    not yield the same samples, or the class takes no notice of a change.
    """
    from advisor.step import loaders

    with refusing():
        return cast("DataLoader[Any]", loaders.loader_with(loader, **changes))


def loader_with_workers(loader: DataLoader[Any], num_workers: int) -> DataLoader[Any]:
    """The loader with this many workers, which live on between epochs where the dataset permits it."""
    from advisor.step import loaders

    with refusing():
        return cast("DataLoader[Any]", loaders.with_workers(loader, num_workers))


def loader_code(change: str = "loader_with", *, when: str = "", also: Sequence[str] = (), **changes: Any) -> str:
    """Python that rebinds ``loader`` as a function of ``step/loaders.py`` does, without importing this package.

    What is refused there leaves the loader as it is, with a warning. ``when`` is a condition, and ``also`` names
    further modules of ``step/`` that the changes need.
    """
    from advisor.step import source

    arguments = [f"{name}={value!r}" for name, value in changes.items()]
    plainly = f"where you make the loader: DataLoader({', '.join(['...', *arguments])})"
    comment = textwrap.fill(plainly, _CODE_WIDTH, initial_indent="# ", subsequent_indent="#     ")
    call = _call_of("adjusted", [change, "loader", *arguments])
    if when:
        call = f"if {when}:\n{textwrap.indent(call, '    ')}"
    return f"{comment}\n{source('loaders', *also)}\n\n{call}"


def _call_of(function: str, arguments: Sequence[str]) -> str:
    """A line that rebinds ``loader``, or one for each argument, as formatters would have it at any indentation."""
    line = f"loader = {function}({', '.join(arguments)})\n"
    if len(line) <= _CODE_WIDTH:
        return line
    return f"loader = {function}(\n{''.join(f'    {argument},{chr(10)}' for argument in arguments)})\n"


def worker_code(*, also: Sequence[str] = (), **changes: Any) -> str:
    """Code that sets options which only a loader with workers takes."""
    return loader_code(when="loader.num_workers", also=also, **changes)


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a ValueError, with which ``step/`` says why it changes nothing, into a RefusedError."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:  # as one of a trace, which is about the model and told as such
            raise
        raise RefusedError(str(error)) from error


def expected_state_bytes(optimizer: Optimizer) -> int:
    """Bytes of state that an optimizer keeps once it has made a step; 0 where that cannot be told.

    A copy over tensors without contents makes one step, so shapes and options count and nothing is computed.
    """
    import torch

    slow: dict[str, Any] = {name: False for name in ("foreach", "fused", "capturable") if name in optimizer.defaults}
    try:
        slow["lr"] = float(optimizer.defaults["lr"])
        groups = [
            {**group, **slow, "params": [_without_contents(p) for p in group["params"] if p.requires_grad]}
            for group in optimizer.param_groups
        ]
        stand_in: Any = type(optimizer)(groups, **slow)
        stand_in.step()
    except Exception:  # any class may be given, and some ask for values or closures: then it is not known
        return 0
    kept = [value for state in stand_in.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def _without_contents(parameter: Tensor) -> Tensor:
    """A parameter of the same shape and type with a gradient, neither of which has any contents."""
    import torch

    empty = torch.empty_like(parameter, device="meta", requires_grad=True)
    empty.grad = torch.empty_like(empty)
    return empty


def implementations_of(optimizer: Optimizer, sparse: Set[Tensor]) -> tuple[str, ...]:
    """The implementations of an optimizer's class that can update its parameters.

    ``sparse`` are those whose gradients are sparse: fused steps take none.
    """
    from advisor.step.optimizer_options import flags_of, implementations_of_class, torch_class

    offered, base = implementations_of_class(type(optimizer)), torch_class(optimizer)
    if "fused" not in offered or base is None:
        return offered
    unfused = tuple(name for name in offered if name != "fused")
    if any(parameter in sparse for group in optimizer.param_groups for parameter in group["params"]):
        return unfused
    try:
        for group in optimizer.param_groups:
            flags_of(base, {**group, "fused": True, "foreach": False})
    except (RuntimeError, TypeError):  # as ``set_options`` would refuse it: complex parameters, say
        return unfused
    return offered


def optimizer_implementation(optimizer: Optimizer) -> str:
    """The implementation that an optimizer was told to use; ``default`` when PyTorch chooses."""
    group = optimizer.param_groups[0] if optimizer.param_groups else optimizer.defaults
    fused, foreach = group.get("fused"), group.get("foreach")
    if fused:
        return "fused"
    if foreach:
        return "foreach"
    return "for-loop" if foreach is False else "default"


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
