"""Statements of a script that could be a function of their own, such as a step that a CUDA graph holds."""

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advisor.python import trees

# Calls in the head of a loop that has as many rounds in each step.
_ROUNDS = frozenset({"range", "enumerate", "zip", "reversed", "len", "items", "values", "split"})
# What a graph would not repeat, beside branches on the host: reads of numbers, and calls whose result nobody uses.
_HOSTS = frozenset({"item", "tolist", "numpy", "cpu"})
# What a statement may call that only notes numbers of a step; the last where it is told one, or reads it by `item()`.
_READS = _HOSTS | {"detach", "float", "int", "round", "format", "len", "size", "view", "view_as", "eq", "sum", "mean"}
_NOTES = frozenset({"print", "append", "set_description", "set_postfix", "add_scalar"})
_METERS = frozenset({"update", "log", "info"})
_SAYS = frozenset({"print", "append", "write", "info", "log", "update"}) | _NOTES


def only_noting(statements: Sequence[ast.stmt], after: int, names: Mapping[str, Any]) -> list[ast.stmt]:
    """The statements behind a line that only note numbers, which the others do not need: they may run after all.

    They call nothing but what reads a number and keeps or prints it, and name nothing that changes meanwhile.
    """
    found: list[ast.stmt] = []
    for at, one in reversed(list(enumerate(statements[:-1]))):
        if one.lineno <= after or not _is_note(one):
            continue
        nodes = list(ast.walk(one))
        calls = [node for node in nodes if isinstance(node, ast.Call) and trees.name_called(node) in _NOTES | _METERS]
        kept = {ast.unparse(call.func.value) for call in calls if isinstance(call.func, ast.Attribute)}
        later = [other for other in statements[at + 1 :] if other not in found]
        needed = (trees.bound_in(one) | kept) & {ast.unparse(node) for node in _names_read(later)}
        reads = {node.id for node in nodes if isinstance(node, ast.Name)}
        anew = reads & {name for other in later for name in trees.bound_in(other)}
        objects = [trees.value_of(node, names) for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
        changed = any(isinstance(one, nn.Module | nn.Parameter | Optimizer) for one in objects)
        if not (needed or anew or changed or any(getattr(node, "attr", "") == "grad" for node in nodes)):
            found.append(one)
    return found[::-1]


def _is_note(statement: ast.stmt) -> bool:
    """Whether a statement calls nothing but what reads a number and keeps or prints it."""
    if isinstance(statement, ast.If):
        return not trees.names_called(statement.test) and all(map(_is_note, [*statement.body, *statement.orelse]))
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    plain = isinstance(statement, ast.Expr) or all(isinstance(target, ast.Name) for target in targets)
    called = trees.names_called(statement)
    # A meter is told what it counts; without that `update()` may be that of averaged weights.
    told = isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call) and bool(call.args)
    return bool(called) and plain and called <= _READS | _NOTES | (_METERS if told or "item" in called else set())


def _names_read(statements: Iterable[ast.AST]) -> Iterator[ast.Name | ast.Attribute]:
    """The names and attributes that statements read."""
    nodes = (node for one in statements for node in ast.walk(one))
    yield from (node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load))


def as_function(
    statements: list[ast.stmt], scopes: tuple[ast.AST, ast.AST], names: Mapping[str, Any], *, on_device: bool = False
) -> dict[str, Any]:
    """The names that a function of these statements would take and give, and the problem with it.

    ``scopes``: what is run in each round, and the whole function that it is in. With ``on_device`` a graph would hold
    the function.
    """
    scope, whole = scopes
    read, stored = dict[str, None](), dict[str, None]()
    certain = _add_names(statements, frozenset(), read, stored)
    lines = {line for one in statements for line in range(one.lineno, 1 + (one.end_lineno or 0))}
    others = [node for node in ast.walk(scope) if getattr(node, "lineno", 0) not in lines]
    bound = {one.arg for one in others if isinstance(one, ast.arg)} | trees.named(others, ast.Store)
    takes = tuple(name for name in read if name in bound)
    outer = {*ast.walk(whole)} - _names_of_functions(whole)
    later = trees.named((node for node in outer if getattr(node, "lineno", 0) not in lines), ast.Load)
    made = {one.name for one in others if isinstance(one, trees.FUNCTIONS | ast.ClassDef) and one is not scope}
    gives = tuple(name for name in stored if name in later)
    tensors = {name for name in (*takes, *gives) if not on_device or isinstance(names.get(name), torch.Tensor)}
    problems = (
        *_problems_in(statements, names, on_device=on_device),
        *(f"`{name}` is defined anew in each round" for name in read if name in made),
        *(f"`{name}` is carried from round to round" for name in read if name in stored),
        *(f"`{name}` gets a value in some rounds only" for name in gives if name not in certain),
        *(f"`{name}` is no tensor and changes from round to round" for name in takes if name not in tensors),
        *(f"`{name}` is no tensor and is read later" for name in gives if name not in tensors),
    )
    return {"takes": takes, "gives": gives, "problem": next(iter(problems), "")}


