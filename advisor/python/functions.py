"""Whether statements of a script can be moved into a function (for a compiled loss, or a step in a CUDA graph)."""

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advisor.python import trees

# Calls in the head of an inner loop that do not change its number of rounds from step to step.
_ROUNDS = frozenset({"range", "enumerate", "zip", "reversed", "len", "items", "values", "split"})
_HOSTS = frozenset({"item", "tolist", "numpy", "cpu"})  # reads of values on the host, which a graph does not repeat
# The calls in statements that only record numbers. Those of _METERS must get an argument, or read it by `item()`.
_READS = _HOSTS | {"detach", "float", "int", "round", "format", "len", "size", "view", "view_as", "eq", "sum", "mean"}
_NOTES = frozenset({"print", "append", "set_description", "set_postfix", "add_scalar"})
_METERS = frozenset({"update", "log", "info"})
_SAYS = _NOTES | _METERS | {"write"}


def only_noting(statements: Sequence[ast.stmt], after: int, names: Mapping[str, Any]) -> list[ast.stmt]:
    """The statements after a line that only record numbers and can be moved after all other statements.

    They only read numbers, and keep or print them. No other statement needs their results or binds their names.
    """
    found: list[ast.stmt] = []
    needed, anew = set[str](), set[str]()  # the names that the later statements read, and bind
    for one in reversed(statements):
        nodes, reads = list(ast.walk(one)), trees.read_in(one)
        calls = [node for node in nodes if isinstance(node, ast.Call) and trees.name_called(node) in _NOTES | _METERS]
        gives = trees.bound_in(one) | {ast.unparse(call.func.value) for call in calls if hasattr(call.func, "value")}
        objects = (trees.value_of(node, names) for node in trees.names_in([one]))
        changes = any(isinstance(value, nn.Module | nn.Parameter | Optimizer) for value in objects)
        changes |= any(getattr(node, "attr", "") == "grad" for node in nodes)
        is_note = one is not statements[-1] and one.lineno > after and _is_note(one)
        if is_note and not (changes or gives & needed or reads & anew):
            found.insert(0, one)
        else:
            needed, anew = needed | reads, anew | trees.bound_in(one)
    return found


def _is_note(statement: ast.stmt) -> bool:
    """Whether all calls in a statement only read a number, keep it or print it."""
    if isinstance(statement, ast.If):
        return not trees.names_called(statement.test) and all(map(_is_note, [*statement.body, *statement.orelse]))
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    plain = isinstance(statement, ast.Expr) or all(isinstance(target, ast.Name) for target in targets)
    called = trees.names_called(statement)
    # A meter's update() gets a number. An update() without arguments may update averaged weights.
    told = isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call) and bool(call.args)
    return bool(called) and plain and called <= _READS | _NOTES | (_METERS if told or "item" in called else set())


def as_function(
    statements: list[ast.stmt], scopes: tuple[ast.AST, ast.AST], names: Mapping[str, Any], *, on_device: bool = False
) -> dict[str, Any]:
    """The parameters and results of a function with these statements, and the problem with it (empty if none).

    ``scopes``: what is run in each round, and the whole function that it is in. ``on_device``: a graph would hold it.
    """
    scope, whole = scopes
    flow = trees.Flow(statements)
    lines = {line for one in statements for line in range(one.lineno, 1 + (one.end_lineno or 0))}
    others = [node for node in ast.walk(scope) if getattr(node, "lineno", 0) not in lines]
    defined = {one.name for one in others if isinstance(one, trees.FUNCTIONS | ast.ClassDef) and one is not scope}
    bound = {one.arg for one in others if isinstance(one, ast.arg)} | trees.named(others, ast.Store) | defined
    takes = tuple(name for name in flow.read if name in bound)
    outside = [node for node in ast.walk(whole) if getattr(node, "lineno", 0) not in lines and node is not whole]
    inner = [[*ast.walk(node)] for node in outside if isinstance(node, trees.FUNCTIONS | ast.Lambda)]
    own = [trees.named(each, ast.Store) | {one.arg for one in each if isinstance(one, ast.arg)} for each in inner]
    read = (trees.named(each, ast.Load) - bound for each, bound in zip(inner, own, strict=True))
    later = trees.named(set(outside) - {node for each in inner for node in each}, ast.Load).union(*read)
    gives = tuple(name for name in flow.stored if name in later)
    tensors = {name for name in (*takes, *gives) if not on_device or isinstance(names.get(name), torch.Tensor)}
    problems = (
        *_problems_in(statements, names, on_device=on_device),
        *(f"a round reads `{name}` of the last" for name in flow.read if name in flow.stored and "." not in name),
        *(f"`{name}` gets a value only in some rounds" for name in gives if name not in flow.certain),
        *(f"`{name}` is not a tensor and changes from round to round" for name in takes if name not in tensors),
        *(f"`{name}` is not a tensor and is read later" for name in gives if name not in tensors),
    )
    return {"takes": takes, "gives": gives, "problem": next(iter(problems), "")}


def _problems_in(statements: Iterable[ast.stmt], names: Mapping[str, Any], *, on_device: bool) -> Iterator[str]:
    """The reasons why statements cannot become a function, or, with ``on_device``, a function in a CUDA graph.

    A branch that only reads constants or command-line options is allowed, since it is the same in all rounds.
    """
    node: Any
    for node in trees.walk(statements):
        called = trees.name_called(node) if isinstance(node, ast.Call) else ""
        alone = trees.name_called(node.value) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
        owner = getattr(node.value.func, "value", node.value) if alone == "step" else None
        schedules = owner is not None and not isinstance(trees.value_of(owner, names), Optimizer)
        if isinstance(node, trees.LEAVES):
            yield f"line {node.lineno} leaves the step (return, break, yield or the like)"
        elif not on_device and called == "zero_grad":
            yield f"line {node.lineno} clears the gradients between the forward pass and the loss"
        elif on_device and isinstance(node, ast.If | ast.While | ast.Try):
            tests = [node.test] if isinstance(node, ast.If) else []
            read = trees.named(trees.walk(tests), ast.Load)
            only = all(name.isupper() or isinstance(names.get(name), argparse.Namespace) for name in read)
            if not read or not only or any(map(trees.names_called, tests)):
                yield f"line {node.lineno} branches on the host"
        elif on_device and isinstance(node, ast.For) and trees.names_called(node.iter) - _ROUNDS:
            yield f"the loop at line {node.lineno} may have other rounds in the next step"
        elif on_device and (called in _HOSTS or alone in _SAYS or schedules):
            yield f"line {node.lineno} calls {called or alone}() on the host"
        elif on_device and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield f"line {node.lineno} assigns to an attribute, which a graph would not repeat"
