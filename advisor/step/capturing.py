"""CUDA graph capture: captured calls, the host's tensors that they read, and the values that they store in names."""

import collections
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.modules import transformer
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.step.dependence import computed
from advisor.step.nested import map_tensors, tensors_of
from advisor.step.places import Place, put_at, value_at
from advisor.step.python_state import MOST_LOOKED_INTO, PythonState
from advisor.step.read_code import SETS_GLOBAL, names_of_globals
from advisor.step.undone import undone

# Larger tensors of the host are data and stay there. Bytes.
LARGEST = 64 * 2**20
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
# A table that the device computes from differs from the host's by rounding.
TOLERANCE = 1e-4


@functools.cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that captures on a device. One for all graphs: libraries keep memory to work in for each stream.

    Left to PyTorch, it is on the device that was the current one in the first capture, and records nothing of others.
    """
    return torch.cuda.Stream(device)


def is_called_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether the caller calls a mask causal; the mask is not looked at."""
    return is_causal is True


@contextmanager
def masks_as_given() -> Iterator[None]:
    """Have PyTorch's transformers use a mask as it is, and not ask whether it is the causal one.

    The answer makes the host wait, which no capture can, and only chooses among kernels.
    """
    asked = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = is_called_causal  # the same function each time, or compilers compile anew
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = asked


@contextmanager
def as_if_captured() -> Iterator[None]:
    """Have code that asks whether a graph is being captured hear that one is.

    Some goes another way then (Hugging Face's attention masks are made without a look at their values), and what a
    compiler has to make for that way it cannot make in a capture.
    """
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        with masks_as_given():
            yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


def renew_accumulators(leaves: Iterable[torch.Tensor]) -> None:
    """Have autograd make new nodes to add up the gradients of leaves.

    A ``loss`` of an earlier step that is kept keeps its graph, and with it the old nodes. Each belongs to the stream
    that it was made on, and a capture may not wait for that stream. PyTorch makes a new node for a leaf whose data had
    another type for a moment (``VariableHooks::set_data``). A node that Python code holds stays, for it may have a
    hook. So do all nodes where several ranks are connected: DistributedDataParallel has hooks on them.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    not_held = _references_to_accumulator(torch.zeros((), requires_grad=True))
    for leaf in leaves:
        plain = type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided and leaf.requires_grad
        if plain and _references_to_accumulator(leaf) == not_held:
            data = leaf.data
            leaf.data = data.new_empty(0, dtype=torch.float32 if data.dtype is torch.float64 else torch.float64)
            leaf.data = data


def _references_to_accumulator(leaf: torch.Tensor) -> int:
    with torch.enable_grad():
        function: Any = leaf.view_as(leaf).grad_fn
    return sys.getrefcount(function.next_functions[0][0])


class CudaGraph:
    """Calls captured in a CUDA graph; ``result`` is what the captured call returned, overwritten by each replay."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None

    def warm_up(self, call: Callable[[], Any]) -> Any:
        """Run a call eagerly, on the side stream that a later capture expects."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = call()
        current.wait_stream(self.stream)
        return result

    def capture(self, call: Callable[[], Any], generators: Sequence[torch.Generator] = ()) -> None:
        """Capture a call, without running its kernels. Where it fails, the stream and random numbers are as before.

        ``generators`` are those of the device that it draws from, beside the usual one.
        """
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        failures: list[Exception] = []
        own = [(generator, generator.get_state()) for generator in generators]
        usual = torch.cuda.get_rng_state(self.device)
        try:
            with self._capturing(graph, generators):
                try:
                    self.result = call()
                except Exception as failure:
                    failures.append(failure)
                    raise
        except Exception:
            self._recover(generators)
            torch.cuda.set_rng_state(usual, self.device)
            for generator, state in own:
                generator.set_state(state)
            if failures:  # ending a capture that has failed raises again, and says less
                raise failures[0] from None
            raise
        self.graph = graph

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator]) -> Iterator[None]:
        """Capture into a graph. PyTorch leaves its stream the current one where a capture cannot be ended."""
        for generator in generators:
            graph.register_generator_state(generator)
        current = torch.cuda.current_stream(self.device)
        # A loader's thread that pins memory calls CUDA meanwhile, which any other mode takes for a fault.
        captures = torch.cuda.graph(graph, stream=capture_stream(self.device), capture_error_mode="thread_local")
        with torch.cuda.stream(current), captures:
            yield

    def _recover(self, generators: Sequence[torch.Generator]) -> None:
        """End the state of capturing in which PyTorch 2.11 leaves generators after a capture that failed.

        The end of a capture that succeeds ends it too.
        """
        with suppress(RuntimeError), self._capturing(torch.cuda.CUDAGraph(), generators):
            torch.zeros(1, device=self.device)

    def replay(self) -> None:
        """Run the captured kernels."""
        assert self.graph is not None
        self.graph.replay()

    def drop(self) -> None:
        """Forget the captured call and free its memory."""
        self.graph = self.result = None


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
    """Tensors of the host that a step copies to its device each time, with copies held on the device.

    Examples are a noise schedule in a global name and a table in an attribute that is no buffer. No CUDA graph can
    hold a copy from the host's ordinary memory, so the copies take their places while the step is captured. Before
    each replay they get the host's present values, so the step follows writes to the host's tensors.
    """

    def __init__(self, places: Iterable[Place], device: torch.device) -> None:
        self.device = device
        self.held = [(place, value_at(*place), value_at(*place).to(device)) for place in places]

    def not_held(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors in the host's memory that have no copies, where the step's device is another one."""
        held = {id(tensor) for _, tensor, _ in self.held}
        return [one for one in tensors if one.device.type == "cpu" != self.device.type and id(one) not in held]

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
    """The places that hold a tensor in the host's memory, where ``device`` is another one."""
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


class LeftBehind:
    """Gives the loop tensors of its own after each replay, as a step that runs does.

    The names that a captured call binds hold memory of the graph, which each replay overwrites: a loop that keeps what
    it finds there would have the last step's in all places. Made before the capture; ``look`` comes after it.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], functions: Iterable[types.FunctionType], spaces: Iterable[Any]
    ) -> None:
        functions = list(functions)
        around = [cell for function in functions for cell in function.__closure__ or ()]
        held = [holder for holder, _ in PythonState(modules).held]
        setting = [function for function in functions if names_of_globals(function.__code__, SETS_GLOBAL)]
        found = {id(space): space for space in (*spaces, *around, *held, *(one.__globals__ for one in setting))}
        self.before = [(space, values_in(space)) for space in found.values()]
        self.left: list[tuple[Any, Any, Any]] = []

    def look(self) -> None:
        """Note what the capture has bound to tensors."""
        for space, before in self.before:
            for name, value in values_in(space).items():
                if value is not before.get(name) and next(tensors_of(value), None) is not None:
                    self.left.append((space, name, value))
        self.before = []

    def renew(self) -> None:
        """Put copies of what the last replay has computed into these names."""
        for space, name, value in self.left:
            put_at(space, name, map_tensors(own_copy, value))


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that belongs to the caller; a parameter is its own."""
    return tensor if isinstance(tensor, torch.nn.Parameter) else tensor.detach().clone()


def values_in(space: Any) -> dict[Any, Any]:
    """The values in a namespace, a container, a class or a cell, by name or index."""
    if isinstance(space, dict):
        return dict(space)
    if isinstance(space, (list, collections.deque)):
        return dict(enumerate(itertools.islice(space, MOST_LOOKED_INTO)))
    if isinstance(space, type):
        return dict(vars(space))
    return {"": value_at(space, "")} if isinstance(space, (types.CellType, ContextVar)) else {}
