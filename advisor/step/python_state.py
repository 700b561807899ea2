"""Saves and restores the Python attributes of modules."""

import argparse
import collections
import contextlib
import itertools
import operator
import queue
import threading
import types
import typing

import torch

from advisor.step.layouts import have_equal_values
from advisor.step.owners import is_of_library

# Containers and objects that are looked into, at most, and things in each of them. Counts: more are data.
MOST_HOLDERS = 1000
MOST_LOOKED_INTO = 64
# Of a longer list only the length is kept, and of a longer mapping or set nothing. A count of elements.
MOST_COPIED = 1000
# Elements of a container that is compared as a whole, at most. A count: they take some 0.4 ms.
MOST_AS_WHOLE = 40_000
# Attributes of modules that other code looks after: parts, and hooks.
OF_TORCH = frozenset(vars(torch.nn.Module()))
HOOKS = frozenset(name for name in OF_TORCH if "hooks" in name)
PLAIN_KINDS = frozenset((bool, int, float, complex, str, bytes, type(None)))
CONTAINERS = (dict, list, set, collections.deque)
# Of Python's own classes these hold what a program puts there.
NAMESPACES = (types.SimpleNamespace, argparse.Namespace, threading.Event, queue.Queue)


class PythonState:
    """The attributes and buffers of modules, with the contents of containers and objects among these.

    ``with_hooks``: their hooks too, which a forward pass may install, as Hugging Face's does in its first.
    """

    def __init__(self, modules: typing.Iterable[torch.nn.Module], with_hooks: bool = False) -> None:
        modules = list(modules)
        hooks = [vars(module)[name] for module in modules for name in HOOKS & vars(module).keys() if with_hooks]
        self.held = [(holder, contents_copied(holder)) for holder in (*holders_in(modules), *hooks)]
        self.scripts = Scripts(modules)
        self.of_scripts = self.scripts.read()

    @property
    def is_other_now(self) -> bool:
        """Whether any of them holds other objects, or in another order."""
        same = all(holds_same(holder, contents) for holder, contents in self.held)
        return not same or not same_leaves(self.scripts.read(), self.of_scripts)

    def put_back(self) -> None:
        """Give all of them the contents that they had. What was written into a tensor stays."""
        for holder, contents in self.held:
            give_contents(holder, contents)
        self.scripts.put_back(self.of_scripts)


class Scripts:
    """The modules of TorchScript among some, which hold their modes, numbers and tensors beside Python's attributes."""

    def __init__(
        self, modules: typing.Iterable[torch.nn.Module], is_wanted: typing.Callable[[str], bool] = operator.truth
    ) -> None:
        kinds = [(vars(one)["_c"], vars(one)["_concrete_type"]) for one in modules if "_concrete_type" in vars(one)]
        self.places = [(held, name) for held, kind in kinds for name in kind.get_attributes() if is_wanted(name)]

    def read(self) -> list[typing.Any]:
        """All that they hold; lists and dictionaries are copies."""
        return [held.getattr(name) for held, name in self.places]

    def put_back(self, values: list[typing.Any]) -> None:
        """Give them what was read before."""
        for (held, name), now, value in zip(self.places, self.read(), values, strict=True):
            if not same_leaves(now, value):
                held.setattr(name, value)


def same_leaves(one: typing.Any, other: typing.Any) -> bool:
    """Whether two nested lists and dictionaries hold the same tensors and objects, and equal numbers and texts."""
    leaves, others = torch.utils._pytree.tree_leaves(one), torch.utils._pytree.tree_leaves(other)
    return len(leaves) == len(others) and all(
        now is then or (type(now) is type(then) and type(now) in PLAIN_KINDS and now == then)
        for now, then in zip(leaves, others, strict=True)
    )


@contextlib.contextmanager
def buffers_kept(*modules: torch.nn.Module) -> typing.Iterator[None]:
    """Give the buffers of modules their values back on leaving."""
    buffers = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                if not have_equal_values(buffer, value):
                    buffer.copy_(value)


def holders_in(modules: typing.Iterable[torch.nn.Module]) -> list[typing.Any]:
    """The namespaces and buffers of modules, and the containers and objects that are reached from their attributes."""
    found: dict[int, typing.Any] = {}
    waiting: collections.deque[typing.Any] = collections.deque()
    for module in modules:
        own = vars(module)
        parts = [own, own["_buffers"]] if isinstance(own.get("_buffers"), dict) else [own]
        found |= {id(part): part for part in parts}
        waiting += [value for name, value in own.items() if type(value) not in PLAIN_KINDS and name not in OF_TORCH]
    while waiting and len(found) < MOST_HOLDERS:
        holder = holder_of(waiting.popleft())
        if holder is not None and id(holder) not in found:
            found[id(holder)] = holder
            inside = itertools.islice(holder.values() if isinstance(holder, dict) else holder, MOST_LOOKED_INTO)
            waiting += [value for value in inside if type(value) not in PLAIN_KINDS]
    return list(found.values())


def holder_of(value: typing.Any) -> typing.Any:
    """A container, or the namespace of an object; None for values that a call cannot write to."""
    if isinstance(value, CONTAINERS):
        return value
    if isinstance(value, (torch.Tensor, torch.nn.Module, type, types.FunctionType, types.ModuleType)):
        return None
    if is_of_library(type(value)) and not isinstance(value, NAMESPACES):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if type(attributes) is dict else None


def is_compared_as_whole(value: typing.Any) -> bool:
    """Whether a set, or a long list or dictionary of numbers, is compared by all that is in it."""
    if isinstance(value, (list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return MOST_LOOKED_INTO < len(value) <= MOST_AS_WHOLE and PLAIN_KINDS.issuperset(map(type, parts))
    return isinstance(value, set) and len(value) <= MOST_AS_WHOLE


def contents_copied(holder: typing.Any) -> typing.Any:
    """A copy of a container's contents; the length of a long list; None where it is too much."""
    if len(holder) > MOST_COPIED:
        return len(holder) if isinstance(holder, list) else None
    return dict(holder) if isinstance(holder, dict) else list(holder)


def holds_same(holder: typing.Any, contents: typing.Any) -> bool:
    """Whether a container has the same contents as when they were copied."""
    if contents is None or isinstance(contents, int):
        return contents is None or len(holder) == contents
    one, other = ((*part, *part.values()) if isinstance(part, dict) else tuple(part) for part in (holder, contents))
    return len(one) == len(other) and all(map(operator.is_, one, other))


def give_contents(holder: typing.Any, contents: typing.Any) -> None:
    """Restore the contents of a container; a long list loses the appended elements."""
    if isinstance(contents, int):
        del holder[contents:]
    elif isinstance(holder, list):
        holder[:] = contents
    elif contents is not None:
        holder.clear()
        (holder.extend if isinstance(holder, collections.deque) else holder.update)(contents)
