"""Branches of a loop that another round may take: one round does not show then which loss the loop computes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_BACKWARD = "backward"
# What stays the same from batch to batch, though it is asked of each: the form of a tensor, the kind of a value.
_FORMS = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "layout", "dim", "size", "is_floating_point"})
_KINDS = frozenset({"isinstance", "issubclass", "hasattr", "callable", "type", "len", "is_available", "is_initialized"})


def branch_of_the_loss(block: Sequence[ast.stmt], line: int, around: Sequence[ast.stmt] = ()) -> int | None:
    """The line of a branch before ``line`` that decides, not alike in all rounds, what the loss is computed of.

    That is an ``if`` on something drawn, called or counted whose statements bind what ``backward`` depends on, such as
    an augmentation of every second batch or a term that is added after some epochs. None without one. ``around`` are
    the loops of the same function; names that they bind count as changing too.
    """
    before = [statement for statement in block if statement.lineno <= line]
    changing = {name for part in (*around, *before) for name in _bound_in(part)}
    needed = _needed(before, line)
    for node in (node for statement in before for node in ast.walk(statement)):
        if not isinstance(node, ast.If | ast.IfExp) or not _changes(node.test, changing):
            continue
        if isinstance(node, ast.If):
            holds_update = node.lineno <= line <= (node.end_lineno or node.lineno)
            counts = not holds_update and any(_bound_in(part) & needed for part in (*node.body, *node.orelse))
        else:
            counts = any(part is node for value in _values_of(before, needed) for part in ast.walk(value))
        if counts and node.lineno <= line:
            return node.lineno
    return None


def _needed(block: Sequence[ast.stmt], line: int) -> set[str]:
    """The names that the loss is computed of, those that they are computed of in turn among them."""
    needed = {
        name
        for statement in block
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == _BACKWARD
        for name in _read_in(node)
    }
    if not needed:  # the line calls what goes backward
        needed = {name for one in block if one.lineno <= line <= (one.end_lineno or line) for name in _read_in(one)}
    while more := {name for value in _values_of(block, needed) for name in _read_in(value)} - needed:
        needed |= more
    return needed


def _values_of(block: Sequence[ast.stmt], names: set[str]) -> Iterator[ast.expr]:
    """The expressions that names are bound to."""
    for node in (node for statement in block for node in ast.walk(statement)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
            value = node.iter if isinstance(node, ast.For) else node.value
            if value is not None and _bound_by(node) & names:
                yield value


def _bound_in(part: ast.AST) -> set[str]:
    return {name for node in ast.walk(part) for name in _bound_by(node)}


def _bound_by(node: ast.AST) -> set[str]:
    """The names that a piece of source binds, or whose value it changes in place."""
    if isinstance(node, ast.Assign):
        return {name for target in node.targets for name in _bases(target)}
    if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
        return set(_bases(node.target))
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _is_in_place(call.func.attr):
        return set(_bases(call.func.value))
    return set()


def _is_in_place(method: str) -> bool:
    """Whether a method changes what it is called on, and not gradients, as ``clip_grad_norm_`` does."""
    return method.endswith("_") and "grad" not in method


def _bases(target: ast.expr) -> Iterator[str]:
    """The names in a target of an assignment: ``x`` of ``x[:, 0]``, both of ``x, y``."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _bases(part)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _bases(target.value)


def _read_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def _changes(test: ast.expr, changing: set[str]) -> bool:
    """Whether a condition may be true in one round and false in another: it calls something or reads such a name."""
    if isinstance(test, ast.Name):
        return test.id in changing
    if isinstance(test, ast.Attribute) and test.attr in _FORMS:
        return False
    if isinstance(test, ast.Call):
        name = ast.unparse(test.func).rpartition(".")[2]
        return name not in _KINDS | _FORMS
    return any(_changes(part, changing) for part in ast.iter_child_nodes(test) if isinstance(part, ast.expr))
