"""Where a script's loop gets its batches: in its head, which begins anew where its items end, or with ``next``."""

import ast
import builtins
import sys
import weakref
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from types import CodeType
from typing import Any, ClassVar

from advisor.python.loops import FoundLoop
from advisor.python.trees import Loop, functions_that, holds, name_called, names_called, value_of, walk
from advisor.workloads.scripts.seen import Seen, same_values

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
        self.item: Any = None  # the latest one, until it goes on
        self.counts_to: int | None = None
        self._items, self._iterator = items, iter(items)
        self._is_counted = _counts(items)
        self._kept: list[Any] | None = [] if self._iterator is items else None
        self._first: int | None = None

    def __next__(self) -> Any:
        """The next item, with the count of its place in this pass."""
        try:
            item = next(self._iterator)
        except StopIteration:
            if not self.goes_on:
                raise
            if self._kept is not None:
                self._items, self._kept = self._kept, None
            self._iterator = iter(self._items)
            item = next(self._iterator)
        if self._kept is not None and len(self._kept) < _MOST_KEPT:
            self._kept.append(item)
        self.item = None if self.goes_on else item
        if not self._is_counted:
            return item
        self._first = item[0] if self._first is None else self._first
        count = (item[0] - self._first) % self.counts_to if self.counts_to else item[0] - self._first
        return self._first + count, *item[1:]


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


def _counts(items: Any) -> bool:
    """Whether ``enumerate`` counts these items, also inside progress bars."""
    while items is not None and type(items) is not enumerate:
        inner = (getattr(items, name, None) for name in _WRAPPED)
        items = next((one for one in inner if one is not None), None)
    return items is not None


# --- the batch of a round ---------------------------------------------------------------------------------------------


def batch_in_head(loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of the batch in the head of a ``for`` loop, whose item it is or a part of, as behind a count."""
    if not isinstance(loop.statement, ast.For) or seen.loader is None:
        return None
    target, names = loop.statement.target, loop.where.names
    head = Head.latest.get((loop.where.code, loop.statement.lineno))
    if head is None and value_of(loop.statement.iter, names) is seen.loader:
        return target
    item = value_of(target, names) if head is None else head.item
    parts = zip(target.elts, item, strict=False) if isinstance(target, ast.Tuple) and isinstance(item, Sequence) else ()
    return next((one for one, value in [(target, item), *parts] if same_values(value, seen.batch)), None)


def batch_in_body(block: list[ast.stmt], loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of the batch that a loop reads with one ``next``. That statement is taken out. None without one."""
    lines = {line for code, line in seen.reads if code is loop.where.code and holds(loop.statement, line)}
    inner = [one for one in walk(loop.statement.body) if isinstance(one, Loop)]
    for place, one in enumerate(block):
        match one.body[0] if isinstance(one, ast.Try) else one:
            case ast.Assign([target], ast.Call() as call) as read if name_called(call) == "next":
                if lines == {read.lineno} and not any(holds(one, read.lineno) for one in inner):
                    del block[place]
                    return target
    return None
