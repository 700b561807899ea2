"""The parts of a loop that computes its loss in statements of its own: ``loss(model, batch)``, and its batches.

The statements from the batch to what ``backward`` is called on become the loss. Of a loop that reads no loader, the
statements that give their names values make the batches, as ``X, Y = get_batch()`` does.
"""

import ast
import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advisor.python.places import scope_of
from advisor.python.trees import blocks, bound_in, clears, name_called, value_of
from advisor.step.batch import tensors_of
from advisor.step.loss import is_number
from advisor.workloads.loop import GivenBatches
from advisor.workloads.scripts.found import FoundLoop, is_in_some_rounds, position_in
from advisor.workloads.scripts.reads import COUNTED, reads_once
from advisor.workloads.scripts.seen import Seen, same_values

_Loss = Callable[[nn.Module, Any], torch.Tensor]
_MODEL, _BATCH = "__perf_advisor_model__", "__perf_advisor_batch__"
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
# Contexts that change nothing in a step that trains.
_PLAIN_CONTEXTS = frozenset({"enable_grad", "no_grad", "set_grad_enabled", "nullcontext", "record_function"})


def written_parts(loop: FoundLoop, seen: Seen, model: nn.Module) -> tuple[Any, _Loss] | None:
    """The data of a loop, and its loss of a batch, as its text computes that of one model.

    A batch is what the loader gives; without one, the values of the names that the other statements make. None where
    the text does not show it, where the loss is computed of something that is left of the round before, and where it
    is no number for a batch. Blocks of autocast are taken out: that is a setting around the whole loss.
    """
    loop = _with_step_function(loop, seen)
    call = _backward_in(loop, seen)
    if call is None:
        return None
    statements = list(_opened(loop.statement.body, call, loop))
    place = next((place for place, one in enumerate(statements) if call in ast.walk(one)), None)
    if place is None or _leaves(statements[:place]) or not isinstance(statements[place], ast.Expr):
        return None
    result = ast.copy_location(ast.Return(_unscaled(call, loop)), call)
    before = [one for one in statements[:place] if not clears(one)]
    data: Any = seen.loader
    given = None if data is None else _batch_in_head(loop, seen) or _batch_in_body(before, loop, seen)
    used = [*_computing(_read([result]), before), result]
    if data is None:
        given, used, data = _made(statements, used, loop, seen, model)
    left = _read_first(used) & bound_in(loop.statement)
    in_place = _bound([one for one in used if isinstance(one, ast.Expr | ast.AugAssign)])
    if given is None or left - _stored(given) or in_place & _stored(given) or any("." in name for name in _bound(used)):
        return None
    taken = _Takes(loop, model)
    first = ast.Assign([given], ast.Name(_BATCH, ast.Load()))
    loss = _function(taken.visit(ast.Module(copy.deepcopy([first, *used]), [])), loop)
    batch = seen.batch if seen.loader is not None else next(iter(data)) if isinstance(data, GivenBatches) else data
    try:
        value = loss(model, batch) if taken.found else None
    except Exception:  # a name that only the whole round gives a value to
        return None
    return (data, loss) if value is not None and is_number(value) and value.requires_grad else None