def _names_of_functions(whole: ast.AST) -> set[ast.AST]:
    """The names in a piece of source that functions in it bind for themselves."""
    found = set[ast.AST]()
    for function in ast.walk(whole):
        inside = [*ast.walk(function)] if isinstance(function, trees.FUNCTIONS | ast.Lambda) else []
        if function is not whole and not any(isinstance(one, ast.Global | ast.Nonlocal) for one in inside):
            own = trees.named(inside, ast.Store) | {one.arg for one in inside if isinstance(one, ast.arg)}
            found.update(one for one in inside if isinstance(one, ast.Name) and one.id in own)
    return found


def _problems_in(statements: Iterable[ast.stmt], names: Mapping[str, Any], *, on_device: bool) -> Iterator[str]:
    """Reasons why statements cannot become a function; with ``on_device``, a function captured in a graph.

    A branch is the same in all rounds if it only reads options of the command line, or constants.
    """
    node: Any
    for node in trees.walk(statements):
        called = trees.name_called(node) if isinstance(node, ast.Call) else ""
        alone = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if isinstance(node, trees.LEAVES):
            yield f"line {node.lineno} leaves the statements"
        elif not on_device and called == "zero_grad":
            yield f"line {node.lineno} clears the gradients between the forward pass and the loss"
        elif on_device and isinstance(node, ast.If | ast.While | ast.Try):
            if not (isinstance(node, ast.If) and _reads_options(node.test, names)):
                yield f"line {node.lineno} decides on the host"
        elif on_device and isinstance(node, ast.For) and trees.names_called(node.iter) - _ROUNDS:
            yield f"the rounds of the loop at line {node.lineno} may be others in the next step"
        elif on_device and (called in _HOSTS or (alone and _acts_on_host(alone, names))):
            yield f"line {node.lineno} calls {called or trees.name_called(node.value)}() on the host"
        elif on_device and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield f"line {node.lineno} assigns to an attribute, which a replay would not"


def _reads_options(condition: ast.expr, names: Mapping[str, Any]) -> bool:
    """Whether a condition reads nothing but options of the command line, and constants by their capital letters."""
    read = trees.named(ast.walk(condition), ast.Load)
    only = all(name.isupper() or isinstance(names.get(name), argparse.Namespace) for name in read)
    return bool(read) and only and not trees.names_called(condition)


def _acts_on_host(call: ast.Call, names: Mapping[str, Any]) -> bool:
    """Whether a call whose result nobody uses says or counts something, or makes the step of a scheduler."""
    called, owner = trees.name_called(call), getattr(call.func, "value", call)
    return called in _SAYS or (called == "step" and not isinstance(trees.value_of(owner, names), Optimizer))


def _add_names(
    statements: Iterable[ast.stmt], bound: frozenset[str], read: dict[str, None], stored: dict[str, None]
) -> frozenset[str]:
    """Add the names that statements read before binding them, and those that they bind, in order.

    ``bound`` have a value before the statements. Return the names that certainly have one after them.
    """
    heads: Sequence[ast.AST]
    for one in statements:
        heads, branches = [one], list[list[ast.stmt]]()
        match one:
            case ast.With(items=items, body=body):
                heads, branches = items, [body]
            case ast.If(test=test, body=body, orelse=orelse):
                heads, branches = [test], [body, orelse]
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                heads, branches = [iterated, target], [[*body, *orelse]]
        for head in heads:
            inner = [node.target for node in ast.walk(head) if isinstance(node, ast.comprehension)]
            own = trees.named(trees.walk(inner), ast.Store)
            names = [node for node in ast.walk(head) if isinstance(node, ast.Name) and node.id not in own]
            names.sort(key=lambda node: (node.lineno, node.col_offset))
            added = {node.target for node in ast.walk(head) if isinstance(node, ast.AugAssign)}
            loaded = (node.id for node in names if isinstance(node.ctx, ast.Load) or node in added)
            read.update(dict.fromkeys(name for name in loaded if name not in bound))
            new = [node.id for node in names if isinstance(node.ctx, ast.Store)]
            stored.update(dict.fromkeys(new))
            bound = bound.union(new)
        if branches:
            bound = frozenset.intersection(*(_add_names(branch, bound, read, stored) for branch in branches))
    return bound
