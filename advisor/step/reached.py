"""The objects that a DataLoader's workers get a copy of, found from its dataset and functions, and their contents."""

import collections
import contextlib
import ctypes
import enum
import functools
import itertools
import os
import types
import typing
import zlib

import torch

from advisor.step.owners import is_of_library, is_of_package
from advisor.step.read_code import (
    ENVIRONMENT,
    USES_GLOBAL,
    function_behind,
    is_data_of_class,
    names_asked,
    names_of_globals,
)

# Objects that are looked through for code that divides samples among workers, at most. A count.
MOST_LOOKED_AT = 2000
# Things in one container that are looked into, beside the container itself. A count.
MOST_IN_ONE = 64
# Objects that are looked at before each batch, at most. A count: they take some 0.1 ms.
MOST_WATCHED = 64
# Arrays of fewer bytes are compared by their contents between epochs.
MOST_BYTES = 64_000_000
# Arrays of at most this size are compared by their contents before each batch too: some 0.1 ms each.
MOST_BYTES_WATCHED = 100_000
# What DataLoader, and a copy of one, put into themselves as epochs begin.
OF_EPOCHS = ("_iterator", "_get_iterator")


class Nothing:
    """In place of a value that there is not."""


def given_to_workers(loader: typing.Any) -> list[tuple[typing.Any, typing.Any]]:
    """The objects that workers can see when they start, each with its contents; those found within a bounded search."""
    found: list[tuple[typing.Any, typing.Any]] = []
    for one, held in seen_by_workers(loader):
        with contextlib.suppress(Exception):  # an object of any class may refuse to be looked into
            found.append((one, contents_of(one, held)))
    return found


def seen_by_workers(loader: typing.Any) -> typing.Iterator[tuple[typing.Any, list[typing.Any]]]:
    """The dataset, the functions that a loader calls in workers, and the objects that these hold and read."""
    return reached_from([loader.dataset, loader.collate_fn, loader.worker_init_fn], things_in)


def reached_from(
    roots: typing.Iterable[typing.Any],
    parts_of: typing.Callable[[typing.Any], list[typing.Any]],
    most_in_one: int = MOST_IN_ONE,
) -> typing.Iterator[tuple[typing.Any, list[typing.Any]]]:
    """These objects and all that is reached from them, each once; of one at most ``most_in_one`` parts are followed."""
    waiting: collections.deque[typing.Any] = collections.deque(roots)
    seen: dict[int, typing.Any] = {}
    while waiting and len(seen) < MOST_LOOKED_AT:
        one = waiting.popleft()  # what is near before what is deep inside
        if id(one) not in seen:
            seen[id(one)] = one  # kept, or another object could get its number
            try:
                parts = parts_of(one)
                waiting += [part for part in parts if not is_value(part)][:most_in_one]
            except Exception:  # noqa: S112 - an object of any class may refuse to be looked into
                continue
            yield one, parts


def things_in(one: typing.Any) -> list[typing.Any]:
    """The contents of a container, the attributes of an object, or the values that functions or methods read."""
    if isinstance(one, (list, tuple, set, frozenset)):
        return list(one)
    if isinstance(one, dict):
        return [*one, *one.values()]
    if isinstance(one, (torch.Tensor, torch.Generator, types.ModuleType, type)):
        return list(data_of_class(one).values()) if isinstance(one, type) else []
    if isinstance(one, types.FunctionType):
        return [] if is_of_library(one) else list(read_around(one).values())
    if isinstance(one, (types.MethodType, functools.partial)):
        return parts_with_code(one)
    kinds = [kind for kind in type(one).__mro__ if not is_of_library(kind)]
    methods = [function for kind in kinds for function in functions_of(kind)]
    return [*own_attributes(one).values(), *methods, *filter(data_of_class, kinds)]


