"""Tensors that a step makes on the host from Python's numbers and sends to its device, held there for a capture.

``torch.tensor(0.5, device=x.device)`` and ``torch.arange(n).to(x.device)`` are such. No CUDA graph can hold a copy from
the host's ordinary memory. The numbers are as fixed as any others in a captured step, so the graph copies from tensors
that are on the device already.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from advisor.step.capturing import LARGEST
from advisor.step.nested import tensors_of
from advisor.step.places import is_plain
from advisor.step.writes import written_by

# Calls that make a tensor of Python's numbers, which may copy it to a device without an operator that could be watched.
MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
INDEXED = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
# Calls after which Python has the memory of a tensor, without an operator that could be watched.
TAKING_MEMORY = (
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
)
TAKES_NUMBER = torch.ops.aten._local_scalar_dense.default
# Operators of the device that copy tensors of the host to it before they read them.
TO_DEVICE = torch.ops.aten._to_copy.default
SENDING = (
    TO_DEVICE,
    torch.ops.aten.copy_.default,
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
    torch.ops.aten.where.self,
)
# Operators that give a tensor contents from elsewhere.
FROM_ELSEWHERE = ("set_", "from_file", "lift_fresh", "lift")
# Where the contents of a tensor come from: numbers in the code, or also the host's random generators.
NUMBERS, DRAWN = "numbers", "drawn"
# What PyTorch says of a copy from the host in a capture; before 2.10 it said the second of whatever needs the host.
REFUSED = ("Cannot copy between CPU and CUDA tensors", "operation not permitted when stream is capturing")


class MadeOnHost:
    """The tensors that a step makes on the host from numbers and sends to its device.

    ``held`` are copies on the device, by their values. ``sent`` are the values in the order in which they were sent in
    the last look. ``knows_others``: in that look Python got values of the host's tensors that come from elsewhere.
    Numbers may be such values then, which nobody watches, and nothing is held.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.forget()

    def forget(self) -> None:
        """Hold nothing any more."""
        self.held: dict[Any, torch.Tensor] = {}
        self.sent: list[Any] = []
        self.knows_others = False
        self._origins = Origins()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at a step that runs in this context, and hold on the device what it sends there."""
        self.forget()
        if self.device.type == "cpu":
            yield
            return
        with self._watching(looks=True):
            yield
        if self.knows_others:
            self.held = {}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """In this context what a step makes and sends comes from the device, where its values are held."""
        if not self.held:
            yield
            return
        with self._watching(looks=False):
            yield

    @contextmanager
    def _watching(self, *, looks: bool) -> Iterator[None]:
        self._origins = origins = Origins()
        try:
            with scripts_as_python(), _Calls(self.device, origins), _Operators(self, origins, looks=looks):
                yield
        finally:
            self._origins = Origins()  # the other one keeps the memory of all that was made
        self.knows_others = origins.asked_for_others

    def sends(self, function: Any, tensor: torch.Tensor) -> bool:
        """Whether an operator that sends tensors of the host sends one that the step made from numbers."""
        return function in SENDING and self._origins.of(tensor) == NUMBERS and can_be_held(tensor)

    def on_device(self, tensor: torch.Tensor, *, looks: bool) -> torch.Tensor:
        """Return the copy on the device of a tensor, made in a look; the tensor itself where there is none."""
        values = values_of(tensor)
        if looks:
            self.sent.append(values)
            if values not in self.held:
                self.held[values] = tensor.detach().to(self.device)
        return self.held.get(values, tensor)


class Origins:
    """Where the contents of the host's tensors come from that are made in a step; those of others are not known.

    ``asked_for_others``: Python got values of others.
    """

    def __init__(self) -> None:
        self.asked_for_others = False
        # By the memory, which is kept: other memory would get its number.
        self._known: dict[int, tuple[torch.UntypedStorage, str]] = {}

    def of(self, tensor: torch.Tensor) -> str:
        """Return the origin of a tensor's contents; empty where it is not known."""
        storage = storage_of(tensor)
        return self._known[storage._cdata][1] if storage is not None and storage._cdata in self._known else ""

    def put(self, tensor: torch.Tensor, origin: str) -> None:
        """Note the origin of a tensor's contents."""
        storage = storage_of(tensor)
        if storage is not None and origin:
            self._known[storage._cdata] = storage, origin
        elif storage is not None:
            self._known.pop(storage._cdata, None)

    def ask(self, tensor: torch.Tensor) -> None:
        """Note that Python gets values of a tensor."""
        if tensor.device.type == "cpu" and not self.of(tensor):
            self.asked_for_others = True

    def after(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note the origin of what an operator made, and of what it wrote into."""
        origin = self._origin_of(function, tensors_of([args, kwargs]))
        for tensor in written_by(function, args, kwargs):
            self.put(tensor, origin)
        for tensor in tensors_of(result):
            if tensor.device.type == "cpu" and not self.of(tensor):
                self.put(tensor, origin)

    def _origin_of(self, function: Any, given: Iterable[torch.Tensor]) -> str:
        """Return the origin of an operator's result."""
        if getattr(function, "namespace", "") != "aten" or function.overloadpacket.__name__ in FROM_ELSEWHERE:
            return ""
        origins = set(map(self.of, given))
        if "" in origins:
            return ""
        return DRAWN if DRAWN in origins or torch.Tag.nondeterministic_seeded in function.tags else NUMBERS


class _Operators(TorchDispatchMode):
    """Notes the origins of tensors, and has operators read those made of numbers on the device."""

    supports_higher_order_operators = True

    def __init__(self, made: MadeOnHost, origins: Origins, *, looks: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made, self.origins, self.looks = made, origins, looks

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, sent = kwargs or {}, (args, kwargs or {})
        with torch._C.DisableTorchFunction():
            if function is TAKES_NUMBER:
                self.origins.ask(args[0])
            if self._is_on_device(function, args, kwargs):
                sent = tree_map(lambda one: self._sent(function, one), sent)
        result = function(*sent[0], **sent[1])
        with torch._C.DisableTorchFunction():
            self.origins.after(function, args, kwargs, result)
        return result

    def _is_on_device(self, function: Any, args: Any, kwargs: Any) -> bool:
        """Whether an operator that may send tensors of the host does so."""
        if function not in SENDING:
            return False
        device = kwargs.get("device") if function is TO_DEVICE else args[0].device
        return device is not None and device.type == self.made.device.type

    def _sent(self, function: Any, one: Any) -> Any:
        sends = isinstance(one, torch.Tensor) and self.made.sends(function, one)
        return self.made.on_device(one, looks=self.looks) if sends else one


class _Calls(TorchFunctionMode):
    """Has tensors of Python's numbers made on the host first, and notes which others make use of the host's values."""

    def __init__(self, device: torch.device, origins: Origins) -> None:
        super().__init__()
        self.device, self.origins = device, origins

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in MADE_OF_NUMBERS:
            return self._made(function, args, kwargs)
        if function in INDEXED and args[0].device.type == self.device.type:
            args = args[0], self._index(args[1]), *args[2:]
        if function == torch.Tensor.__setitem__ and is_plain(args[2]) and is_fixed(args[1]):
            return self._filled(args)
        if function in TAKING_MEMORY:
            self.origins.ask(args[0])
            self.origins.put(args[0], "")
        return function(*args, **kwargs)

    def _filled(self, args: Any) -> None:
        """Write a number at fixed places of a tensor, which no operator shows where that comes from."""
        origin = self.origins.of(args[0])
        torch.Tensor.__setitem__(*args)
        self.origins.put(args[0], origin)

    def _index(self, index: Any) -> Any:
        """An index with tensors of the host in the places of lists of numbers, which PyTorch would copy at once."""
        if type(index) is tuple:
            return tuple(map(self._index, index))
        if type(index) is not list or not index or any(type(one) is not int for one in index):
            return index
        on_host = torch.tensor(index, device="cpu")
        self.origins.put(on_host, NUMBERS)
        return on_host

    def _made(self, function: Any, args: Any, kwargs: Any) -> Any:
        of_numbers = is_of_numbers(data_given(function, args, kwargs))
        device = device_wanted(function, args, kwargs)
        if not of_numbers or device.type != self.device.type:
            result = function(*args, **kwargs)
            if result.device.type == "cpu":
                self.origins.put(result, NUMBERS if of_numbers else "")
            return result
        options = {name: value for name, value in kwargs.items() if name != "requires_grad"}
        on_host = function(*args, **{**options, "device": "cpu"})
        self.origins.put(on_host, NUMBERS)
        result = on_host.to(device)
        return result.requires_grad_() if kwargs.get("requires_grad") else result


@contextmanager
def scripts_as_python() -> Iterator[None]:
    """Run functions of TorchScript as the Python that they were made from.

    TorchScript makes tensors of numbers without a call or an operator that could be watched.
    """
    kind: Any = torch.jit.ScriptFunction
    compiled = kind.__call__

    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        python = getattr(function, "_torchdynamo_inline", None)  # PyTorch keeps it there for its compiler
        return python(*args, **kwargs) if python is not None else compiled(function, *args, **kwargs)

    kind.__call__ = run
    try:
        yield
    finally:
        kind.__call__ = compiled


def data_given(function: Any, args: Any, kwargs: Any) -> Any:
    """The numbers or other data in a call that makes a tensor."""
    place = MADE_OF_NUMBERS.index(function) == MADE_OF_NUMBERS.index(torch.Tensor.new_tensor)
    return args[place] if len(args) > place else kwargs.get("data", kwargs.get("obj"))


def device_wanted(function: Any, args: Any, kwargs: Any) -> torch.device:
    """The device that a call makes a tensor of numbers on."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return args[0].device if function == torch.Tensor.new_tensor else torch.get_default_device()


def is_of_numbers(data: Any) -> bool:
    """Whether data is a number, or lists of such, and no array or tensor."""
    if isinstance(data, (list, tuple)):
        return all(map(is_of_numbers, data))
    return isinstance(data, range) or (is_plain(data) and data is not None)


def is_fixed(index: Any) -> bool:
    """Whether an index is of plain values and slices."""
    if isinstance(index, (list, tuple)):
        return all(map(is_fixed, index))
    if isinstance(index, slice):
        return is_fixed((index.start, index.stop, index.step))
    return index is ... or is_plain(index)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor of the host; None for one without memory of its own."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage() if tensor.device.type == "cpu" else None


def can_be_held(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an ordinary one, and small enough to be held on the device; larger ones are data."""
    ordinary = not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    return ordinary and tensor.nbytes <= LARGEST


def values_of(tensor: torch.Tensor) -> Any:
    """The values of a tensor of the host, with its form, as a key."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tensor.shape, tensor.stride(), hashlib.sha256(bytes(flat.numpy())).digest()


def refuses_the_host(error: Exception) -> bool:
    """Whether a capture failed since something needed the host."""
    return any(text in str(error) for text in REFUSED)
