"""The names that a loop's body sees: those of its function, with what inner functions share, and its module's."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from types import CellType, FrameType
from typing import Any


class Names(dict[str, Any]):
    """The names of a function's frame that has ended, as the globals of code that runs in its place.

    A variable that inner functions share is read and written where these have it, and a name of the module is looked up
    each time: both may change while the body runs.
    """

    def __init__(self, frame: FrameType) -> None:
        self._shared = _cells(frame)
        self._module: Mapping[str, Any] = frame.f_globals
        super().__init__({name: value for name, value in frame.f_locals.items() if name not in self._shared})

    def __missing__(self, name: str) -> Any:
        """The value of a shared variable or of a name of the module. Raises KeyError where it has none."""
        if name not in self._shared:
            return self._module[name]
        try:
            return self._shared[name].cell_contents
        except ValueError:  # not assigned yet
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        """Assign to a name, as a statement of the function would."""
        if name in self._shared:
            self._shared[name].cell_contents = value
        else:
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        """Unbind a name."""
        if name in self._shared:
            del self._shared[name].cell_contents
        else:
            super().__delitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or ``default``."""
        try:
            return self[name]
        except KeyError:
            return default


def _cells(frame: FrameType) -> dict[str, CellType]:
    """The variables of a frame that inner functions share with it, or that it shares with outer ones."""
    names = (*frame.f_code.co_cellvars, *frame.f_code.co_freevars)
    cells = [held for held in gc.get_referents(frame) if isinstance(held, CellType)]
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else {}