def own_attributes(one: typing.Any) -> dict[str, typing.Any]:
    """The attributes of an object, without those by which a DataLoader makes its epochs."""
    held = dict(getattr(one, "__dict__", {}))
    for name in OF_EPOCHS if isinstance(one, torch.utils.data.DataLoader) else ():
        held.pop(name, None)
    return held


def functions_of(kind: type) -> list[types.FunctionType]:
    """The functions in a class: methods, and those behind properties, class methods and static methods."""
    return [one for one in map(function_behind, vars(kind).values()) if isinstance(one, types.FunctionType)]


def data_of_class(kind: type) -> dict[str, typing.Any]:
    """Return the data attributes of one of the user's classes, by name: neither methods nor descriptors."""
    if is_of_library(kind):
        return {}
    return {name: value for name, value in vars(kind).items() if is_data_of_class(name, value)}


def contents_of(one: typing.Any, held: list[typing.Any]) -> typing.Any:
    """A value that is another when an object holds other things, or when something was written into it."""
    if isinstance(one, torch.Tensor):
        return one.shape, None if one.is_inference() else one._version
    if hasattr(one, "__array_interface__") and getattr(one, "nbytes", MOST_BYTES) < MOST_BYTES:
        return one.shape, zlib.crc32(one.tobytes())
    return len(held), hash(tuple(thing if is_value(thing) else id(thing) for thing in held))


def is_value(thing: typing.Any) -> bool:
    """Whether a thing is compared by its value, and not by where it is in memory."""
    return thing is None or isinstance(thing, (int, float, complex, str, bytes))


def same_things(one: list[tuple[typing.Any, typing.Any]], other: list[tuple[typing.Any, typing.Any]]) -> bool:
    """Whether two lists have the same objects that hold the same."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a is b and held == now for (a, held), (b, now) in pairs)


def watched_of(things: typing.Iterable[typing.Any]) -> list[tuple[typing.Any, dict[str, typing.Any]]]:
    """The first objects with attributes among these, and functions that read values, with how each name stands now."""
    found = ((one, {name: standing(value) for name, value in names_read_in(one).items()}) for one in things)
    return list(itertools.islice(((one, names) for one, names in found if names or has_names(one)), MOST_WATCHED))


def changed_in(watched: typing.Iterable[tuple[typing.Any, dict[str, typing.Any]]]) -> str:
    """A name whose value has changed since, as ``Images.size``; empty for none.

    An object where there was None or nothing is no change: it was made when it was first asked for.
    """
    for one, before in watched:
        is_function = isinstance(one, types.FunctionType)
        held = names_read_in(one)
        for name in before if is_function else held:
            value, then = held.get(name), before.get(name)
            if value is not then and (standing(value),) != (then,) and (then is not None or is_value(value)):
                owner = one if isinstance(one, type) else type(one)
                return name if is_function else f"{owner.__name__}.{name}"
    return ""


def names_read_in(one: typing.Any) -> dict[str, typing.Any]:
    """The attributes of an object or a class, or the values, containers and tensors that a function reads."""
    if has_names(one):
        return own_attributes(one)
    if isinstance(one, type):
        return data_of_class(one)
    if not isinstance(one, types.FunctionType) or is_of_library(one):
        return {}
    return {name: value for name, value in read_around(one).items() if is_value(value) or is_written_to(value)}


def is_written_to(value: typing.Any) -> bool:
    """Whether a value may become another without another taking its place, in a way that can be seen."""
    return (
        isinstance(value, (list, dict, torch.Tensor)) or is_shared(value) or hasattr(type(value), "__array_interface__")
    )


def is_shared(value: typing.Any) -> bool:
    """Whether a value is of ``multiprocessing.Value`` or ``Array``, which this process and its workers share."""
    return isinstance(value, (ctypes._SimpleCData, ctypes.Array))


def has_names(one: typing.Any) -> bool:
    """Whether a thing is an object whose attributes are its owner's: no code, container, tensor or constant."""
    others = (types.FunctionType, types.MethodType, types.ModuleType, type, enum.Enum, dict, list, tuple, torch.Tensor)
    return isinstance(getattr(one, "__dict__", None), dict) and not isinstance(one, others)


