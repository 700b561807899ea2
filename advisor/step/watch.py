"""The values that a captured step checks before a replay, and copies of its state.

Values near a function are the variables that it names, and the attributes of the objects in them. There a captured
step watches the plain numbers, and finds optimizers. After a number further away changes, call ``recapture()``.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch

from advisor.step.compile import unwrapped

PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
T = TypeVar("T")
_REQUIRES_GRAD = operator.attrgetter("requires_grad")
OPTIONS = "options of the optimizer changed"


class Place(NamedTuple):
    """A name that holds a value: in the namespace of a module or an object, or in the cell of a closure."""

    holder: dict[str, Any] | CellType
    name: str

    def value(self) -> Any:
        """The present value; None for a variable that is not assigned yet."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.name)
        try:
            return self.holder.cell_contents
        except ValueError:
            return None

    def put(self, value: Any) -> None:
        """Let the name hold this value."""
        if isinstance(self.holder, dict):
            self.holder[self.name] = value
        else:
            self.holder.cell_contents = value


def places_near(call: Any) -> list[Place]:
    """The places that a function, method, module or callable object reads, each once; none for None.

    These are the variables that a function names, the same of functions found there, and the attributes of objects
    found there: one step further, and no deeper.
    """
    found: dict[tuple[int, str], Place] = {}
    for place in _places_of(call):
        value = place.value()
        for one in (place, *_variables_of(value), *_attributes_of(value)):
            found[id(one.holder), one.name] = one
    return list(found.values())


def numbers_of_modules(model: torch.nn.Module) -> list[Place]:
    """Plain attributes of a model's modules to watch; of PyTorch's modules only floats, such as rates."""
    found = []
    for module in unwrapped(model).modules():
        of_torch = type(module).__module__.startswith("torch.nn.")
        for name, value in vars(module).items():
            if type(value) is float or (type(value) in PLAIN and not of_torch and not name.startswith("_")):
                found.append(Place(vars(module), name))
    return [place for place in found if place.name != "training"]


def objects_near(kind: type[T], call: Any) -> list[T]:
    """The objects of a class near a call, in lists there too; the call itself where it is one."""
    values = [call, *(place.value() for place in places_near(call))]
    values += [part for value in values if isinstance(value, list | tuple) for part in value]
    return list({id(value): value for value in values if isinstance(value, kind)}.values())


def _places_of(call: Any) -> Iterator[Place]:
    """The variables of a call's function, and the attributes of the object that it belongs to."""
    if isinstance(call, functools.partial):
        yield from _attributes_of({"args": call.args, **call.keywords})
        call = call.func
    owner = function = call
    if isinstance(call, MethodType):
        owner, function = call.__self__, call.__func__
    elif not isinstance(call, FunctionType):
        function = getattr(type(call), "forward" if isinstance(call, torch.nn.Module) else "__call__", None)
    yield from _attributes_of(owner)
    yield from _variables_of(function)


def _variables_of(function: Any) -> Iterator[Place]:
    """The cells of a function's closure, and the globals that its code names; empty for other objects."""
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    yield from map(Place, function.__closure__ or (), code.co_freevars)
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]  # of lambdas, comprehensions
    names = {name for one in (code, *inner) for name in one.co_names}
    yield from (Place(function.__globals__, name) for name in sorted(names & function.__globals__.keys()))


def _attributes_of(value: Any) -> Iterator[Place]:
    """The attributes of an object, or the items of a dictionary with string keys; none for modules and classes."""
    if isinstance(value, type | ModuleType):
        return
    attributes = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from (Place(attributes, name) for name in attributes if isinstance(name, str))


class Watch:
    """Tells what changed around a captured step since the watch was made. Looking takes microseconds.

    ``kept`` are parameters whose gradients the step adds to.
    """

    def __init__(
        self, model: torch.nn.Module, places: list[Place], optimizers: list[Any], kept: list[torch.Tensor]
    ) -> None:
        modules, parameters = list(unwrapped(model).modules()), list(unwrapped(model).parameters())
        attributes = list(map(vars, modules))
        parts: list[Any] = [one for module in modules for one in (module._parameters, module._buffers, module._modules)]
        parts = [part for part in parts if part and isinstance(part, dict)]  # TorchScript has no dictionaries
        placed = [one for one in parameters if one.layout is torch.strided and not hasattr(one, "__tensor_flatten__")]
        hooks = [getattr(one, f"_{kind}_hooks") for one in modules for kind in ("forward", "forward_pre", "backward")]
        states = [(optimizer, optimizer.state) for optimizer in optimizers]
        # A learning rate is in a tensor of the captured update.
        options = [(one, [name for name in one.defaults if name != "lr"]) for one in optimizers]
        values = _reader([place for place in places if type(place.value()) in PLAIN])
        whole = _reader([one for one in places if isinstance(value := one.value(), torch.Tensor) or callable(value)])
        checks: list[tuple[str, Callable[[], Any]]] = [
            ("other layers are in training mode", lambda: list(map(dict.get, attributes, repeat("training")))),
            ("layers or parameters were replaced", lambda: list(map(id, chain.from_iterable(map(dict.values, parts))))),
            ("the memory of a parameter changed", lambda: list(map(torch.Tensor.data_ptr, placed))),
            ("other parameters require gradients", lambda: list(map(_REQUIRES_GRAD, parameters))),
            ("hooks or attributes were added or removed", lambda: sum(map(len, chain(hooks, attributes)))),
            ("a number near the step changed", values),
            ("a tensor or function near the step was replaced", lambda: list(map(id, whole()))),
            ("a gradient was cleared", lambda: [id(one.grad) for one in kept]),
            ("the optimizer loaded a state", lambda: [one.state is state for one, state in states]),
            (OPTIONS, lambda: [group.get(key) for one, keys in options for group in one.param_groups for key in keys]),
        ]
        self._checks = [(words, read, read()) for words, read in checks]

    def changed(self) -> str:
        """The first change in words; empty if nothing changed."""
        return next((words for words, read, before in self._checks if read() != before), "")


def _reader(places: Sequence[Place]) -> Callable[[], list[Any]]:
    """A function that reads the values of places: names in dictionaries by a function in C."""
    named = [place for place in places if isinstance(place.holder, dict)]
    others = [place for place in places if not isinstance(place.holder, dict)]
    holders, names = [place.holder for place in named], [place.name for place in named]
    return lambda: [*map(dict.get, holders, names), *(place.value() for place in others)]  # type: ignore[arg-type]


class Saved:
    """Copies of tensors and the state of the device's generator, from which a step can be run a second time."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.generator = torch.cuda.default_generators[device.index or 0] if on_gpu else torch.default_generator
        self.draws = self.generator.get_state()
        self.copies = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def drew(self) -> bool:
        """Whether random numbers were drawn since."""
        return not torch.equal(self.generator.get_state(), self.draws)

    @torch.no_grad()
    def moved(self) -> torch.Tensor:
        """The distance of the tensors from the copies: the norm of all differences."""
        moved = [(tensor - copied).float().norm() for tensor, copied in self.copies if tensor.is_floating_point()]
        return torch.stack([one.to(self.generator.device) for one in moved]).norm() if moved else torch.zeros(())

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the tensors and the generator from the saved state."""
        for tensor, copied in self.copies:
            tensor.copy_(copied)
        self.generator.set_state(self.draws)
