"""A script's loops by their source: what varies from round to round, and what clears gradients."""

import ast
from collections.abc import Callable, Collection, Iterable

from advisor.python.positions import Loop
from advisor.python.trees import bound_in, clears, name_called, names_called, tree_of_file

_BACKWARD = "backward"
# Attributes and functions with the same result for each batch: the form of a tensor, the kind of a value.
_FORMS = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "layout", "dim", "size", "is_floating_point"})
_KINDS = frozenset({"isinstance", "issubclass", "hasattr", "callable", "type", "len", "is_available", "is_initialized"})
_LONGEST = 60  # characters of a statement as it is shown


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
    return any(map(clears, (loop, *within))) or bool(names_called(loop) & functions_that(tree_of_file(file), clears))


def functions_that(tree: ast.Module, holds: Callable[[ast.AST], bool]) -> set[str]:
    """The names of a file's functions of which something holds, and of those that call one of them."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    calls = [(one.name, names_called(one)) for one in functions]  # methods of several classes may have one name
    found = {one.name for one in functions if holds(one)}
    while more := {name for name, called in calls if called & found} - found:
        found |= more
    return found
