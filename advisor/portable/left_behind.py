"""Values that a captured step leaves in names for the loop to read, such as a dictionary of figures to log."""

import collections
import itertools
import types
import typing
from contextvars import ContextVar

import torch

from advisor.portable.nested import map_tensors, tensors_of
from advisor.portable.places import put_at, value_at
from advisor.portable.python_state import MOST_LOOKED_INTO, PythonState
from advisor.portable.read_code import codes_of, stored_names


class LeftBehind:
    """Gives the loop tensors of its own after each replay, as a step that runs does.

    The names that a captured call binds hold memory of the graph, which each replay overwrites: a loop that keeps what
    it finds there would have the last step's in all places. Made before the capture; ``look`` comes after it.
    """

    def __init__(
        self,
        modules: typing.Iterable[torch.nn.Module],
        functions: typing.Iterable[types.FunctionType],
        spaces: typing.Iterable[typing.Any],
    ) -> None:
        functions = list(functions)
        around = [cell for function in functions for cell in function.__closure__ or ()]
        held = [holder for holder, _ in PythonState(modules).held]
        sets_globals = [
            function.__globals__ for function in functions if any(map(stored_names, codes_of(function.__code__)))
        ]
        found = {id(space): space for space in (*spaces, *around, *held, *sets_globals)}
        self.before = [(space, values_in(space)) for space in found.values()]
        self.left: list[tuple[typing.Any, typing.Any, typing.Any]] = []

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


def values_in(space: typing.Any) -> dict[typing.Any, typing.Any]:
    """The values in a namespace, a container, a class or a cell, by name or index."""
    if isinstance(space, dict):
        return dict(space)
    if isinstance(space, (list, collections.deque)):
        return dict(enumerate(itertools.islice(space, MOST_LOOKED_INTO)))
    if isinstance(space, type):
        return dict(vars(space))
    return {"": value_at(space, "")} if isinstance(space, (types.CellType, ContextVar)) else {}
