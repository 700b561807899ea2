"""Places that hold plain values, tensors and objects, such as a name in a namespace or the cell of a closure."""

import array
import collections
import ctypes
import dataclasses
import enum
import itertools
import logging
import multiprocessing.synchronize
import os
import pickle
import queue
import random
import threading
import types
import typing
import zlib
from collections.abc import Iterable
from contextvars import ContextVar

import torch

from advisor.step.python_state import PLAIN_KINDS, contents_copied, give_contents

# A namespace, a list, a class, the cell of a closure, an object with slots or a context variable, and the name or the
# index of a value in it.
Place = tuple[typing.Any, typing.Any]
# The name of a place that is a container as a whole.
CONTENTS = "its contents"
# Values of which there is one object each, or which compare as numbers do.
CONSTANTS = (enum.Enum, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
# Python's own objects that are compared by what is in them, and functions that return it. These are arrays, what
# processes share, the environment, queues, semaphores, and loggers with their manager, of which the levels count.
INSIDE: tuple[tuple[typing.Any, typing.Callable[[typing.Any], typing.Any]], ...] = (
    ((array.array, bytearray, memoryview, ctypes._SimpleCData, ctypes.Array, ctypes.Structure), bytes),
    (os._Environ, lambda value: dict(value._data)),
    (queue.SimpleQueue, queue.SimpleQueue.qsize),
    (multiprocessing.synchronize.Semaphore, multiprocessing.synchronize.Semaphore.get_value),
    (logging.Logger, lambda value: (value.disabled, value.manager.disable, value.level, value.getEffectiveLevel())),
    (logging.Manager, lambda value: (value.disable, value.root.level, levels_of(value.loggerDict))),
)
AS_WHOLE = tuple(kind for kind, _ in INSIDE)
# Locks of threads, whose text says whether they are held, and of processes.
LOCKS = (type(threading.Lock()), type(threading.RLock()), multiprocessing.synchronize.SemLock)
# Containers and generators, of which only some are compared so.
OTHERS_INSIDE: typing.Any = (
    (set, frozenset),
    (list, tuple),
    (dict, lambda value: (tuple(value), tuple(value.values()))),
    (random.Random, random.Random.getstate),
    (multiprocessing.synchronize.SemLock, lambda value: value._semlock._get_value()),
    (LOCKS, repr),
)
# Elements of an array that go into its sum; of more, as many evenly spaced. A count: they take some 0.1 ms.
MOST_SUMMED = 100_000


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
            if value_at(*place) is not value:
                put_at(*place, value)


def put_at(holder: typing.Any, name: typing.Any, value: typing.Any) -> None:
    """Put a value into its place."""
    if isinstance(holder, dict):
        dict.__setitem__(holder, name, value)
    elif isinstance(holder, (list, collections.deque)):
        if name < len(holder):
            holder[name] = value
    elif isinstance(holder, type):
        setattr(holder, name, value)
    elif isinstance(holder, types.CellType):
        holder.cell_contents = value
    elif isinstance(holder, ContextVar):
        holder.set(value)
    else:
        object.__setattr__(holder, name, value)


def named(place: Place) -> tuple[int, typing.Any]:
    """A place as what it can be found by: namespaces themselves would be compared by what is in them."""
    return id(place[0]), place[1]


def value_at(holder: typing.Any, name: typing.Any) -> typing.Any:
    """The value in a place; None where there is none."""
    if isinstance(holder, dict):
        return dict.get(holder, name)
    if isinstance(holder, (list, collections.deque)):
        return holder[name] if name < len(holder) else None
    if isinstance(holder, type):
        return vars(holder).get(name)
    if isinstance(holder, types.CellType):
        return value_of_cell(holder)
    return holder.get(None) if isinstance(holder, ContextVar) else getattr(holder, name, None)


def value_of_cell(cell: typing.Any) -> typing.Any:
    """The value in the cell of a closure."""
    try:
        return cell.cell_contents
    except ValueError:  # deleted in the function that it is a variable of
        return None


def is_plain(value: typing.Any) -> bool:
    """Whether a value is a number, a text or another constant, or a tuple of such."""
    kind = type(value)
    if kind in PLAIN_KINDS or isinstance(value, CONSTANTS):
        return True
    if hasattr(kind, "__array_interface__"):
        return not hasattr(kind, "__setitem__")  # a number of NumPy's
    return kind is tuple and all(map(is_plain, value))


def is_options(value: typing.Any) -> bool:
    """Whether an object is one of options: a dataclass, or what ``argparse`` makes."""
    of_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return hasattr(value, "__dict__") and (of_dataclass or type(value).__name__ == "Namespace")


def levels_of(loggers: dict[str, typing.Any]) -> typing.Any:
    """The levels of loggers, and which of them are turned off."""
    own: list[typing.Any] = list(map(vars, loggers.values()))
    return [list(map(dict.get, own, itertools.repeat(name))) for name in ("level", "disabled")]


def inner_state(value: typing.Any) -> typing.Any:
    """A value that changes when an object is written to; None for an object that is compared by its place alone.

    These are arrays, random generators, sets, lists and dictionaries of numbers, the environment, loggers and locks.
    """
    for kind, inside in (*INSIDE, *OTHERS_INSIDE):
        if isinstance(value, kind):
            return inside(value)
    if hasattr(type(value), "__array_interface__"):
        part = value if value.size <= MOST_SUMMED else value.reshape(-1)[:: value.size // MOST_SUMMED]
        return value.shape, str(value.dtype), zlib.crc32(part.tobytes())  # of objects it is where they are
    if isinstance(value, torch.Generator):
        return value.get_state().tolist() if value.device.type == "cpu" else None
    drawn = [getattr(value, name) for name in ("bit_generator", "_bit_generator") if hasattr(type(value), name)]
    return pickle.dumps(drawn[0].state) if drawn else None  # of NumPy's generators
