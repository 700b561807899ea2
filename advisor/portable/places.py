"""Finds the places where the forward passes of a model and a loss read plain values and tensors.

These are attributes, closures and global names that their code and the user's own functions that it calls read; and
what dictionaries, lists, namespaces, dataclasses, other objects, classes and modules hold that are found there.
"""

import collections
import dataclasses
import dis
import functools
import pathlib
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping

import torch

from advisor.portable.python_state import (
    CONTAINERS,
    MOST_LOOKED_INTO,
    OF_TORCH,
    PLAIN_KINDS,
    contents_copied,
    give_contents,
    holder_of,
)

# A namespace, a list, a class, an object or the cell of a closure, and the name or the index of a value in it.
Place = tuple[typing.Any, typing.Any]
# The name of a place that is a container as a whole.
CONTENTS = "its contents"
FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
# Functions, containers and objects inside one another that are looked into. A count.
MOST_LEVELS = 4
# Where installed code lies.
PACKAGES = ("site-packages", "dist-packages", str(pathlib.Path(torch.__file__).parent))
STANDARD = str(pathlib.Path(dis.__file__).parent)


class Finder:
    """Collects ``places``, by what they can be found by, and the ``modules`` whose code is run."""

    def __init__(self) -> None:
        self.places: dict[tuple[int, typing.Any], Place] = {}
        self.modules: dict[torch.nn.Module, None] = {}
        self.functions: set[types.FunctionType] = set()

    def look_at_call(self, call: typing.Any, depth: int = MOST_LEVELS) -> None:
        """Look at what a model, a function, a method, a partial or another object reads when it is called."""
        if isinstance(call, torch.nn.Module):
            self.look_at_modules(call)
        elif isinstance(call, functools.partial):
            self.look_at_call(call.func, depth)
        elif isinstance(call, types.MethodType):
            self.look_at_function(call.__func__, depth)
            self.look_at_object(call.__self__, call.__name__, depth)
        elif isinstance(call, types.FunctionType):
            self.look_at_function(call, depth)
        elif callable(call):
            self.look_at_function(type(call).__call__, depth)
            self.look_at_object(call, "__call__", depth)

    def look_at_modules(self, root: torch.nn.Module) -> None:
        """Look at what a module and those inside it read in their forward passes."""
        for module in root.modules():
            if module in self.modules:
                continue
            self.modules[module] = None
            kind: typing.Any = type(module)
            of_torch = kind.__module__.startswith("torch.")
            read = names_read(kind, "forward")
            for name in read & vars(module).keys() - OF_TORCH:
                value = vars(module)[name]
                if type(value) is float or not of_torch:
                    self.look_at(vars(module), name, value, read)
            if not of_torch:
                for function in methods_called(kind, "forward"):
                    self.look_at_function(function)

    def look_at_object(self, owner: typing.Any, method: str, depth: int) -> None:
        """Look at what a method reads in its object."""
        own, kind = getattr(owner, "__dict__", {}), type(owner)  # type: dict[str, typing.Any], typing.Any
        read = names_read(kind, method)
        for name in read & own.keys() - OF_TORCH:
            self.look_at(own, name, own[name], read, depth)
        for function in methods_called(kind, method):
            self.look_at_function(function, depth)

    def look_at_function(self, function: typing.Any, depth: int = MOST_LEVELS) -> None:
        """Look at what a function reads in its closure and among its module's global names."""
        if not isinstance(function, types.FunctionType) or function in self.functions:
            return
        self.functions.add(function)
        codes = list(codes_of(function.__code__))
        read = frozenset(name for code in codes for name in names_in(code))
        for cell in function.__closure__ or ():
            self.look_at(cell, "", value_of_cell(cell), read, depth)
        for name in {name for code in codes for name in global_names(code)} & function.__globals__.keys():
            self.look_at(function.__globals__, name, function.__globals__[name], read, depth)

    def look_at(
        self, holder: typing.Any, name: typing.Any, value: typing.Any, read: frozenset[str], depth: int = MOST_LEVELS
    ) -> None:
        """Note the place of a value, or the places inside it.

        ``read`` are the names that the code around it reads: of an object of any class, a class and a module only those
        of its attributes count that this code or its methods read.
        """
        if is_plain(value) or holds_tensor(value):
            self.add(holder, name)
        elif isinstance(value, torch.nn.Module):
            self.look_at_modules(value)
        elif depth and isinstance(value, FUNCTIONS) and not is_installed(value):
            self.look_at_call(value, depth - 1)
        if isinstance(value, CONTAINERS):
            self.add(value, CONTENTS)
        if depth:
            inside, parts = parts_inside(value, read)
            for key, part in list(parts.items())[:MOST_LOOKED_INTO]:
                self.look_at(inside, key, part, read, depth - 1)

    def add(self, holder: typing.Any, name: typing.Any) -> None:
        """Note a place."""
        self.places[named((holder, name))] = (holder, name)


