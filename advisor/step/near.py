"""Values near a function: the variables that it names, and the attributes of the objects in those variables.

A captured step watches the plain numbers there, and a step of the user's own has its optimizers there. Nothing that
lies further is looked for: keep such a number in a tensor, or call ``recapture()`` after it changed.
"""

import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch

from advisor.step.wrappers import unwrapped

PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
T = TypeVar("T")


class Place(NamedTuple):
    """A name that holds a value: in the namespace of a module or an object, or in the cell of a closure."""

    holder: dict[str, Any] | CellType
    name: str

    def value(self) -> Any:
        """The present value; None where there is none, as in the cell of a variable that is assigned later."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.name)
        try:
            return self.holder.cell_contents
        except ValueError:
            return None

    def put(self, value: Any) -> None:
        """Give the name a value."""
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
    """Places of plain attributes of a model's modules; of PyTorch's own only numbers with a point, such as rates."""
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
    """The cells of a function's closure, and the globals whose names stand in its code; none of anything else."""
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    yield from map(Place, function.__closure__ or (), code.co_freevars)
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]  # of lambdas, comprehensions
    names = {name for one in (code, *inner) for name in one.co_names}
    yield from (Place(function.__globals__, name) for name in sorted(names & function.__globals__.keys()))


def _attributes_of(value: Any) -> Iterator[Place]:
    """The attributes of an object; of a dictionary its items with a text for a key; none of modules and classes."""
    if isinstance(value, type | ModuleType):
        return
    attributes = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from (Place(attributes, name) for name in attributes if isinstance(name, str))
