"""The batches of a loop that reads no loader and makes them itself, as by ``X, Y = get_batch()``."""

import ast
import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advisor.python.loops import bound_by, is_in_some_rounds
from advisor.python.positions import value_of
from advisor.step.batch import tensors_of
from advisor.target.scripts.body import Again, FoundLoop, Rounds, items_of
from advisor.target.scripts.seen import LossCall, ModelCall

_BATCH = "__perf_advisor_batch__"
# Values that no call changes.
_CONSTANT = int | float | str | type | FunctionType | BuiltinFunctionType | torch.device | torch.dtype
LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)


def made_batches(loop: FoundLoop, call: ModelCall, loss: LossCall | None) -> Again | None:
    """The batches that a loop makes, one after another: the inputs of its only model, and the target of its loss.

    Statements after the last use of a batch make the next one. None where the loop's text does not show how: where the
    batch is made of what the model or an optimizer left behind.
    """
    statements = loop.statement.body
    called = _only_call(statements, call.module, loop)
    of_loss = None if loss is None else _only_call(statements, loss.function, loop)
    batch = _expression(called, of_loss, call, loss)
    if called is None or batch is None:
        return None
    make = batches_by_text(loop, batch, called, of_loss or called)
    seen = (*call.args, *call.kwargs.values(), *(loss.args[1:] if loss is not None else ()))
    return make if make is not None and _makes_like(make, seen) else None


def batches_by_text(loop: FoundLoop, batch: ast.expr, first: ast.AST, last: ast.AST) -> Again | None:
    """The batches of a loop that uses each in the statements from one node to another; None as above."""
    statements = list(_around(first, loop.statement.body))
    begin, end = (_place(node, statements) for node in (first, last))
    before, using, after = statements[:begin], statements[begin : end + 1], statements[end + 1 :]
    own = stored(loop.statement.target) if isinstance(loop.statement, ast.For) else set()
    needed, kept, making = slice_of(before, loaded(batch), loop)
    more, kept, for_next = slice_of(after, kept, loop, by=stored)
    if for_next:
        needed, _, making = slice_of(before, needed | more | kept, loop)
    changed_later = set().union(*map(stored, using), *(stored(one) for one in before if one not in making))
    making = [*for_next, *making]
    leaves = any(isinstance(node, LEAVES) for one in making for node in ast.walk(one))
    if not making or leaves or _is_trained([*making, batch], loop) or changed_later & needed or len(own & needed) > 1:
        return None
    made = own.union(*map(stored, making))
    if is_changed_beside([*making, batch, first, last], needed - made, loop):
        return None
    make = _made_by(loop, making, batch, next(iter(own & needed), ""))
    return Again(lambda: iter(make, None))


def _makes_like(batches: Again, seen: tuple[Any, ...]) -> bool:
    """Whether batches have tensors of the number types and dimensions that the loop was seen to use."""
    try:
        made = next(iter(batches))
    except Exception:  # a name that only the whole round gives a value to
        return False
    of_made, of_seen = ([(one.dtype, one.dim()) for one in tensors_of(batch)] for batch in (made, seen))
    return sorted(of_made, key=str) == sorted(of_seen, key=str)


def _expression(
    called: ast.Call | None, of_loss: ast.Call | None, call: ModelCall, loss: LossCall | None
) -> ast.expr | None:
    """The batch as an expression: the arguments of the model's call, and the target; a mapping where some are named."""
    if called is None or any(isinstance(one, ast.Starred) for one in called.args):
        return None
    if loss is not None:
        complete = of_loss is not None and len(of_loss.args) == 2 and not called.keywords
        return ast.Tuple([*called.args, of_loss.args[1]], ast.Load()) if of_loss is not None and complete else None
    if not called.keywords:
        return ast.Tuple(list(called.args), ast.Load())
    names = list(inspect.signature(call.module.forward).parameters)[: len(called.args)]
    named = {**dict(zip(names, called.args, strict=False)), **{one.arg or "": one.value for one in called.keywords}}
    return None if "" in named else ast.Dict([ast.Constant(name) for name in named], list(named.values()))


def _only_call(statements: list[ast.stmt], function: Any, loop: FoundLoop) -> ast.Call | None:
    """The call of a model or a loss in statements in each round; None where there is none, or more than one."""
    nodes = (node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call))
    called = (node for node in nodes if value_of(node.func, loop.names) is function)
    found = [node for node in called if not is_in_some_rounds(loop.statement, node.lineno)]
    return found[0] if len(found) == 1 else None


