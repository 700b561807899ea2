"""Finds the places where the forward passes of a model and a loss read plain values, tensors and objects.

These are attributes, closures, default arguments and global names that their code and the user's own functions that it
calls read; and what dictionaries, lists, namespaces, configs, other objects, classes and modules hold that are found
there.
"""

import builtins
import functools
import gc
import io
import os
import threading
import types
import typing
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar

import torch

from advisor.portable.nested import slots_of
from advisor.portable.owners import is_installed, is_of_other_package, is_of_package
from advisor.portable.places import CONTENTS, FUNCTIONS, Place, is_options, is_plain, named, value_of_cell
from advisor.portable.python_state import CONTAINERS, MOST_LOOKED_INTO, OF_TORCH, holder_of
from advisor.portable.read_code import (
    asks_by_any_name,
    codes_of,
    is_data_of_class,
    methods_called,
    modules_imported,
    names_in,
    names_of_globals,
    names_read,
    places_of_methods,
)

# Functions, containers and objects inside one another that are looked into, and things in each of them. Counts: more
# are data.
DEEPEST_READ = 12
# Wrappers around one another that are looked behind. A count.
MOST_WRAPPERS = 4
# Places that are compared before each replay, at most. A count: they take some 0.5 ms.
MOST_PLACES = 10_000
# Methods that read a file.
FILE_READERS = frozenset({"read_text", "read_bytes"})
# Methods of Python's own containers that read what they hold, as in ``weight_of = options.get``.
READERS = frozenset({"get", "__getitem__"})
# Special methods that are called when an object is made, copied or shown, or that all classes of options have.
NO_OPERATORS = frozenset(
    f"__{name}__"
    for name in (
        *("init", "new", "del", "post_init", "init_subclass", "class_getitem", "repr", "str", "format", "dir"),
        *("eq", "hash", "setattr", "delattr", "reduce", "reduce_ex", "getstate", "setstate", "copy", "deepcopy"),
    )
)
BOUND_KINDS = (types.MethodType, types.BuiltinMethodType)
# The names that count where all of an object's attributes do.
Names = frozenset[str] | None


