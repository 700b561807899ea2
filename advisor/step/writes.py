"""Writes to memory: which tensors an operator writes to and where, and what a try wrote, undone."""

import contextlib
import ctypes
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.step.nested import MOST_HOST_ELEMENTS, tensors_of


def address_of(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins; of one without memory of its own, its number as an object."""
    try:
        return tensor.untyped_storage().data_ptr() or -id(tensor)
    except (RuntimeError, NotImplementedError):
        return -id(tensor)


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    arguments = getattr(getattr(func, "_schema", None), "arguments", ())
    return [
        tensor
        for place, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors_of(args[place] if place < len(args) else kwargs.get(argument.name))
    ]


def writes_to(tensor: torch.Tensor) -> int:
    """The number of writes to a tensor; 0 where nobody counts them."""
    return 0 if tensor.is_inference() else tensor._version


def sum_on_host(tensor: torch.Tensor) -> int:
    """A number that changes when a tensor of the host is written to: of its bytes, or of a large one the writes."""
    if tensor.layout is not torch.strided or tensor.numel() > MOST_HOST_ELEMENTS:
        return writes_to(tensor)
    whole = tensor.detach().contiguous()
    return zlib.crc32(ctypes.string_at(whole.data_ptr(), whole.nbytes))


class KeptMemory(TorchDispatchMode):
    """Copies the memory of tensors before operators inside this context write to it, but for tensors made inside.

    An operator whose schema does not say that it writes, as a normalisation's of its running statistics, goes unseen.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in written_by(func, args, kwargs):
            self._keep(tensor)
        result = func(*args, **kwargs)
        self._made |= set(map(address_of, tensors_of(result))) - set(map(address_of, tensors_of([args, kwargs])))
        return result

    def _keep(self, tensor: torch.Tensor) -> None:
        address = address_of(tensor)
        if address > 0 and address not in self._made and address not in self.kept:
            memory = tensor.untyped_storage()
            self.kept[address] = memory, memory.clone()

    def put_back(self) -> None:
        """Give all memory that was written to what it held."""
        for memory, before in self.kept.values():
            memory.copy_(before)


class WritesUndone:
    """Keeps the contents of tensors and the memory of parameters from before a call, to undo what it writes."""

    def __init__(self, *modules: torch.nn.Module) -> None:
        found = {id(one): one for module in modules for one in module.parameters() if type(one) is torch.nn.Parameter}
        self._placed = [(parameter, address_of(parameter), parameter.data) for parameter in found.values()]
        self.memory = KeptMemory()

    @property
    def any_so_far(self) -> bool:
        """Whether memory was written to, or a parameter was given other memory."""
        return bool(self.memory.kept) or any(address_of(one) != address for one, address, _ in self._placed)

    def put_back(self) -> None:
        """Undo all of it."""
        for parameter, address, data in self._placed:
            if address_of(parameter) != address:
                parameter.data = data
        self.memory.put_back()


@contextlib.contextmanager
def writes_undone(*modules: torch.nn.Module) -> Iterator[WritesUndone]:
    """Undo on leaving what was written inside to tensors from before, and give parameters of modules their memory."""
    writes = WritesUndone(*modules)
    try:
        with writes.memory:
            yield writes
    finally:
        writes.put_back()
