"""Rebuilding a user's objects with one thing changed, DataLoaders and batches; and what an optimizer offers.

Nothing here changes the object it is given, and torch is imported only when a function runs.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

# What a DataLoader keeps when it is rebuilt, whatever its batches are made by.
_KEPT = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
)
_NEED_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}
_BATCHING = ("batch_size", "drop_last", "sampler", "shuffle")


def loader_with(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A new, plain ``DataLoader`` over the same dataset, with these constructor arguments changed.

    Sampler, batch sampler, collate function, generator and worker options are kept. Without workers, the options that
    need them are dropped. Raises ValueError when ``batch_size`` is changed and the loader does not form its batches
    itself (it has a batch sampler of its own, or ``batch_size=None``).
    """
    from torch.utils.data import DataLoader

    _check_batch_size(loader, changes)
    options = {name: getattr(loader, name) for name in _KEPT}
    options |= _batching_of(loader, changes)
    options |= _recent_options_of(loader)
    options |= changes
    if options["num_workers"] == 0:
        options |= _NEED_WORKERS
    dataset = options.pop("dataset", loader.dataset)
    return DataLoader(dataset, **options)


def loader_code(**changes: object) -> str:
    """Python that rebinds ``loader`` as :func:`loader_with` does, without importing this package."""
    if changes.get("num_workers") == 0:
        changes = {**changes, **_NEED_WORKERS}
    kept = [name for name in _KEPT if name not in changes]
    lines = [
        "kept = (",
        *(f'    "{name}",' for name in kept),
        ")",
        "options = {name: getattr(loader, name) for name in kept}",
        "if loader.batch_size is None and loader.batch_sampler is not None:",
        '    options["batch_sampler"] = loader.batch_sampler',
        "else:",
        '    options["batch_size"] = loader.batch_size',
        '    options["drop_last"] = loader.drop_last',
        "    if not isinstance(loader.dataset, torch.utils.data.IterableDataset):",
        '        options["sampler"] = loader.sampler',
        *(f'options["{name}"] = {value!r}' for name, value in changes.items()),
        "loader = torch.utils.data.DataLoader(loader.dataset, **options)",
    ]
    return "\n".join(lines) + "\n"


def worker_code(**changes: object) -> str:
    """As :func:`loader_code`, for options that only a loader with workers takes."""
    return "if loader.num_workers:\n" + textwrap.indent(loader_code(**changes), "    ")


def _check_batch_size(loader: DataLoader[Any], changes: Mapping[str, Any]) -> None:
    if "batch_size" not in changes or loader.batch_size is not None:
        return
    if _has_own_batches(loader):
        raise ValueError("the loader has a batch sampler of its own: change the batch size there")
    raise ValueError("the loader does not form batches (batch_size=None): change the batch size in the dataset")


def _has_own_batches(loader: DataLoader[Any]) -> bool:
    return loader.batch_size is None and loader.batch_sampler is not None


def _batching_of(loader: DataLoader[Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    from torch.utils.data import IterableDataset

    if "batch_sampler" in changes:
        return {}
    if _has_own_batches(loader) and not any(name in changes for name in _BATCHING):
        return {"batch_sampler": loader.batch_sampler}
    options: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    resampled = "sampler" in changes or "shuffle" in changes
    if not resampled and not isinstance(loader.dataset, IterableDataset):
        options["sampler"] = loader.sampler
    return options


def _recent_options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Options that not every version of PyTorch has, where they differ from their defaults."""
    options: dict[str, Any] = {}
    if getattr(loader, "pin_memory_device", ""):
        options["pin_memory_device"] = loader.pin_memory_device
    if not getattr(loader, "in_order", True):
        options["in_order"] = False
    return options


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


def optimizer_implementations(cls: type) -> tuple[str, ...]:
    """The implementations that an optimizer class offers, out of ``for-loop``, ``foreach`` and ``fused``.

    A class with a step of its own offers that one only, whatever arguments it takes.
    """
    from advisor.portable.optimizer_options import class_of_step

    base = class_of_step(cls)
    accepted = inspect.signature(base).parameters if base is not None else ()
    return ("for-loop", *(name for name in ("foreach", "fused") if name in accepted))


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

    Nested tuples, lists, mappings, dataclasses and named tuples are rebuilt; anything else is passed on as it is.
    Raises ValueError when the batch has no tensor with samples, or ``size`` is not positive.
    """
    present = batch_size_of(batch)
    if not present:
        raise ValueError("the batch has no tensor with samples, so it cannot be resized")
    if size < 1:
        raise ValueError(f"a batch cannot have {size} samples")
    return _resized(batch, present, size)


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


def _resized(part: Any, present: int, size: int) -> Any:
    from torch import Tensor

    if isinstance(part, Tensor):
        return _resized_tensor(part, present, size)
    if isinstance(part, Mapping):
        return _filled(part, {key: _resized(value, present, size) for key, value in part.items()})
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(_resized(value, present, size) for value in part))
    if isinstance(part, tuple | list):
        values = [_resized(value, present, size) for value in part]
        return values if isinstance(part, list) else tuple(values)
    if _is_dataclass_instance(part):
        return _resized_dataclass(part, present, size)
    return part


def _resized_tensor(tensor: Tensor, present: int, size: int) -> Tensor:
    """Concatenation and cloning keep the memory format, which indexing would not."""
    import torch

    if tensor.dim() == 0 or tensor.shape[0] != present or size == present:
        return tensor
    data = tensor.detach()
    resized = data[:size].clone() if size < present else torch.cat([data] * -(-size // present))[:size]
    return resized.requires_grad_(tensor.requires_grad)


def _filled(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the same type; a read-only one becomes a dict."""
    if not isinstance(mapping, MutableMapping):
        return values
    filled = copy.copy(mapping)
    for key, value in values.items():
        filled[key] = value
    return filled


def _is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _resized_dataclass(part: Any, present: int, size: int) -> Any:
    """Fields are set on a copy, so that frozen classes and fields outside ``__init__`` work too."""
    resized = copy.copy(part)
    for field in dataclasses.fields(part):
        object.__setattr__(resized, field.name, _resized(getattr(part, field.name), present, size))
    return resized