class Finder:
    """Collects ``places``, by what they can be found by, and the ``modules`` and ``functions`` whose code is run.

    ``names`` are those that the user's own code is known to read somewhere: a function may get any object as an
    argument. :func:`found_in` finds them out.

    ``spaces`` are the namespaces, containers and cells that code which is run can write to. ``unfollowed`` says what
    it reads that no comparison can follow; empty where there is nothing. ``taken_from`` is the kind of an iterator that
    it takes values from.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.names = names
        self.places: dict[tuple[int, typing.Any], Place] = {}
        self.modules: dict[torch.nn.Module, None] = {}
        self.functions: dict[types.FunctionType, None] = {}
        self.spaces: dict[int, typing.Any] = {}
        self.unfollowed = self.taken_from = ""
        self.seen: set[tuple[int, Names]] = set()

    def look_at_call(self, call: typing.Any, depth: int = DEEPEST_READ) -> None:
        """Look at what a model, a function, a method, a partial or another object reads when it is called."""
        if isinstance(call, torch.nn.Module):
            self.look_at_modules(call)
        elif isinstance(call, functools.partial):
            self.look_at_call(call.func, depth)
            self.look_at_each(call.args, None, depth)
            self.look_at_names(call.keywords, call.keywords, None, depth)
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
            read = names_read(kind, "forward") | self.names
            self.spaces[id(vars(module))] = vars(module)
            self.add_hidden(kind, vars(module), read)
            for name in (read | {"forward"}) & vars(module).keys() - OF_TORCH:
                value = vars(module)[name]
                if type(value) is float or not of_torch or name in self.names or name == "forward":
                    self.look_at(vars(module), name, value, read)
            if not of_torch:
                self.look_at_class(kind, read, DEEPEST_READ)
                self.look_at_methods(kind, "forward", DEEPEST_READ)

    def look_at_object(self, owner: typing.Any, method: str, depth: int) -> None:
        """Look at what a method reads in its object."""
        kind = owner if isinstance(owner, type) else type(owner)
        read = names_read(kind, method) | self.names
        own = {} if isinstance(owner, type) else getattr(owner, "__dict__", {})
        self.spaces[id(own)] = own
        self.add_hidden(kind, own, read)
        self.look_at_names(own, own.keys() - OF_TORCH, read, depth)
        self.look_at_class(kind, read, depth)
        self.look_at_methods(kind, method, depth)

    def look_at_methods(self, kind: type, method: str, depth: int) -> None:
        """Look at a method and those that it calls, and note where another may take their place."""
        for base, name in places_of_methods(kind, method):
            if not is_of_package(base):
                self.add(base, name)
        for function in methods_called(kind, method):
            self.look_at_function(function, depth)

    def look_at_function(self, function: typing.Any, depth: int = DEEPEST_READ) -> None:
        """Look at what a function reads in its closure and among its module's global names."""
        if not isinstance(function, types.FunctionType) or function in self.functions:
            return
        self.functions[function] = None
        codes = list(codes_of(function.__code__))
        read = frozenset(name for code in codes for name in names_in(code))
        read |= frozenset() if is_installed(function) else self.names
        for cell in function.__closure__ or ():
            self.look_at(cell, "", value_of_cell(cell), read, depth)
        for held in map(value_of_cell, function.__closure__ or ()):
            self.look_at_any_attribute(held, codes)
        globally = set(names_of_globals(function.__code__))
        if "globals" in globally:
            globally |= {name for code in codes for name in code.co_consts if isinstance(name, str)}
        for name in globally & function.__globals__.keys():
            self.look_at(function.__globals__, name, function.__globals__[name], read, depth)
            self.look_at_any_attribute(function.__globals__[name], codes)
        if not is_installed(function):
            self.look_at_own(function, codes, read, depth)
            self.note_files(globally - function.__globals__.keys(), read)

    def look_at_own(
        self, function: types.FunctionType, codes: list[types.CodeType], read: frozenset[str], depth: int
    ) -> None:
        """Look at the default arguments, the attributes and the imports of a function of the user's own."""
        self.look_at_each(function.__defaults__ or (), read, depth)
        self.look_at_names(function.__kwdefaults__ or {}, function.__kwdefaults__ or (), None, depth)
        self.look_at_names(vars(function), vars(function), read, depth)
        for module in modules_imported(function, codes):
            self.look_inside(module, read, depth)

    def look_at_globals_of(self, function: types.FunctionType) -> None:
        """Look at the plain values and containers that a function of a package reads among its module's names."""
        own = function.__globals__
        for name in names_of_globals(function.__code__):
            if name in own and (is_plain(own[name]) or isinstance(own[name], CONTAINERS)):
                self.look_at(own, name, own[name], None, 1)

    def look_at_any_attribute(self, value: typing.Any, codes: list[types.CodeType]) -> None:
        """Look at all plain values of an object where code asks for attributes whose names it makes itself."""
        if not isinstance(value, (types.ModuleType, type, torch.nn.Module)) and any(map(asks_by_any_name, codes)):
            own = namespace_of(value)
            for name in [name for name, held in own.items() if is_plain(held)]:
                self.add(own, name)

    def note_files(self, builtin: set[str], read: frozenset[str]) -> None:
        """Note that code reads a file: each time it may hold something else."""
        readers = ({"open"} & builtin & vars(builtins).keys()) | (FILE_READERS & read)
        if readers:
            self.unfollowed = (
                f"the model or the loss reads a file ({min(readers)}), and a graph would repeat what it held"
            )

    def look_at_names(self, space: dict[str, typing.Any], names: Iterable[str], read: Names, depth: int) -> None:
        """Look at these names of a namespace, where the code reads them."""
        for name in list(names):
            if read is None or name in read:
                self.look_at(space, name, space[name], read, depth)

    def look_at_each(self, values: tuple[typing.Any, ...], read: Names, depth: int) -> None:
        """Look into values that their owner holds for good."""
        for value in values:
            self.look_into(value, read, depth)

    def look_at_class(self, kind: type, read: Names, depth: int) -> None:
        """Look at the values that a class of the user's own, and those it is made of, hold for all their objects."""
        for base in kind.__mro__:
            if not is_of_package(base):
                for name, value in list(vars(base).items()):
                    if (read is None or name in read) and is_data_of_class(name, value):
                        self.look_at(base, name, value, read, depth)
                    elif hasattr(value, "__get__") and not is_of_package(type(value)):  # a decorator that is an object
                        self.look_into(value, read, depth)

    def look_at(
        self, holder: typing.Any, name: typing.Any, value: typing.Any, read: Names, depth: int = DEEPEST_READ
    ) -> None:
        """Note the place of a value, and the places inside it.

        ``read`` are the names that the code around it reads: of an object of any class, a class and a module only those
        of its attributes count that this code or its methods read; all of them where it is None.
        """
        if not isinstance(value, (types.ModuleType, type)):
            self.add(holder, name)
            if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
                self.taken_from = type(value).__name__
                self.unfollowed = (
                    f"the model or the loss takes values from a {self.taken_from}, "
                    "and a graph would repeat the last one"
                )
        self.look_into(value, read, depth)

    def look_into(self, value: typing.Any, read: Names, depth: int) -> None:
        """Look at the parts of a value."""
        if isinstance(value, torch.nn.Module):
            self.look_at_modules(value)
        elif depth and isinstance(value, FUNCTIONS) and not is_installed(value):
            self.look_at_call(value, depth - 1)
        elif depth and isinstance(value, types.FunctionType) and is_of_other_package(value):
            self.look_at_globals_of(value)
        elif depth and isinstance(value, types.BuiltinMethodType) and value.__name__ in READERS:
            self.look_into(value.__self__, None, depth - 1)
        elif depth and isinstance(value, BOUND_KINDS) and isinstance(value.__self__, type):
            self.look_into(value.__self__, read, depth - 1)
        for function in functions_behind(value) if depth else ():
            self.look_at_call(function, depth - 1)
        if isinstance(value, CONTAINERS):
            self.add(value, CONTENTS)
        if depth and not is_plain(value) and (id(value), read) not in self.seen:
            self.seen.add((id(value), read))
            self.look_inside(value, read, depth - 1)

    def look_inside(self, value: typing.Any, read: Names, depth: int) -> None:
        """Look at what a container, an object, a class or a module holds."""
        if isinstance(value, tuple):
            self.look_at_each(value[:MOST_LOOKED_INTO], read, depth)
            return
        if isinstance(value, (types.MappingProxyType, weakref.ReferenceType)):
            inside = gc.get_referents(value)[:1] if isinstance(value, types.MappingProxyType) else [value()]
            self.look_at_each(tuple(inside), read, depth)
            return
        if isinstance(value, type):
            if not is_of_package(type(value)):  # its operators and properties read what the class holds
                self.look_inside(type(value), read, depth)
                read = with_methods(type(value), read)
            self.look_at_class(value, with_methods(value, read), depth)
            called = vars(value) if issubclass(value, torch.autograd.Function) else (read or ())
            for name in () if is_of_package(value) else (*called, *operators_of(value)):
                self.look_at_methods(value, name, depth)
            return
        own = namespace_of(value)
        self.spaces[id(own)] = own
        names, children = children_of(value, read)
        for holder, name, child in children:
            self.look_at(holder, name, child, names, depth)
        if not isinstance(value, (*CONTAINERS, types.ModuleType, torch.Tensor)) and not is_of_package(type(value)):
            self.add_hidden(type(value), own, with_methods(type(value), read))
            self.look_inside(type(value), read, depth)

    def add_hidden(self, kind: type, own: dict[str, typing.Any], read: Names) -> None:
        """Note the places in an object where a value would hide the one that its class holds by the same name."""
        for base in kind.__mro__:
            if not is_of_package(base):
                for name, value in vars(base).items():
                    if name not in own and (read is None or name in read) and is_data_of_class(name, value):
                        self.add(own, name)

    def add(self, holder: typing.Any, name: typing.Any) -> None:
        """Note a place."""
        if len(self.places) < MOST_PLACES:
            self.places[named((holder, name))] = (holder, name)
            self.spaces[id(holder)] = holder


