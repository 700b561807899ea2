"""An ordinary step, watched: its operators, the tensors that it reads, and what in it no CUDA graph can repeat."""

import pathlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from advisor.step.nested import tensors_of
from advisor.step.owners import is_in_package
from advisor.step.writes import address_of, written_by

READS_VALUE = "the step reads a value on the host{}, as .item(), float() and a branch on a tensor do"
MAKES_SHAPE = "the step makes a tensor whose shape depends on values{}"
COPIES_ACROSS = "the step copies between the host and the GPU{}"
MAKES_OF_VALUES = "the step makes a tensor on the GPU from Python or NumPy values{}"
OTHER_NUMBERS = (
    "the step makes tensors on the host from Python's numbers that differ from step to step, and a graph would repeat "
    "the first ones"
)
WRITES_ON_HOST = "the step changes a tensor on the host{}, as an optimizer that counts its steps there does"
NOT_WATCHED = "the step runs {}, whose operators cannot be watched"
# Elements of a tensor that is made of Python values, up to which it is compared by its contents. A count.
MOST_COMPARED = 64
# Operators that take a mask for the list of the places where it is true.
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


class ObservedStep(TorchDispatchMode):
    """Notes the operators that run in a step on a device, in the order in which they run.

    ``operators`` has each with its arguments: numbers themselves, of tensors where they come from. ``read`` are the
    tensors that were there before the step and that it reads, by their addresses; those of ``batch`` are left out.
    ``numbers`` are those of one element on the host, with their values, which a graph would keep. ``problem`` says what
    a CUDA graph cannot repeat; empty where nothing was found. ``leaves`` are the tensors with gradients.
    ``sends_made`` tells whether an operator may send a tensor of the host, as one that is made of numbers in the code.
    ``sends`` says where the first one was sent. ``sent`` may be given the values of all of them, to be compared.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        device: torch.device,
        batch: Any,
        leaves: Iterable[torch.Tensor] = (),
        sends_made: Callable[[Any, torch.Tensor], bool] = lambda function, tensor: False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.operators: list[tuple[Any, ...]] = []
        self.read: dict[int, torch.Tensor] = {}
        self.numbers: list[tuple[torch.Tensor, Any]] = []
        self.problem = self.sends = ""
        self.reads_clock = False  # as whoever runs the step may find
        self.sends_made = sends_made
        self.sent: list[Any] = []
        found = [(leaf, leaf.grad) for leaf in leaves]
        self._gradients = {id(leaf): address_of(grad) for leaf, grad in found if grad is not None}
        self._batch = {address_of(tensor): place for place, tensor in enumerate(tensors_of(batch))}
        self._made: dict[int, int] = {}  # by address, the last operator that wrote there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") == "profiler":
            return func(*args, **kwargs)
        given = tree_leaves((args, kwargs))
        origins = map(contents_on_host if is_new(func) else self._origin, given)
        self.operators.append((func, *origins))
        result = func(*args, **kwargs)
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self.problem = self.problem or self._problem_of(func, given, made) or self._writes_on_host(func, args)
        for tensor in made:
            address = address_of(tensor)
            if address not in self.read and address not in self._batch:
                self._made[address] = len(self.operators)
        return result

    def differs_from(self, other: "ObservedStep") -> str:
        """The difference between two steps, in words; empty where both run the same operators on the same tensors."""
        if self.operators == other.operators:
            return "" if self.sent == other.sent else OTHER_NUMBERS
        pairs = zip(self.operators, other.operators, strict=False)
        first = next((f", first in {one[0]}" for one, another in pairs if one != another), "")
        return f"the step does not run the same operators with the same numbers and tensors each time{first}"

    def has_read(self, tensor: torch.Tensor) -> bool:
        """Whether the step read a tensor that was there before."""
        address = address_of(tensor)
        return address in self.read or any(address == address_of(number) for number, _ in self.numbers)

    def address_of_gradient(self, leaf: torch.Tensor) -> int | None:
        """The address of the gradient that a leaf had before the step; None where it had none."""
        return self._gradients.get(id(leaf))

    def has_read_gradient(self, leaf: torch.Tensor) -> bool:
        """Whether the step read the gradient that a leaf had before, as to add to it."""
        return self._gradients.get(id(leaf)) in self.read

    def carries_gradient(self, leaf: torch.Tensor) -> bool:
        """Whether a leaf's gradient was read, and another tensor has replaced it since."""
        kept = leaf.grad is not None and address_of(leaf.grad) == self._gradients.get(id(leaf))
        return self.has_read_gradient(leaf) and not kept

    def _origin(self, one: Any) -> Any:
        """Where a tensor comes from, as what can be compared; of anything else the thing itself."""
        if not isinstance(one, torch.Tensor):
            return one
        if not one.numel():
            return "empty", one.shape
        address = address_of(one)
        if address in self._made:
            return "made", self._made[address]
        if address in self._batch:
            return "batch", self._batch[address]
        if one.dim() == 0 and not self._is_there(one):
            self.numbers.append((one, one.item()))
            return "number", one.item()
        self.read.setdefault(address, one)
        return "read", address

    def _is_there(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self.device.type

    def _problem_of(self, func: Any, given: list[Any], made: list[torch.Tensor]) -> str:
        tags = getattr(func, "tags", None)
        if tags is None:
            return NOT_WATCHED.format(func)
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        name = func.overloadpacket.__name__
        if any(map(self._is_there, tensors)):
            if torch.Tag.data_dependent_output in tags:
                return READS_VALUE.format(line_of_user())
            masked = name in INDEXING and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
            if masked or (torch.Tag.dynamic_output_shape in tags and name not in INDEXING):
                return MAKES_SHAPE.format(line_of_user())
        if self.device.type == "cpu":
            return ""
        if is_new(func) and any(map(self._is_there, made)):
            return MAKES_OF_VALUES.format(line_of_user())
        others = [tensor for tensor in tensors if self._is_there(tensor) or not self.sends_made(func, tensor)]
        if len(others) < len(tensors):
            self.sends = self.sends or COPIES_ACROSS.format(line_of_user())
        return COPIES_ACROSS.format(line_of_user()) if self._copies(name, others, made) else ""

    def _copies(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
        """Whether an operator copies between the host and the device; to compute with a number of the host does not."""
        on_host = [tensor for tensor in given if not self._is_there(tensor)]
        if len(on_host) < len(given):
            sends = any(tensor.dim() or name == "copy_" for tensor in on_host)
            return sends or not all(map(self._is_there, made))
        return bool(on_host) and any(map(self._is_there, made))

    def _writes_on_host(self, func: Any, args: tuple[Any, ...]) -> str:
        """A sentence on a tensor on the host, from before the step, that an operator writes to."""
        if self.device.type == "cpu":
            return ""
        written = written_by(func, args, {})
        kept = [tensor for tensor in written if not self._is_there(tensor) and address_of(tensor) not in self._made]
        return WRITES_ON_HOST.format(line_of_user()) if kept else ""


def is_new(func: Any) -> bool:
    """Whether an operator brings in a tensor that was just made of Python or NumPy values."""
    return getattr(func, "overloadpacket", None) is torch.ops.aten.lift_fresh


def contents_on_host(one: Any) -> Any:
    """The values of a small tensor on the host; of a larger one its shape."""
    small = isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.numel() <= MOST_COMPARED
    return repr(one.tolist()) if small else one.shape if isinstance(one, torch.Tensor) else one


def line_of_user() -> str:
    """The innermost line that belongs to no package, as `` (train.py:42)``; empty where there is none."""
    frame: types.FrameType | None = sys._getframe()  # in the backward pass there may be no other but ours
    while frame is not None:
        ours = str(frame.f_globals.get("__name__")).startswith("advisor.step") or frame.f_globals is globals()
        if not ours and not is_in_package(frame.f_code.co_filename):
            return f" ({pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        frame = frame.f_back
    return ""
