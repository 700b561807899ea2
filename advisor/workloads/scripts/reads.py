"""Tells how a script's loop reads its loader: in its head (``for batch in loader``), or with ``next`` in its body."""

import ast
import contextlib
from collections.abc import Iterable, MutableMapping
from types import CodeType
from typing import Any

from advisor.python.trees import Loop, value_of

# An iterator over a loader that a script made while it was watched, which has no workers: its loader.
Iterators = MutableMapping[Any, Any]
# Where the batch is in an item of a loop: it is the item, or it follows a count (``enumerate``).
BARE, COUNTED = "bare", "counted"
_REPEATING = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PASSING_ON = frozenset({"tqdm", "track", "iter", "list", "progress_bar", "prange", "auto_tqdm", "trange", "alive_it"})
# The names under which tqdm's and click's bars hold what they wrap.
_WRAPPED = ("iterable", "iter")


def position_of(loop: Loop, names: dict[str, Any], loader: Any, iterators: Iterators) -> str | None:
    """The form in which a loop reads a loader, plain or as in ``enumerate(tqdm(loader))``; None where it does not.

    A name may stand for such a call: ``batches = tqdm(enumerate(loader))``.
    """
    if not isinstance(loop, ast.For):
        return None
    expression, counted = loop.iter, False
    while True:
        value, counts = within(value_of(expression, names))
        with contextlib.suppress(TypeError):  # it can have no weak reference
            if value is not None and (value is loader or iterators.get(value) is loader):
                return COUNTED if counted or counts else BARE
        if not isinstance(expression, ast.Call) or not expression.args:
            return None
        if value_of(expression.func, names) is type(loader):
            return COUNTED if counted else BARE
        name = ast.unparse(expression.func).rpartition(".")[2]
        if name == "enumerate":
            counted = True
        elif name not in _PASSING_ON:
            return None
        expression = expression.args[0]


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


def reads_once(loop: Loop, code: CodeType, reads: Iterable[tuple[CodeType, int]]) -> bool:
    """Whether each round of a loop reads one batch: with ``next``, or from the generator in its head."""
    last = loop.end_lineno or 0
    lines = {line for place, line in reads if place is code and loop.lineno <= line <= last}
    if len(lines) != 1:
        return False
    (line,) = lines
    if line < loop.body[0].lineno:
        return not isinstance(loop, ast.While)
    around = [n for s in loop.body for n in ast.walk(s) if isinstance(n, _REPEATING)]
    return not any(node.lineno <= line <= (node.end_lineno or 0) for node in around)
