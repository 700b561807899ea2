"""Other parts of a script's file than the measured loop: loops that train too, and functions that it calls."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def told_of_others(file: str, loop: ast.stmt, lines: Iterable[int]) -> str:
    """A sentence that names the file's other loops with a backward pass; empty without any.

    ``loop`` is the one that is measured. What it calls belongs to it, and so does what stands around ``lines``, those
    of its functions that were running.
    """
    others = other_loops("".join(linecache.getlines(file)), loop, lines)
    if not others:
        return ""
    if len(others) == 1:
        return f"another loop that trains is at line {others[0]}: to measure that, let the script skip this one"
    named = f"{', '.join(map(str, others[:-1]))} and {others[-1]}"
    return f"other loops that train are at lines {named}: to measure one of them, let the script skip this one"


def other_loops(source: str, loop: ast.stmt, lines: Iterable[int]) -> list[int]:
    """The first lines of the innermost loops with a backward pass that are no part of ``loop``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    own = [(loop.lineno, loop.end_lineno or loop.lineno), *_spans_of(_called_from(tree, loop))]
    inside = [*lines, loop.lineno]
    training = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While) and _trains(node)]
    return sorted(
        node.lineno
        for node in training
        if not any(_trains(inner) for inner in ast.walk(node) if inner is not node)
        and not any(node.lineno <= line <= (node.end_lineno or 0) for line in inside)
        and not any(first <= node.lineno <= last for first, last in own)
    )


def clears_gradients(file: str, loop: ast.stmt, within: Iterable[ast.AST]) -> bool:
    """Whether a loop, what it calls of its file, or one of the functions ``within`` it clears gradients."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return False
    return any(map(_clears, (loop, *_called_from(tree, loop), *within)))


def _clears(part: ast.AST) -> bool:
    """Whether a piece of source calls ``zero_grad``, or sets a gradient, as to None."""
    for node in ast.walk(part):
        if isinstance(node, ast.Attribute) and (
            node.attr in ("zero_grad", "zero_gradients") or (node.attr == "grad" and isinstance(node.ctx, ast.Store))
        ):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "zero_" and ast.unparse(node.value).endswith("grad"):
            return True
    return False


def _trains(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While) and "backward" in _names_called(node)


def _names_called(node: ast.AST) -> set[str]:
    """The last parts of the names of all that is called in a piece of source."""
    called = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
    return {ast.unparse(function).rpartition(".")[2] for function in called}


def _called_from(tree: ast.Module, start: ast.AST) -> list[ast.AST]:
    """The file's functions that a piece of it calls, and those that they call."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [start]
    while waiting:
        names = _names_called(waiting.pop())
        new = [one for one in functions if one.name in names and one not in found]
        found += new
        waiting += new
    return found


def _spans_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, int]]:
    for node in nodes:
        assert isinstance(node, _FUNCTIONS)
        yield node.lineno, node.end_lineno or node.lineno
