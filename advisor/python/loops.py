"""The user's loops that run: their statements and variables, to measure a step and to change its code."""

import ast
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from advisor.files.paths import is_library
from advisor.python import trees

Line = tuple[CodeType, int]


def scope_of(code: CodeType) -> ast.AST:
    """The tree of the function or module with this code; an empty module if its source cannot be read."""
    tree = trees.tree_of_file(code.co_filename)
    if code.co_name == "<module>":
        return tree
    named = [node for node in ast.walk(tree) if isinstance(node, trees.FUNCTIONS) and node.name == code.co_name]
    behind = [node for node in named if node.lineno >= code.co_firstlineno]  # which is the first decorator's
    return min(behind, key=lambda node: node.lineno, default=ast.Module([], []))


@dataclass(frozen=True, slots=True)
class Where:
    """A frame of a running program, and its line at that time."""

    frame: FrameType
    line: int

    @property
    def code(self) -> CodeType:
        """The code of the frame."""
        return self.frame.f_code

    @property
    def file(self) -> str:
        """The file of the frame's code."""
        return self.code.co_filename

    @property
    def is_users(self) -> bool:
        """Whether the code is the user's (the script or its modules), and not a library's."""
        return not is_library(self.file)

    @property
    def names(self) -> dict[str, Any]:
        """The current variables of the frame, globals included; for a module, its own dictionary."""
        outer = self.frame.f_globals
        return outer if self.code.co_name == "<module>" else {**outer, **self.frame.f_locals}


def stack_from(frame: FrameType) -> list[Where]:
    """This frame and its callers, each with its current line, innermost first."""
    return [Where(one, line) for one, line in traceback.walk_stack(frame)]


def lines_up(frame: FrameType) -> tuple[Line, ...]:
    """The lines being executed, from a frame up the stack."""
    return tuple((one.f_code, line) for one, line in traceback.walk_stack(frame))


def users_lines(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines that are in the user's code."""
    return tuple((code, line) for code, line in lines if not is_library(code.co_filename))


@dataclass(frozen=True, slots=True)
class Pass:
    """A backward pass: the lines of its stack, innermost first, and the lines of the model calls before it."""

    at: tuple[Line, ...]
    calls: frozenset[Line]


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """A loop of the user's: its statement, and its frame, at the line that makes the update or calls it.

    ``clears`` tells whether the loop clears gradients; otherwise they add up. ``beside`` are the other statements in
    the enclosing loop, or in the function if there is no enclosing loop.
    """

    statement: trees.Loop
    where: Where
    clears: bool
    beside: Sequence[ast.stmt]

    @property
    def place(self) -> str:
        """The place of the loop's body in the script: ``file:line``."""
        return f"{self.where.file}:{self.statement.lineno}"

    def runs(self, lines: Iterable[Line]) -> bool:
        """Whether one of these lines is in the loop (its head or its body)."""
        return any(code is self.where.code and trees.holds(self.statement, line) for code, line in lines)


def loops_around(where: Where, inner: Sequence[Where] = ()) -> list[FoundLoop]:
    """The loops around a frame's line in its function, innermost first.

    ``inner`` are the frames of the functions that this line called, down to the update.
    """
    scope: Any = scope_of(where.code)
    around = reversed(trees.statements_at(where.line, scope.body))
    loops = [one for one in around if isinstance(one, trees.Loop) and one.body[0].lineno <= where.line]
    functions = [scope_of(one.code) for one in inner]
    return [
        FoundLoop(
            loop,
            where,
            clears=_clears_gradients(where.file, loop, functions),
            beside=[one for one in holder.body if not trees.holds(one, loop.lineno)],
        )
        for loop, holder in zip(loops, [*loops[1:], scope], strict=False)
    ]


def _clears_gradients(file: str, loop: trees.Loop, within: Iterable[ast.AST]) -> bool:
    """Whether a loop, a function in its file that it calls, or one of the functions ``within`` clears gradients.

    False if it clears them only in some rounds (``if step % 4 == 0:``), because it accumulates gradients then.
    """
    bound = trees.bound_in(loop)
    branches = [one for one in ast.walk(loop) if isinstance(one, ast.If) and varies(one.test, bound)]
    some = [one for one in branches if "backward" not in trees.names_called(one)]
    clearing = [one for one in ast.walk(loop) if isinstance(one, ast.Expr | ast.Assign) and trees.clears(one)]
    if clearing and all(any(trees.holds(test, one.lineno) for test in some) for one in clearing):
        return False
    clear = trees.functions_that(trees.tree_of_file(file), trees.clears)
    return any(map(trees.clears, (loop, *within))) or not clear.isdisjoint(trees.names_called(loop))


def varies(test: ast.expr, bound: set[str]) -> bool:
    """Whether a condition may differ between the rounds of a loop that binds these names.

    It may differ if it calls a function, takes a remainder, or reads one of the names.
    """
    return any(
        isinstance(part, ast.Call | ast.Mod) or (isinstance(part, ast.expr) and ast.unparse(part) in bound)
        for part in ast.walk(test)
    )
