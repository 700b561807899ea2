"""Tensors of the host that a step copies to its device each time, held on the device while the step is captured.

A schedule of noise in a global name, a table in an attribute that is no buffer, a fixed permutation: no CUDA graph can
hold a copy from the host's ordinary memory. While the step runs, copies on the device stand in their places. Before
each replay they get what the host has now, so the step follows a write to these tensors as it does without a graph.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.portable.dependence import computed
from advisor.portable.losses import undone
from advisor.portable.nested import tensors_of
from advisor.portable.places import Place, put_at, value_at

# Larger tensors stay on the host: they are data. Bytes.
LARGEST = 64 * 2**20
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
# A table that the device computes from differs from the host's by rounding.
TOLERANCE = 1e-4


class HostReads(TorchDispatchMode):
    """Collects ``sources``: the tensors of the host that operators of a device read inside this context."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = device.type
        self.sources: list[torch.Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if any(tensor.device.type == self.kind for tensor in tensors_of(result)):
            # A number in a tensor, of no dimensions, operators take as the number that it is.
            read = [one for one in tensors_of([args, kwargs]) if is_on_host(one) and (one.dim() or function in COPIES)]
            self.sources += [one if one._base is None else one._base for one in read]
        return result


class HostConstants:
    """Tensors of the host in some places, and their copies on a device."""

    def __init__(self, places: Iterable[Place], device: torch.device) -> None:
        self.held = [(place, value_at(*place), value_at(*place).to(device)) for place in places]

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Inside this context the copies are in these places; what is written to them is written to the host's too."""
        versions = [twin._version for _, _, twin in self.held]
        for place, _, twin in self.held:
            put_at(*place, twin)
        try:
            yield
        finally:
            for (place, tensor, twin), version in zip(self.held, versions, strict=True):
                if twin._version != version:
                    tensor.copy_(twin)
                if value_at(*place) is twin:
                    put_at(*place, tensor)

    def refresh(self) -> None:
        """Copy what the host has now to the device."""
        for _, tensor, twin in self.held:
            twin.copy_(tensor, non_blocking=True)

    def versions(self) -> list[int]:
        """The numbers of writes to the host's tensors and to their copies."""
        return [one._version for _, *both in self.held for one in both]


def places_on_host(places: Iterable[Place], device: torch.device) -> list[Place]:
    """Those of some places that hold a tensor of the host, where the device is another."""
    return [place for place in places if device.type != "cpu" and is_on_host(value_at(*place))]


def is_on_host(value: Any) -> bool:
    """Whether a value is an ordinary tensor of the host that training does not change."""
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_inference())
        and value.nbytes <= LARGEST
    )


def find_host_constants(
    model: torch.nn.Module, loss: Any, call: Callable[[], Any], places: list[Place], device: torch.device
) -> HostConstants:
    """Find which tensors of the host a call of a model and its loss reads on the device and leaves as they are.

    The call runs as it is, and with copies on the device in these places; both are undone. Where what it reads is not
    in a place, but computed from some, all are tried. No tensor is held where the second call fails, or returns
    something else.
    """
    none = HostConstants((), device)
    if not places:
        return none
    before = [(value_at(*place), value_at(*place)._version, value_at(*place).clone()) for place in places]
    try:
        with undone(model, loss), HostReads(device) as reads:
            expected = computed(model, call)
        sources = set(map(id, reads.sources))
        known = {id(value_at(*place)): place for place in places}
        if not sources:
            return none
        constants = HostConstants(places if sources - known.keys() else [known[one] for one in sources], device)
        versions = constants.versions()
        with undone(model, loss), constants.on_device():
            have = computed(model, call)
        unchanged = constants.versions() == versions
    except Exception:  # code that needs these on the host
        return none
    finally:
        for tensor, version, values in before:
            if tensor._version != version:
                tensor.copy_(values)
    return constants if unchanged and are_close(expected, have) else none


def are_close(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether two lists of tensors have the same values but for rounding."""
    return len(some) == len(others) and all(
        one.shape == other.shape and (one.is_meta or torch.allclose(one, other, TOLERANCE, TOLERANCE, equal_nan=True))
        for one, other in zip(some, others, strict=True)
    )
