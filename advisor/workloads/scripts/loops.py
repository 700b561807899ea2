"""A script's loops by their source: what varies, what clears gradients, and which are a part of a round."""

import ast
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from advisor.python.positions import Loop
from advisor.python.trees import bound_in, clears, name_called, names_called, tree_of_file

_BACKWARD = "backward"
_FEW = 16  # rounds of a loop within a round of another
# Attributes and functions with the same result for each batch: the form of a tensor, the kind of a value.
_FORMS = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "layout", "dim", "size", "is_floating_point"})
_KINDS = frozenset({"isinstance", "issubclass", "hasattr", "callable", "type", "len", "is_available", "is_initialized"})
_LONGEST = 60  # characters of a statement as it is shown
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def varies(part: ast.AST, changing: Collection[str]) -> bool:
    """Whether a piece of source depends on a random number, a call or a counter, so that rounds may differ.

    For example an augmentation of every second batch, or a term that is added after some epochs.
    """
    branches = (node for node in ast.walk(part) if isinstance(node, ast.If | ast.IfExp | ast.While))
    return any(_changes(node.test, changing) for node in branches)


def is_in_some_rounds(loop: Loop, line: int) -> bool:
    """Whether a line of a loop is under a condition that differs from round to round."""
    changing = bound_in(loop)
    return any(
        isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or line) and _changes(node.test, changing)
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _changes(test: ast.expr, changing: Collection[str]) -> bool:
    """Whether a condition may differ from round to round: it calls a function, or reads a name in ``changing``.

    ``self.step % 100 == 0`` differs too: an attribute before ``%`` is a counter.
    """
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod) and isinstance(test.left, ast.Attribute):
        return test.left.attr not in _FORMS
    if isinstance(test, ast.Name | ast.Attribute) and ast.unparse(test) in changing:
        return True
    if isinstance(test, ast.Attribute) and test.attr in _FORMS:
        return False
    if isinstance(test, ast.Call):
        return name_called(test) not in _KINDS | _FORMS
    return any(_changes(part, changing) for part in ast.iter_child_nodes(test) if isinstance(part, ast.expr))


def shown(statement: ast.stmt) -> str:
    """A statement in one short line."""
    first, _, rest = ast.unparse(statement).partition("\n")
    text = f"{first} …" if rest else first
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def is_part_of_round(file: str, loop: ast.stmt, beside: Sequence[ast.stmt], names: dict[str, Any]) -> bool:
    """Whether a short loop is next to statements that run a backward pass too, directly or in functions they call.

    ``names`` are the loop's names.
    """
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or ast.unparse(loop.iter.func) != "range":
        return False
    if not any(_BACKWARD in names_called(part) for part in with_called(file, beside)):
        return False
    rounds = eval(compile(ast.Expression(loop.iter), "", "eval"), names)  # noqa: S307 - it is the user's own loop
    return len(rounds) <= _FEW


def with_called(file: str, statements: Sequence[ast.stmt]) -> list[ast.AST]:
    """Statements, and those of the file's functions and the methods of ``self`` that they call.

    ``train`` of ``model.train()`` is not such a method.
    """

    def own_called(node: ast.AST) -> set[str]:
        calls = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
        return {text.removeprefix("self.") for text in map(ast.unparse, calls)}

    return [*statements, *_called_from(tree_of_file(file), ast.Module([*statements], []), own_called)]


def clears_gradients(file: str, loop: Loop, within: Iterable[ast.AST]) -> bool:
    """Whether a loop, a function of its file that it calls, or a function ``within`` it clears gradients.

    A loop with a backward pass in each round that clears gradients in some rounds only, as in ``if step % 4 == 0:``,
    accumulates them.
    """
    places = [one for one in ast.walk(loop) if isinstance(one, ast.Expr | ast.Assign)]
    clearing = [is_in_some_rounds(loop, one.lineno) for one in places if clears(one)]
    backward = [is_in_some_rounds(loop, one.lineno) for one in places if _BACKWARD in names_called(one)]
    if clearing and all(clearing) and not all(backward):
        return False
    return any(map(clears, (loop, *_called_from(tree_of_file(file), loop), *within)))


def _called_from(
    tree: ast.Module, start: ast.AST, called: Callable[[ast.AST], set[str]] = names_called
) -> list[_Function]:
    """The file's functions that a piece of it calls, and those that they call."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    found: list[_Function] = []
    waiting: list[ast.AST] = [start]
    while waiting:
        names = called(waiting.pop())
        new = [one for one in functions if one.name in names and one not in found]
        found += new
        waiting += new
    return found