def found_in(*calls: typing.Any) -> Finder:
    """Look at what these models, functions and other objects read when they are called."""
    for kept in (places_of_methods, names_read, operators_of):
        kept.cache_clear()  # a class may have got other methods
    finder = Finder()
    while True:
        for call in calls:
            finder.look_at_call(call)
        own = [function for function in finder.functions if not is_installed(function)]
        names = {name for function in own for code in codes_of(function.__code__) for name in names_in(code)}
        if names <= finder.names:
            return finder
        finder = Finder(finder.names | names)


def functions_behind(call: typing.Any, depth: int = MOST_WRAPPERS) -> Iterator[typing.Any]:
    """The user's own functions that a function or an object of a package calls, such as what a decorator wraps."""
    if not depth or isinstance(call, (type, types.ModuleType, torch.nn.Module)) or not callable(call):
        return
    if not is_installed(call):
        return
    own = getattr(call, "__dict__", None)
    attributes = list(own.values())[:MOST_LOOKED_INTO] if type(own) is dict else []
    for held in (*attributes, *map(value_of_cell, getattr(call, "__closure__", None) or ())):
        if isinstance(held, FUNCTIONS) and not is_installed(held):
            yield held
        elif isinstance(held, FUNCTIONS) or "__wrapped__" in getattr(held, "__dict__", ()):
            yield from functions_behind(held, depth - 1)


