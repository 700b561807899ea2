"""The training loop of a watched script: its statement, its names, and what stands around it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch.optim import Optimizer

from advisor.python.places import scope_of
from advisor.python.trees import Loop, bound_in, clears, names_called, tree_of_file, value_of
from advisor.step.loader import length_of
from advisor.workloads.loop import GivenBatches
from advisor.workloads.scripts.heads import Head, functions_that
from advisor.workloads.scripts.reads import position_of
from advisor.workloads.scripts.running import ScriptStep
from advisor.workloads.scripts.seen import Seen, Where

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class NoLoopError(Exception):
    """Raised, with the reason, where no loop of a script can be measured."""


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """A loop of the script's: its statement, its frame, and the names as they are there.

    ``clears`` tells whether gradients are cleared in the loop; where they are not, they add up. ``beside`` are the
    other statements of the loop around it, or of its function where none is. ``update`` is the line of the update, or
    of what makes it.
    """

    statement: Loop
    names: dict[str, Any]
    frame: FrameType
    clears: bool = True
    beside: Sequence[ast.stmt] = ()
    update: int = 0

    @property
    def code(self) -> CodeType:
        """The code that it is part of."""
        return self.frame.f_code

    @property
    def file(self) -> str:
        """The file that the loop is in."""
        return self.code.co_filename

    @property
    def place(self) -> str:
        """The place of the loop's body in the script: ``file:line``."""
        return f"{self.file}:{self.statement.lineno}"


def training_loop(seen: Seen) -> FoundLoop:
    """The loop that the first update was made in. Raises NoLoopError where no source has one that fits.

    With a loader it is the innermost loop that reads the loader; else the innermost one around the update.
    """
    found = loops_around_update(seen)
    if not found:
        raise NoLoopError("no loop in the script's own code stands around the update of the weights")
    return next((loop for loop in found if reads_loader(loop, seen)), found[0])


def loops_around_update(seen: Seen) -> list[FoundLoop]:
    """All loops of the script's own that the first update was made in, innermost first; else those of a library."""
    found: list[FoundLoop] = []
    users = [where for where in seen.frames if where.is_users]
    for place, where in enumerate(users):
        found += _with_names(where, loops_around(where), users[:place])
    return found or list(_loops_of_library(seen))


def _loops_of_library(seen: Seen) -> Iterator[FoundLoop]:
    """The loops by which a library reads the loader, and not those in which it calls a function that does."""
    reading = {code for code, _ in seen.reads}
    inner = itertools.takewhile(lambda one: not (one.is_users and one.frame.f_code in reading), seen.frames)
    for where in (one for one in inner if one.frame.f_code in reading):
        yield from (loop for loop in _with_names(where, loops_around(where), []) if reads_loader(loop, seen))


def reads_loader(loop: FoundLoop, seen: Seen) -> bool:
    """Whether a loop reads the loader of the step, in its head or in its body."""
    lines = range(loop.statement.lineno, 1 + (loop.statement.end_lineno or 0))
    return any(code is loop.code and line in lines for code, line in seen.reads)


def optimizers_in(loop: FoundLoop) -> list[Optimizer]:
    """The optimizers that a loop names."""
    return _optimizers_named([loop.statement], loop.names, ast.Load)


def _optimizers_named(statements: Iterable[ast.AST], names: dict[str, Any], context: type) -> list[Optimizer]:
    nodes = (node for one in statements for node in ast.walk(one) if isinstance(node, ast.Name | ast.Attribute))
    found = (value_of(node, names) for node in nodes if isinstance(node.ctx, context))
    return [value for value in found if isinstance(value, Optimizer)]


def step_of(loop: FoundLoop, seen: Seen) -> tuple[ScriptStep, Any]:
    """The rounds of the script as ``step(batch) -> loss``, and what feeds them: the loader, or numbers."""
    assert seen.pause is not None, "the script was left in a loop"
    heads: list[Head] = []
    for one in loops_around_update(seen):
        heads += filter(None, [Head.latest.get((one.code, one.statement.lineno))])
        if _optimizers_named(one.beside, one.names, ast.Store):  # a loop around it, as of several seeds, makes another
            break
    for head in heads:
        head.counts_to = None if seen.loader is None else length_of(seen.loader)
        head.goes_on = head is heads[-1]
    step = ScriptStep(seen.script, loop.place, seen.pause, seen.iterators, seen.optimizers)
    step.loop = loop
    return step, numbers() if seen.loader is None else seen.loader


def position_in(loop: FoundLoop, seen: Seen) -> str | None:
    """The form in which a loop goes through the loader of the step; None where it does not."""
    if seen.loader is None:
        return None
    return position_of(loop.statement, loop.names, seen.loader, seen.iterators)


def numbers() -> GivenBatches:
    """The argument of a step that makes its batches itself."""
    return GivenBatches(itertools.count, "the script's own loop")


# --- the source -------------------------------------------------------------------------------------------------


def loops_around(where: Where) -> list[Loop]:
    """The loops around the line of a frame, innermost first, within the function that the frame runs."""
    around = [
        node
        for node in _own_statements(scope_of(where.frame.f_code))
        if isinstance(node, Loop) and node.body[0].lineno <= where.line <= (node.end_lineno or 0)
    ]
    return sorted(around, key=lambda node: node.lineno, reverse=True)


def _with_names(where: Where, loops: list[Loop], inner: list[Where]) -> Iterator[FoundLoop]:
    """The loops of a frame with its names; ``inner`` are the frames of functions that they called for the update."""
    frame, scope = where.frame, scope_of(where.frame.f_code)
    names = frame.f_globals if frame.f_code.co_name == "<module>" else {**frame.f_globals, **frame.f_locals}
    functions: list[Any] = [scope_of(one.frame.f_code) for one in inner]
    for loop in loops:
        holder: Any = next((other for one, other in itertools.pairwise(loops) if one is loop), scope)
        yield FoundLoop(
            loop,
            names,
            frame,
            clears=_clears_gradients(frame.f_code.co_filename, loop, functions),
            beside=[one for one in holder.body if not one.lineno <= loop.lineno <= (one.end_lineno or 0)],
            update=where.line,
        )


def _own_statements(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a scope but those of functions and classes within it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            continue
        yield child
        yield from _own_statements(child)


def _clears_gradients(file: str, loop: Loop, within: Iterable[ast.AST]) -> bool:
    """Whether a loop, a function of its file that it calls, or a function ``within`` it clears gradients.

    A loop with a backward pass in each round that clears gradients in some rounds only, as in ``if step % 4 == 0:``,
    accumulates them.
    """
    places = [one for one in ast.walk(loop) if isinstance(one, ast.Expr | ast.Assign)]
    clearing = [is_in_some_rounds(loop, one.lineno) for one in places if clears(one)]
    backward = [is_in_some_rounds(loop, one.lineno) for one in places if "backward" in names_called(one)]
    if clearing and all(clearing) and not all(backward):
        return False
    return any(map(clears, (loop, *within))) or bool(names_called(loop) & functions_that(tree_of_file(file), clears))


def is_in_some_rounds(loop: Loop, line: int) -> bool:
    """Whether a line of a loop is under a condition that may differ from round to round.

    Such a condition calls a function, takes a remainder, or reads a name that the loop binds.
    """
    bound = bound_in(loop)
    tests = (
        part
        for node in ast.walk(loop)
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or line)
        for part in ast.walk(node.test)
    )
    return any(
        isinstance(part, ast.Call | ast.Mod) or (isinstance(part, ast.expr) and ast.unparse(part) in bound)
        for part in tests
    )