def _with_step_function(loop: FoundLoop, seen: Seen) -> FoundLoop:
    """Replace the call of a step function in a loop with the function's body; other loops stay as they are.

    Parameters that do not change from round to round get the values of the first call.
    """
    users = [where for where in seen.frames if where.is_users]
    place = next(place for place, where in enumerate(users) if where.frame.f_code is loop.code)
    function: Any = scope_of(users[place - 1].frame.f_code) if place else None
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return loop
    calls = (node for node in ast.walk(loop.statement) if isinstance(node, ast.Call))
    called = next((one for one in calls if name_called(one) == function.name), None)
    if called is None:
        return loop
    try:
        signature = inspect.signature(value_of(called.func, loop.names))
        given = signature.bind(*called.args, **{one.arg or "": one.value for one in called.keywords}).arguments
    except TypeError:  # such as of `**options`
        return loop
    if any(isinstance(one, ast.Starred) or not isinstance(one, ast.expr) for one in given.values()):
        return loop
    changed = {name: value for name, value in given.items() if _read([value]) & bound_in(loop.statement)}
    target = ast.Tuple([ast.Name(name, ast.Store()) for name in changed], ast.Store())
    begin = ast.Assign([target], ast.Tuple([*changed.values()], ast.Load()))
    body = ast.copy_location(ast.If(ast.Constant(value=True), [begin, *function.body], []), called)
    copies: dict[int, Any] = {}
    statement = copy.deepcopy(loop.statement, copies)
    for block in (part for node in ast.walk(statement) if isinstance(node, ast.stmt) for part in blocks(node)):
        made = (isinstance(one, _SIMPLE) and copies[id(called)] in ast.walk(one) for one in block)
        block[:] = [body if calls_it else one for one, calls_it in zip(block, made, strict=True)]
    inner, outer = users[place - 1].frame, users[place].frame
    names = {**inner.f_globals, **outer.f_globals, **outer.f_locals, **inner.f_locals}
    return replace(loop, statement=ast.fix_missing_locations(statement), names=names)