def parts_inside(value: typing.Any, read: frozenset[str]) -> tuple[typing.Any, Mapping[typing.Any, typing.Any]]:
    """The namespace or container that holds the parts of a value, and the parts that the code reads."""
    if isinstance(value, CONTAINERS):
        return value, {} if isinstance(value, set) else value if isinstance(value, dict) else dict(enumerate(value))
    if isinstance(value, types.SimpleNamespace) or is_options(value):
        return vars(value), vars(value)
    if isinstance(value, (type, types.ModuleType)):
        own = {} if is_of_package(value) else {name: vars(value)[name] for name in read & vars(value).keys()}
        if isinstance(value, types.ModuleType):
            return vars(value), own
        return value, {name: part for name, part in own.items() if is_plain(part)}
    attributes, kind = holder_of(value), type(value)  # type: typing.Any, typing.Any
    if attributes is None:
        return value, {}
    names = read.union(*(names_read(kind, name) for name in read if hasattr(kind, name)))
    return attributes, {name: part for name, part in attributes.items() if name in names}


def is_of_package(one: typing.Any) -> bool:
    """Whether a class or a module belongs to an installed package or to Python."""
    home: typing.Any = sys.modules.get(one.__module__) if isinstance(one, type) else one
    place = getattr(home, "__file__", None)
    if place is None:
        return getattr(home, "__name__", "") != "__main__"
    return any(part in place for part in (*PACKAGES, STANDARD))


class Values:
    """The values in some places, which can be put back."""

    def __init__(self, places: Iterable[Place]) -> None:
        kept = list(places)
        self.contents = [(holder, contents_copied(holder)) for holder, name in kept if name == CONTENTS]
        self.values = [(place, value_at(*place)) for place in kept if place[1] != CONTENTS]

    def put_back(self) -> None:
        """Put the values into their places, and the contents into containers."""
        for holder, contents in self.contents:
            give_contents(holder, contents)
        for place, value in self.values:
            put_at(*place, value)


def put_at(holder: typing.Any, name: typing.Any, value: typing.Any) -> None:
    """Put a value into a namespace, a list, a class, a cell or an object with slots."""
    if isinstance(holder, dict):
        dict.__setitem__(holder, name, value)
    elif isinstance(holder, (list, collections.deque)):
        if name < len(holder):
            holder[name] = value
    elif isinstance(holder, types.CellType):
        holder.cell_contents = value
    else:
        setattr(holder, name, value)


def named(place: Place) -> tuple[int, typing.Any]:
    """A place as what it can be found by: namespaces themselves would be compared by what is in them."""
    return id(place[0]), place[1]


def value_at(holder: typing.Any, name: typing.Any) -> typing.Any:
    """The value in a namespace, a list, a class, a cell or an object with slots; None where there is none."""
    if isinstance(holder, dict):
        return dict.get(holder, name)
    if isinstance(holder, (list, collections.deque)):
        return holder[name] if name < len(holder) else None
    if isinstance(holder, types.CellType):
        return value_of_cell(holder)
    return vars(holder).get(name) if isinstance(holder, type) else getattr(holder, name, None)


def value_of_cell(cell: typing.Any) -> typing.Any:
    """The value in the cell of a closure."""
    try:
        return cell.cell_contents
    except ValueError:  # deleted in the function that it is a variable of
        return None


def is_installed(call: typing.Any) -> bool:
    """Whether the code of a function or of an object that is called belongs to an installed package."""
    function = getattr(call, "__func__", call)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is None or any(place in code.co_filename for place in PACKAGES)


def holds_tensor(value: typing.Any) -> bool:
    """Whether a value is a tensor, or a tuple or a list with one in it."""
    if type(value) in (tuple, list):
        return any(isinstance(part, torch.Tensor) for part in value)
    return isinstance(value, torch.Tensor)


def is_plain(value: typing.Any) -> bool:
    """Whether a value is a number, a text or the like, or a tuple of such."""
    return type(value) in PLAIN_KINDS or (type(value) is tuple and all(map(is_plain, value)))


def is_options(value: typing.Any) -> bool:
    """Whether an object is one of options: a dataclass, or what ``argparse`` makes."""
    of_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return hasattr(value, "__dict__") and (of_dataclass or type(value).__name__ == "Namespace")


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def global_names(code: types.CodeType) -> Iterable[str]:
    """The global names that code reads."""
    return (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")


def names_in(code: types.CodeType) -> set[str]:
    """The names that code reads, also by ``getattr``; attributes that it only writes are left out."""
    used = [one.argval for one in dis.get_instructions(code) if one.opname not in ("STORE_ATTR", "DELETE_ATTR")]
    asked = [one for one in code.co_consts if isinstance(one, str)] if "getattr" in code.co_names else []
    return {name for name in used if isinstance(name, str)} & set(code.co_names) | set(asked)


@functools.cache
def names_read(kind: typing.Any, method: str) -> frozenset[str]:
    """The names that a method of a class reads, in itself and in the class's other methods that it may call."""
    codes = (code for function in methods_called(kind, method) for code in codes_of(function.__code__))
    return frozenset(name for code in codes for name in names_in(code))


@functools.cache
def methods_called(kind: typing.Any, method: str) -> tuple[types.FunctionType, ...]:
    """A method of a class and the class's other methods that it may call, properties too."""
    found: dict[types.FunctionType, None] = {}
    seen: set[str] = set()
    names = {method, "__call__"}
    while names:
        name = names.pop()
        seen.add(name)
        found_in = [vars(base)[name] for base in kind.__mro__ if name in vars(base) and base is not torch.nn.Module]
        for function in [getattr(one, "fget", one) for one in found_in]:  # also of a property
            if isinstance(function, types.FunctionType):
                found[function] = None
                names |= {name for code in codes_of(function.__code__) for name in names_in(code)} - seen
    return tuple(found)
