"""Values near a function: the variables that it names, and the attributes of the objects in those variables.

A captured step watches the plain numbers there, and a step of the user's own has its optimizers there. Nothing that
lies further is looked for: keep such a number in a tensor, or call ``recapture()`` after it changed.
"""

import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import torch

PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
_CONTENTS = "cell_contents"


class Place(NamedTuple):
    """A name that holds a value: in the namespace of a module or an object, or in the cell of a closure."""

    holder: dict[str, Any] | CellType
    name: str

    def value(self) -> Any:
        """The present value; None where there is none any more."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.name)
        return getattr(self.holder, _CONTENTS, None)

    def put(self, value: Any) -> None:
        """Give the name a value."""
        if isinstance(self.holder, dict):
            self.holder[self.name] = value
        else:
            self.holder.cell_contents = value


def places_near(*calls: Any) -> list[Place]:
    """The places that these functions, methods, modules or callable objects read, each once.

    These are the variables that a function names, the same of functions found there, and the attributes of objects
    found there: one step further, and no deeper.
    """
    found: dict[tuple[int, str], Place] = {}

    def add(places: Iterator[Place]) -> list[Place]:
        fresh = {(id(place.holder), place.name): place for place in places}
        new = [place for key, place in fresh.items() if key not in found]
        found.update(fresh)
        return new

    for call in filter(None, calls):
        for place in add(_places_of(call)):
            value = place.value()
            if isinstance(value, FunctionType):
                add(_variables_of(value))
            elif type(value) not in PLAIN and not isinstance(value, torch.Tensor):
                add(_attributes_of(value))
    return list(found.values())


def _places_of(call: Any) -> Iterator[Place]:
    """The variables of a call's function, and the attributes of the object that it belongs to."""
    if isinstance(call, functools.partial):
        yield from (Place(call.keywords, name) for name in call.keywords)
        yield from _places_of(call.func)
        return
    function = getattr(call, "__func__", call)
    owner = getattr(call, "__self__", None if isinstance(function, FunctionType) else call)
    if owner is not None:
        yield from _attributes_of(owner)
        function = getattr(type(owner), "forward" if isinstance(owner, torch.nn.Module) else "__call__", function)
    yield from _variables_of(function if not isinstance(call, FunctionType) else call)


def _variables_of(function: Any) -> Iterator[Place]:
    """The cells of a function's closure, and the globals whose names stand in its code."""
    if not isinstance(function, FunctionType):
        return
    cells = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
    yield from (Place(cell, name) for cell, name in cells)
    names = {name for code in _codes_of(function.__code__) for name in code.co_names}
    yield from (Place(function.__globals__, name) for name in sorted(names & function.__globals__.keys()))


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it, such as comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)


def _attributes_of(value: Any) -> Iterator[Place]:
    """The attributes of an object; of a dictionary its items with a text for a key; none of a module of Python."""
    if isinstance(value, dict):
        yield from (Place(value, name) for name in value if isinstance(name, str))
    elif not isinstance(value, type) and type(value).__name__ != "module":
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from (Place(attributes, name) for name in attributes)


def modules_near(*calls: Any) -> list[torch.nn.Module]:
    """The modules among these calls and near them; none that is a part of another."""
    values = [*calls, *(place.value() for place in places_near(*calls))]
    found = list({id(value): value for value in values if isinstance(value, torch.nn.Module)}.values())
    parts = {id(part) for module in found for part in module.modules() if part is not module}
    return [module for module in found if id(module) not in parts]


def optimizers_near(*calls: Any) -> list[torch.optim.Optimizer]:
    """The optimizers near these calls, as of a step of the user's own."""
    values = [place.value() for place in places_near(*calls)]
    listed = [part for value in values if isinstance(value, list | tuple) for part in value]
    found = {id(value): value for value in (*values, *listed) if isinstance(value, torch.optim.Optimizer)}
    return list(found.values())