def _computing(needed: set[str], statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements by which names get their values, in their order."""
    found: list[ast.stmt] = []
    for one in reversed(statements):
        if _bound([one]) & needed:
            found.insert(0, one)
            needed = needed | _read([one])
    return found


def _made(
    statements: list[ast.stmt], used: list[ast.stmt], loop: FoundLoop, seen: Seen, model: nn.Module
) -> tuple[ast.expr | None, list[ast.stmt], Any]:
    """The names of a batch, the statements that use it, and the batches that the other statements of a round make.

    The statements after the use make the next batch. Where none makes one, the tensors that are used in each round are
    the one batch, if the model gets one of them. No names where other statements need what the loss leaves, or a model.
    """
    calls = (place for place, one in enumerate(used) if any(value_of(n, loop.names) is model for n in _names_in([one])))
    using = used[next(calls, len(used)) :]
    begin = statements.index(using[0]) if using and using[0] in statements else len(statements) - 1
    rest = [one for one in (*statements[begin:], *statements[:begin]) if one not in using]
    read = {name for name in _read_first(using) if "." not in name}
    names = sorted(read & bound_in(loop.statement))
    data: Any
    if names:
        making = _computing(set(names), rest)
        trains = any(isinstance(value_of(node, loop.names), nn.Module | Optimizer) for node in _names_in(making))
        item = _stored(loop.statement.target) if isinstance(loop.statement, ast.For) else set()
        of_loss = _read(making) & _bound([one for one in statements if one not in making])
        if not making or trains or _leaves(making) or of_loss or {*names} - _bound(making) - item:
            return None, used, None
        row = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
        data = GivenBatches(_made_by(making, row, loop), "the script's own loop")
    else:
        given = {id(one) for call in seen.calls if call.module is model for one in tensors_of((call.args, call.kwargs))}
        held = {name: loop.names.get(name) for name in read if isinstance(loop.names.get(name), torch.Tensor)}
        names = sorted(held, key=lambda name: (id(held[name]) not in given, name))
        if not names or id(held[names[0]]) not in given:
            return None, used, None
        data = tuple(held[name] for name in names)
    return ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store()), using, data


def _made_by(making: list[ast.stmt], row: ast.expr, loop: FoundLoop) -> Callable[[], Iterator[Any]]:
    """The batches that statements make, for each of the loop's items where they read those, in names of their own."""
    head, first = loop.statement, list[ast.stmt]()
    items: Any = itertools.count
    if isinstance(head, ast.For) and _stored(head.target) & (_read(making) | _read([row])):
        first = [ast.Assign([head.target], ast.Name(_BATCH, ast.Load()))]
        items = functools.partial(eval, compile(ast.Expression(head.iter), loop.file, "eval"), loop.names)
    code = _compiled([*first, *making, ast.Assign([ast.Name(_BATCH, ast.Store())], row)], loop)
    names = copy.copy(loop.names)

    def batches() -> Iterator[Any]:
        for names[_BATCH] in items():  # the user's own loop
            exec(code, names)  # noqa: S102
            yield names[_BATCH]

    return batches


def _leaves(statements: Sequence[ast.AST]) -> bool:
    """Whether some statements leave the loop or its function; what functions within them do is their own."""
    return any(
        isinstance(one, _LEAVES) or (not isinstance(one, _FUNCTIONS) and _leaves([*ast.iter_child_nodes(one)]))
        for one in statements
    )


def _names_in(statements: Sequence[ast.AST]) -> Iterator[ast.Name | ast.Attribute]:
    return (node for one in statements for node in ast.walk(one) if isinstance(node, ast.Name | ast.Attribute))


def _read(statements: Sequence[ast.AST]) -> set[str]:
    """The names and attributes that are read in some statements, those that are added to among them."""
    added = {name for one in statements for node in ast.walk(one) if isinstance(node, ast.AugAssign)
             for name in bound_in(node)}  # fmt: skip
    return added | {ast.unparse(node) for node in _names_in(statements) if isinstance(node.ctx, ast.Load)}


def _read_first(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that some statements read before they give them values."""
    found, bound = set[str](), set[str]()
    for one in statements:
        own = set() if isinstance(one, ast.Assign | ast.AugAssign) else bound_in(one)
        found |= _read([one]) - bound - own
        bound |= _bound([one])
    return found


def _bound(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that some statements give values to, those of functions among them."""
    functions = {one.name for one in statements if isinstance(one, ast.FunctionDef)}
    return functions.union(*(bound_in(one) for one in statements if not isinstance(one, ast.FunctionDef)))


def _stored(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _batch_in_head(loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of the batch in the head of a ``for`` loop over the loader, or over a generator that passes it on."""
    if not isinstance(loop.statement, ast.For):
        return None
    position, head, target = position_in(loop, seen), loop.statement.iter, loop.statement.target
    if position == COUNTED or (isinstance(head, ast.Call) and name_called(head) == "enumerate"):
        target = target.elts[1] if isinstance(target, ast.Tuple) else ast.Name("", ast.Store())
    if position is None:
        parts = [value_of(one, loop.names) for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
        item = parts if isinstance(target, ast.Tuple) else parts[0]
        reads_in_head = reads_once(loop.statement, loop.code, seen.reads) and same_values(item, seen.batch)
        return target if reads_in_head and _batch_in_body(list(loop.statement.body), loop, seen) is None else None
    return target


def _batch_in_body(block: list[ast.stmt], loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of a batch that the loop reads with ``next``. That statement is taken out. None without one."""
    lines = {line for code, line in seen.reads if code is loop.code}
    for place, one in enumerate(block):
        read = one.body[0] if isinstance(one, ast.Try) else one
        if not isinstance(read, ast.Assign) or not isinstance(read.value, ast.Call) or read.lineno not in lines:
            continue
        if name_called(read.value) == "next" and reads_once(loop.statement, loop.code, seen.reads):
            del block[place]
            return read.targets[0]
    return None


def _backward_in(loop: FoundLoop, seen: Seen) -> ast.Call | None:
    """The backward pass of a loop that was seen, where it is made in each round and without options; else None.

    Others, as in the branch of a scaler that is there or not, are never made.
    """
    lines = {line for one in seen.passes for _, line in one.at}
    calls = [node for one in loop.statement.body for node in ast.walk(one) if isinstance(node, ast.Call)]
    found = [call for call in calls if name_called(call) == "backward" and isinstance(call.func, ast.Attribute)]
    made = [call for call in found if not lines.isdisjoint(range(call.lineno, (call.end_lineno or 0) + 1))]
    if len(made) != 1 or len(made[0].args) > 1 or made[0].keywords:
        return None
    return None if is_in_some_rounds(loop.statement, made[0].lineno) else made[0]


def _opened(block: list[ast.stmt], call: ast.Call, loop: FoundLoop) -> Iterator[ast.stmt]:
    """The statements of a round; in the place of a block around the backward pass those inside it.

    A loop around it has one round, since one pass was seen. A context that changes something is left whole.
    """
    for one in block:
        is_whole = isinstance(one, ast.Expr) or (isinstance(one, ast.With) and not _changes_nothing(one, loop))
        if call not in ast.walk(one) or is_whole:
            yield one
            continue
        for part in blocks(one):
            if any(call in ast.walk(inside) for inside in part):
                yield from _opened(part, call, loop)


def _changes_nothing(block: ast.With, loop: FoundLoop) -> bool:
    contexts = [item.context_expr for item in block.items]
    return all(
        name_called(one) in _PLAIN_CONTEXTS
        if isinstance(one, ast.Call)
        else isinstance(value_of(one, loop.names), nullcontext)
        for one in contexts
    )


def _unscaled(call: ast.Call, loop: FoundLoop) -> ast.expr:
    """The loss of a ``backward`` call: its object or, as in Accelerate, its argument; without a disabled scaler."""
    assert isinstance(call.func, ast.Attribute)
    value = call.args[0] if call.args else call.func.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "scale":
        scaler = value_of(value.func.value, loop.names)
        if isinstance(scaler, torch.amp.GradScaler) and not scaler.is_enabled():
            return value.args[0]
    return value


class _Takes(ast.NodeTransformer):
    """Puts the function's own model in the place of the script's, and leaves what blocks of autocast hold.

    A block with ``enabled=False``, which keeps its part from the casts around it, stays.
    """

    def __init__(self, loop: FoundLoop, model: nn.Module) -> None:
        self._names, self._model, self.found = loop.names, model, False

    def visit(self, node: ast.AST) -> Any:
        """The node, the name of the model, or the statements of a block."""
        if isinstance(node, ast.Name | ast.Attribute) and value_of(node, self._names) is self._model:
            self.found = True
            return ast.copy_location(ast.Name(_MODEL, ast.Load()), node)
        node = self.generic_visit(node)
        return node.body if isinstance(node, ast.With) and all(map(self._casts, node.items)) else node

    def _casts(self, item: ast.withitem) -> bool:
        context = item.context_expr
        if not isinstance(context, ast.Call):
            return isinstance(value_of(context, self._names), torch.autocast)
        kind = value_of(context.func, self._names)
        off = (one.arg == "enabled" and getattr(one.value, "value", None) is False for one in context.keywords)
        return isinstance(kind, type) and issubclass(kind, torch.autocast) and not any(off)


def _function(text: ast.Module, loop: FoundLoop) -> _Loss:
    """A function of a model and a batch, in a copy of those of the loop's names that it reads."""
    defined: Any = ast.parse(f"def loss({_MODEL}, {_BATCH}): pass").body[0]
    defined.body = text.body
    absent = object()
    read = {node.id for node in _names_in([text]) if isinstance(node, ast.Name)}
    names = {name: value for name in read if (value := loop.names.get(name, absent)) is not absent}
    exec(_compiled([defined], loop), names)  # noqa: S102 - it is the user's own loop

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        """The statements of a round from its batch to what ``backward`` is called on."""
        return names["loss"](model, batch)  # type: ignore[no-any-return]

    return loss


def _compiled(statements: list[ast.stmt], loop: FoundLoop) -> Any:
    return compile(ast.fix_missing_locations(ast.Module(copy.deepcopy(statements), [])), loop.file, "exec")
