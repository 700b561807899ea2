"""The Python state that a step of the user's own reaches: compared with what it was, and put back."""

import collections
import operator
import types
import typing
from itertools import chain

import torch

from advisor.step.optimizer import updates_without_host
from advisor.step.owners import is_in_package, is_installed
from advisor.step.places import AS_WHOLE, LOCKS, Place, inner_state, is_plain, put_at, value_at
from advisor.step.python_state import give_contents
from advisor.step.walk import Walk
from advisor.step.watching import CODE_OF, Places

# Largest NumPy array that is compared by its contents. Bytes.
MOST_ARRAY_BYTES = 4096


class ReachableState(Walk):
    """The state that functions and objects reach, as it is now.

    ``facts`` has a value for each name, such as ``trainer.steps``: of plain values themselves, of containers their
    class and size, of tensors and other objects which one it is. ``is_same_now`` compares the objects, quickly; an
    equal container or number in the place of another makes no difference to ``changed_since``, which compares facts.
    Learning rates of optimizers that read them on the device are left out: a captured step has them in tensors.
    """

    only_reads = False

    def __init__(self, *roots: typing.Any) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        super().__init__(*roots)
        self.facts = {label: fact_of(value) for label, (value, place) in self.noted.items() if not is_empty(*place)}
        named = {id(value) for value, _ in self.noted.values()}
        self.facts["what an array or a queue holds"] = [inner_state(one) for one in self.arrays if id(one) not in named]
        self.facts["the code of functions"] = [fact_of(one) for one in self.functions if not is_installed(one)]
        self._singles = Places(self.singles)
        self.remember()

    def _problem_of(self, label: str, thing: typing.Any, *, owned: bool) -> str:
        return super()._problem_of(label, thing, owned=owned) or why_not_watched(label, thing)

    def _look_at_optimizer(self, label: str, optimizer: torch.optim.Optimizer) -> None:
        """Look at all of an optimizer, but for the rates that a captured step has in tensors."""
        if updates_without_host(optimizer):
            for place, group in enumerate(optimizer.param_groups):
                self.seen[id(group)] = group
                self._look_at_some(f"{label}.param_groups[{place}]", group, sorted(group.keys() - {"lr"}), always=group)
        self.optimizers.append(optimizer)
        self._look_at_attributes(label, optimizer)

    def is_same_now(self) -> bool:
        """Whether all places hold the same objects."""
        if self._read_sizes() != self._sizes or self._contents != list(map(inner_state, self.arrays)):
            return False
        if self._kinds != list(map(type, self.objects)) or self._codes != self._read_codes():
            return False
        return all(map(operator.is_, self._read_values(), self._values))

    def changed_since(self, before: "ReachableState") -> list[str]:
        """The names of what is another than before, came or went."""
        names = {**self.facts, **before.facts}
        return [name for name in names if self.facts.get(name, "none") != before.facts.get(name, "none")]

    def put_back(self) -> None:
        """Give all variables, containers and objects what they held. What was written into a tensor stays."""
        for held, kept in self._kept:
            give_contents(held, kept)
        for held, names in self._had:
            for name in held.keys() - names:
                del held[name]
        for place, value in zip(self._singles.places, self._single_values, strict=True):
            if value_at(*place) is not value:
                put_at(*place, value)

    def tensor_at(self, name: str) -> tuple[torch.Tensor, Place] | None:
        """The tensor of this name and the place where another may come; None where there is none."""
        value, place = self.noted.get(name, (None, (None, None)))
        movable = isinstance(value, torch.Tensor) and not isinstance(place[0], (tuple, set, frozenset))
        return (value, place) if movable else None

    def draws(self) -> list[typing.Any]:
        """The states of the random generators that were found."""
        return list(map(inner_state, self.generators))

    def remember(self) -> None:
        """Take what the places hold now for what ``is_same_now`` and ``put_back`` compare with and put there."""
        self._sizes = self._read_sizes()
        self._filled = [held for held in self.dicts if held]  # most have nothing, such as those for hooks
        self._single_values = self._singles.read()
        self._kept = [(held, dict(dict.items(held))) for held in self.dicts] + [
            (held, list(held)) for held in self.sequences
        ]
        self._had = [(held, set(held)) for held in self.namespaces]
        self._values = list(self._read_values())
        self._contents = list(map(inner_state, self.arrays))
        self._kinds = list(map(type, self.objects))
        self._codes = self._read_codes()

    def _read_sizes(self) -> list[int]:
        others = chain(self.sequences, self.namespaces, self.classes)
        return [*map(dict.__len__, self.dicts), *map(len, others)]

    def _read_codes(self) -> list[types.CodeType]:
        return list(map(CODE_OF, self.functions))

    def _read_values(self) -> typing.Iterator[typing.Any]:
        filled = self._filled
        inside = chain(chain.from_iterable(map(dict.keys, filled)), chain.from_iterable(map(dict.values, filled)))
        return chain(inside, chain.from_iterable(self.sequences), self._singles.read())


def is_empty(holder: typing.Any, name: typing.Any) -> bool:
    """Whether a namespace lacks this name, so that the class's value counts; one that holds None does not lack it."""
    return isinstance(holder, dict) and not dict.__contains__(holder, name)


def why_not_watched(label: str, thing: typing.Any) -> str:
    """A sentence on an object whose changes cannot be seen; empty for others."""
    if isinstance(thing, torch.cuda.CUDAGraph):
        return f"the step replays a CUDA graph of its own, {label}"
    if hasattr(type(thing), "__array_interface__") and thing.nbytes > MOST_ARRAY_BYTES:
        return f"the step reaches the NumPy array {label} of {thing.nbytes:,} bytes, too large to watch for a change"
    return ""


def fact_of(value: typing.Any) -> typing.Any:
    """The key by which a value is compared: itself, a container's class and size, a function's code, or an identity."""
    if is_plain(value):
        return type(value), value
    if isinstance(value, dict):
        return type(value), [key for key in dict.keys(value) if is_plain(key)], len(value)
    if isinstance(value, (tuple, frozenset, list, set, collections.deque)):
        return type(value), len(value)
    if isinstance(value, types.MethodType):
        return id(value.__self__), id(value.__func__)
    if isinstance(value, types.FunctionType) and not is_in_package(value.__code__.co_filename):
        return id(value.__code__), fact_of(value.__defaults__), fact_of(value.__kwdefaults__)  # its closure has places
    is_array = hasattr(type(value), "__array_interface__") and value.nbytes <= MOST_ARRAY_BYTES
    return inner_state(value) if is_array or isinstance(value, (*AS_WHOLE, *LOCKS)) else (id(value), type(value))
