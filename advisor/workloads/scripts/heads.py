"""The heads of a script's training loops: the measured one begins anew where its items end."""

import ast
import builtins
import sys
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from types import CodeType
from typing import Any, ClassVar

from advisor.python.trees import functions_that, names_called

_HEAD = "__perf_advisor_head__"
_TRAINS = frozenset({"backward", "step"})
# The names under which tqdm's and click's bars hold what they wrap.
_WRAPPED = ("iterable", "iter")
# Items that are kept of what can be read only once. A count; enough that rounds do not all see the same.
_MOST_KEPT = 32


class Head(Iterator[Any]):
    """The items of a loop. While it ``goes_on``, they start again at their end, and counts after some rounds."""

    #: The latest of each loop, by its code and line.
    latest: ClassVar[MutableMapping[tuple[CodeType, int], "Head"]] = weakref.WeakValueDictionary()

    def __init__(self, items: Iterable[Any]) -> None:
        frame = sys._getframe(1)
        self.latest[frame.f_code, frame.f_lineno] = self
        self.goes_on = False
        self.counts_to: int | None = None
        self._items, self._iterator = items, iter(items)
        self._is_counted = within(items)[1]
        self._kept: list[Any] | None = [] if self._iterator is items else None
        self._first: int | None = None

    def __next__(self) -> Any:
        """The next item, with the count of its place in this pass."""
        try:
            item = next(self._iterator)
        except StopIteration:
            item = self._anew()
        if self._kept is not None and len(self._kept) < _MOST_KEPT:
            self._kept.append(item)
        if not self._is_counted:
            return item
        self._first = item[0] if self._first is None else self._first
        count = (item[0] - self._first) % self.counts_to if self.counts_to else item[0] - self._first
        return self._first + count, *item[1:]

    def _anew(self) -> Any:
        if not self.goes_on:
            raise StopIteration
        if self._kept is not None:
            self._items, self._kept = self._kept, None
        self._iterator = iter(self._items)
        return next(self._iterator)


def with_heads(source: bytes, file: str) -> CodeType:
    """Compile a file whose loops that train have a :class:`Head`. Raises SyntaxError."""
    setattr(builtins, _HEAD, Head)
    tree = ast.parse(source, file)
    if any(name.encode() in source for name in _TRAINS):
        train = _TRAINS | functions_that(tree, lambda one: bool(names_called(one) & _TRAINS))
        for loop in [node for node in ast.walk(tree) if isinstance(node, ast.For) and names_called(node) & train]:
            head = ast.Call(ast.Name(_HEAD, ast.Load()), [loop.iter], [])
            loop.iter = ast.fix_missing_locations(ast.copy_location(head, loop))
    code: CodeType = compile(tree, file, "exec")
    return code


def within(value: Any) -> tuple[Any, bool]:
    """The object inside progress bars and ``enumerate``, and whether the latter counts it."""
    counts = False
    while True:
        if type(value) is enumerate:
            value, counts = value.__reduce__()[1][0], True
            continue
        name = next((name for name in _WRAPPED if getattr(value, name, None) is not None), "")
        if not name:
            return value, counts
        value = getattr(value, name)