def _around(called: ast.AST, statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a round, with those of a loop of one round within it that makes the call."""
    for statement in statements:
        if isinstance(statement, ast.For) and called in ast.walk(statement):
            yield from _around(called, statement.body)
        else:
            yield statement


def _place(node: ast.AST, statements: list[ast.stmt]) -> int:
    return next((number for number, statement in enumerate(statements) if node in ast.walk(statement)), len(statements))


def slice_of(
    statements: list[ast.stmt], needed: set[str], loop: FoundLoop, by: Callable[[ast.AST], set[str]] | None = None
) -> tuple[set[str], set[str], list[ast.stmt]]:
    """The names that a batch is made of, those whose values are from before, and the statements that make them.

    These are all statements that have to do with one of the names; with ``by``, those whose names by it are among them.
    """
    making: list[ast.stmt] = []
    kept = needed
    for statement in reversed(statements):
        if kept & (by(statement) if by else {*stored(statement), *loaded(statement)}) - _of_modules(needed, loop):
            making.insert(0, statement)
            kept = _needed_before(statement, kept)
            needed = needed | kept | stored(statement)
    modules = _of_modules(needed, loop)
    return needed - modules, kept - modules, making


def _needed_before(statement: ast.stmt, after: set[str]) -> set[str]:
    """The names whose values are needed before a statement, by it or after it."""
    if isinstance(statement, ast.Assign):
        return (after - stored(statement)) | loaded(statement)
    if isinstance(statement, ast.With):
        return _needed_before_block(statement.body, after).union(*map(loaded, statement.items))
    if isinstance(statement, ast.If):
        either = (_needed_before_block(block, after) for block in (statement.body, statement.orelse))
        return loaded(statement.test).union(*either)
    if isinstance(statement, ast.For):
        once = _needed_before_block(statement.body, after) - stored(statement.target)
        again = _needed_before_block(statement.body, after | once) - stored(statement.target)
        return after | again | loaded(statement.iter)
    return after | loaded(statement)


def _needed_before_block(block: list[ast.stmt], after: set[str]) -> set[str]:
    for statement in reversed(block):
        after = _needed_before(statement, after)
    return after


def is_changed_beside(
    used: Sequence[ast.AST], kept: set[str], loop: FoundLoop, but: Collection[int] = frozenset()
) -> bool:
    """Whether the rest of each round may change what statements read. ``kept`` are the names that they do not make.

    It may change what it binds, the object of a method, and the arguments, such as ``queue`` in ``queue.append(z)``.
    ``but`` are ids of objects that do not count.
    """
    nodes = {id(node): node for one in used for node in ast.walk(one)}
    rest = [node for one in loop.statement.body for node in ast.walk(one) if id(node) not in nodes]
    read = [node for node in nodes.values() if isinstance(node, ast.Name | ast.Attribute)]
    bound = kept | {ast.unparse(node) for node in read if isinstance(node, ast.Attribute)}
    values = (value_of(node, loop.names) for node in read if loaded(node) & kept)
    objects = {id(value) for value in values if value is not None and not isinstance(value, _CONSTANT)} - {*but}
    calls = [node for node in rest if isinstance(node, ast.Call) and objects.intersection(_changed_by(node, loop))]
    changes = any(not is_in_some_rounds(loop.statement, call.lineno) for call in calls)
    return changes or any(bound & bound_by(node) for node in rest)


def _changed_by(call: ast.Call, loop: FoundLoop) -> Iterator[int]:
    """The ids of the objects that a call may change; PyTorch's functions change no arguments."""
    function = value_of(call.func, loop.names)
    yield id(getattr(function, "__self__", None))
    if not str(getattr(function, "__module__", "")).startswith("torch."):
        for one in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield id(value_of(one, loop.names))


def _of_modules(names: set[str], loop: FoundLoop) -> set[str]:
    """Those names that stand for modules, functions and classes, which statements may use that share nothing else."""
    kinds = ModuleType | FunctionType | BuiltinFunctionType | type
    return {name for name in names if isinstance(loop.names.get(name, len), kinds)}


def _is_trained(making: Sequence[ast.AST], loop: FoundLoop) -> bool:
    """Whether pieces of a program use a model or an optimizer."""
    values = (loop.names.get(name) for one in making for name in loaded(one))
    return any(isinstance(value, Optimizer | nn.Module) for value in values)


def loaded(node: ast.AST) -> set[str]:
    """The names that are read in a piece of a program, those that are added to among them."""
    added = {name for part in ast.walk(node) if isinstance(part, ast.AugAssign) for name in stored(part.target)}
    return added | {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def stored(node: ast.AST) -> set[str]:
    """The names that a piece of a program gives values to."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _made_by(loop: FoundLoop, making: list[ast.stmt], batch: ast.expr, variable: str) -> Callable[[], Any]:
    """The function that runs these statements for the loop's next item, in names of its own."""
    given: ast.stmt = ast.Assign([ast.Name(_BATCH, ast.Store())], batch)
    body = [ast.copy_location(copy.deepcopy(one), making[0]) for one in (*making, given)]
    code = compile(ast.fix_missing_locations(ast.Module(body, [])), loop.file, "exec")
    names, rounds = copy.copy(loop.names), Rounds(items_of(loop))

    def make() -> Any:
        if variable:
            names[variable] = rounds.next()
        exec(code, names)  # noqa: S102 - it is the user's own loop
        return names[_BATCH]

    return make
