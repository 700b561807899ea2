"""Where a script's loop gets its batch: in its head (``for batch in loader``), or with ``next`` in its body."""

import ast
import contextlib
from typing import Any

from advisor.python.loops import FoundLoop
from advisor.python.trees import holds, name_called, value_of
from advisor.workloads.scripts.heads import within
from advisor.workloads.scripts.seen import Seen, same_values

_REPEATING = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PASSING_ON = frozenset(
    {"enumerate", "tqdm", "track", "iter", "list", "progress_bar", "prange", "auto_tqdm", "trange", "alive_it"}
)


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
    values = [value_of(one, names) for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    item = values if isinstance(target, ast.Tuple) else values[0]
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
    name, found = name_called(expression), (False, False)
    if name in _PASSING_ON:
        found = _loader_in(expression.args[0], names, seen)
    return found[0], found[1] or name == "enumerate"


def batch_in_body(block: list[ast.stmt], loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of a batch that the loop reads with ``next``. That statement is taken out. None without one."""
    for place, one in enumerate(block):
        read = one.body[0] if isinstance(one, ast.Try) else one
        if (
            not isinstance(read, ast.Assign)
            or not isinstance(read.value, ast.Call)
            or name_called(read.value) != "next"
        ):
            continue
        if (loop.where.code, read.lineno) in seen.reads and _reads_once(loop, seen):
            del block[place]
            return read.targets[0]
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
    repeating = (node for one in statement.body for node in ast.walk(one) if isinstance(node, _REPEATING))
    return not any(node.lineno <= line <= (node.end_lineno or 0) for node in repeating)