def with_methods(kind: typing.Any, read: Names) -> Names:
    """These names, and those that the methods of a class which are among them, and its operators, read."""
    if read is None:
        return read
    called = [name for name in read if hasattr(kind, name)]
    return read.union(*(names_read(kind, name) for name in (*called, *operators_of(kind))))


@functools.cache
def operators_of(kind: type) -> tuple[str, ...]:
    """The methods of a class of the user's own that code calls without their names, such as ``__float__``."""
    own = [name for base in kind.__mro__ if not is_of_package(base) for name in vars(base)]
    special = [name for name in own if name.startswith("__") and isinstance(getattr(kind, name), types.FunctionType)]
    return tuple(name for name in dict.fromkeys(special) if name not in NO_OPERATORS)


def is_config(value: typing.Any) -> bool:
    """Whether an object of a package gives what it holds by keys, or as attributes of the same names."""
    kind = type(value)
    by_name = hasattr(kind, "__getattr__") and hasattr(kind, "__getitem__")
    return (isinstance(value, Mapping) or by_name) and is_of_package(kind) and not isinstance(value, os._Environ)


def children_of(value: typing.Any, read: Names) -> tuple[Names, list[tuple[typing.Any, typing.Any, typing.Any]]]:
    """Return the names to look for inside a value's children, and the children as (holder, name or index, child).

    ``read`` are the names that the code around the value reads. Those of the value's own methods are added for an
    object of any class, and None stands for all names.
    """
    if isinstance(value, CONTAINERS):
        items = {} if isinstance(value, set) else value if isinstance(value, dict) else dict(enumerate(value))
        return read, [(value, key, part) for key, part in list(items.items())[:MOST_LOOKED_INTO]]
    if isinstance(value, ContextVar):
        return read, [(value, "", value.get(None))]
    if isinstance(value, torch.optim.Optimizer):
        groups = [(group, name) for group in value.param_groups for name in group if name != "params"]
        return read, [(group, name, group[name]) for group, name in groups]
    if isinstance(value, types.ModuleType):
        return read, names_of_python_module(value, read)
    own = namespace_of(value)
    if isinstance(value, (types.SimpleNamespace, threading.local)) or is_options(value):
        return read, [(own, name, part) for name, part in list(own.items())[:MOST_LOOKED_INTO]]
    if is_config(value):
        read = None  # what its keys stand for lies in attributes of any names
    names = with_methods(type(value), read)
    found = [(own, name, part) for name, part in list(own.items()) if names is None or name in names]
    slots = [name for kind in type(value).__mro__ if not is_of_package(kind) for name in slots_of(kind)]
    found += [
        (value, name, getattr(value, name)) for name in slots if name in (names or slots) and hasattr(value, name)
    ]
    return read if read is None else names, found


def namespace_of(value: typing.Any) -> dict[str, typing.Any]:
    """The attributes of an object that a call may read and write; empty for what belongs to PyTorch or Python."""
    if isinstance(value, (threading.local, Mapping, torch.optim.lr_scheduler.LRScheduler)):
        own = getattr(value, "__dict__", {})
        return own if type(own) is dict and not isinstance(value, CONTAINERS) else {}
    own = None if isinstance(value, CONTAINERS) else holder_of(value)
    return {} if own is None else typing.cast("dict[str, typing.Any]", own)  # an empty one may be filled later


def names_of_python_module(module: types.ModuleType, read: Names) -> list[tuple[typing.Any, typing.Any, typing.Any]]:
    """The names of a module that code reads; of an installed one only constants, lists of them and the environment."""
    own = vars(module)
    names = own.keys() & (read or ())
    if module is os and "getenv" in names:
        names.add("environ")
    if is_of_package(module):
        names = {
            name
            for name in names
            if is_plain(own[name]) or isinstance(own[name], (list, os._Environ)) or is_of_other_package(own[name])
        }
    return [(own, name, own[name]) for name in names]
