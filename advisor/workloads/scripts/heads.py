"""Where a script's loop gets its batches: in its head, which begins anew where its items end, or with ``next``."""

import ast
import builtins
import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from types import CodeType
from typing import Any, ClassVar

from advisor.python.loops import FoundLoop
from advisor.python.trees import functions_that, holds, name_called, names_called, value_of, walk
from advisor.workloads.scripts.seen import Seen, same_values

_HEAD = "__perf_advisor_head__"
_TRAINS = frozenset({"backward", "step"})
# The names under which tqdm's and click's bars hold what they wrap.
_WRAPPED = ("iterable", "iter")
# Items that are kept of what can be read only once. A count; enough that rounds do not all see the same.
_MOST_KEPT = 32
_REPEATING = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PASSING_ON = frozenset(
    {"enumerate", "tqdm", "track", "iter", "list", "progress_bar", "prange", "auto_tqdm", "trange", "alive_it"}
)


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


# --- the batch of a round ---------------------------------------------------------------------------------------------


def batch_in_head(loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of the batch in the head of a ``for`` loop over the loader, or over a generator that passes it on."""
    if not isinstance(loop.statement, ast.For) or seen.loader is None:
        return None
    names, target = loop.where.names, loop.statement.target
    reads_loader, counts = _loader_in(loop.statement.iter, names, seen)
    if counts:
        target = target.elts[1] if isinstance(target, ast.Tuple) else ast.Name("", ast.Store())
    if reads_loader:
        return target
    item = [value_of(one, names) for one in target.elts] if isinstance(target, ast.Tuple) else value_of(target, names)
    return target if _reads_once(loop, seen) and same_values(item, seen.batch) else None


def _loader_in(expression: ast.expr, names: dict[str, Any], seen: Seen) -> tuple[bool, bool]:
    """Whether an expression is the loader, plain or as in ``enumerate(tqdm(loader))``, and whether it counts.

    A name may stand for such a call: ``batches = tqdm(enumerate(loader))``.
    """
    value, counts = within(value_of(expression, names))
    with contextlib.suppress(TypeError):  # it can have no weak reference
        if value is not None and (value is seen.loader or seen.iterators.get(value) is seen.loader):
            return True, counts
    if not isinstance(expression, ast.Call) or not expression.args:
        return False, counts
    if value_of(expression.func, names) is type(seen.loader):
        return True, False
    name = name_called(expression)
    found = _loader_in(expression.args[0], names, seen) if name in _PASSING_ON else (False, False)
    return found[0], found[1] or name == "enumerate"


def batch_in_body(block: list[ast.stmt], loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of a batch that the loop reads with ``next``. That statement is taken out. None without one."""
    for place, one in enumerate(block):
        match one.body[0] if isinstance(one, ast.Try) else one:
            case ast.Assign([target], ast.Call() as call) as read if name_called(call) == "next":
                if (loop.where.code, read.lineno) in seen.reads and _reads_once(loop, seen):
                    del block[place]
                    return target
    return None


def _reads_once(loop: FoundLoop, seen: Seen) -> bool:
    """Whether each round of a loop reads one batch: with ``next``, or from the generator in its head."""
    statement = loop.statement
    lines = {line for code, line in seen.reads if code is loop.where.code and holds(statement, line)}
    if len(lines) != 1:
        return False
    (line,) = lines
    if line < statement.body[0].lineno:
        return not isinstance(statement, ast.While)
    return not any(isinstance(node, _REPEATING) and holds(node, line) for node in walk(statement.body))