def standing(value: typing.Any, depth: int = 1) -> typing.Any:
    """A snapshot of a value that compares equal until the value changes: itself, or its place and its contents."""
    if is_value(value):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    if is_shared(value):
        return id(value), bytes(value) if ctypes.sizeof(value) <= MOST_BYTES_WATCHED else None
    if hasattr(type(value), "__array_interface__") and value.nbytes <= MOST_BYTES_WATCHED:
        return id(value), zlib.crc32(value.tobytes())
    if depth and isinstance(value, (list, tuple, dict)) and len(value) <= MOST_IN_ONE:
        return [standing(part, 0) for part in (value.values() if isinstance(value, dict) else value)]
    return id(value)


def divides_samples(loader: typing.Any) -> bool:
    """Whether an iterable dataset, or its ``worker_init_fn``, asks which worker it is in.

    The code of their classes is looked through, and that of what they hold and call; it is not run.
    """
    found = reached_from([loader.dataset, loader.worker_init_fn], parts_with_code, MOST_LOOKED_AT)
    return any(asks_for_worker(one) for one, _ in found)


def asks_for_worker(one: typing.Any) -> bool:
    """Whether code asks which worker it is in, or an object is a pipe of PyTorch's that the loader divides."""
    named = isinstance(one, types.CodeType) and "get_worker_info" in one.co_names
    return named or one is torch.utils.data.get_worker_info or hasattr(type(one), "apply_sharding")


def parts_with_code(one: typing.Any) -> list[typing.Any]:
    """The parts of a function, container or object that may hold code; none of PyTorch's own functions and classes."""
    if isinstance(one, types.CodeType):
        return list(one.co_consts)
    if isinstance(one, types.FunctionType):
        named = [one.__code__, *closed_over(one), *filter(callable, globals_of(one).values())]
        return [] if is_of_library(one) else named
    if isinstance(one, (list, tuple, dict)):
        return list(one.values() if isinstance(one, dict) else one)[:16]
    if isinstance(one, (types.MethodType, functools.partial)):
        return [
            getattr(one, name) for name in ("__func__", "__self__", "func", "args", "keywords") if hasattr(one, name)
        ]
    classes = one.__mro__ if isinstance(one, type) else type(one).__mro__
    functions = [function for kind in classes if not is_of_library(kind) for function in functions_of(kind)]
    held = {} if isinstance(one, (type, torch.Tensor)) else getattr(one, "__dict__", {})
    return [*functions, *held.values()]


def globals_of(function: typing.Any) -> dict[str, typing.Any]:
    """The global names that a function reads or sets, also in functions within it, with their present values."""
    held = function.__globals__
    return {name: held[name] for name in names_of_globals(function.__code__, USES_GLOBAL) if name in held}


def read_around(function: typing.Any) -> dict[str, typing.Any]:
    """The variables around a function and the global names that it reads or sets, with their present values.

    Of a module of the user's own it is what is read there, as ``options.size``, and of ``os`` the environment.
    """
    around = variables_around(function)
    found = {**around, **globals_of(function)}
    for name in names_asked(function.__code__):
        first, *inside = name.split(".")
        value = around.get(first, function.__globals__.get(first, Nothing))
        if value is os and not ENVIRONMENT.isdisjoint(inside):
            found["os.environ"] = os.environ
        for attribute in inside:
            inside_users = isinstance(value, types.ModuleType) and not is_of_package(value)
            value = getattr(value, attribute, Nothing) if inside_users else Nothing
        if value is not Nothing:
            found[name] = value
    return found


def closed_over(function: typing.Any) -> list[typing.Any]:
    """The values of a closure's variables; those without a value yet are left out."""
    return list(variables_around(function).values())


def variables_around(function: typing.Any) -> dict[str, typing.Any]:
    """A closure's variables by name; those without a value yet are left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found
