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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advisor.python import trees
from advisor.python.loops import FoundLoop, scope_of, users_lines, varies
from advisor.step.batch import tensors_of
from advisor.step.loss import is_number
from advisor.workloads.loop import GivenBatches
from advisor.workloads.scripts.heads import batch_in_body, batch_in_head
from advisor.workloads.scripts.seen import Seen

_Loss = Callable[[nn.Module, Any], torch.Tensor]
_MODEL, _BATCH = "__perf_advisor_model__", "__perf_advisor_batch__"
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
# Contexts that change nothing in a step that trains.
_PLAIN_CONTEXTS = frozenset({"enable_grad", "no_grad", "set_grad_enabled", "nullcontext", "record_function"})


@dataclass(frozen=True, slots=True)
class _Round:
    """A round of a loop: the statements before its backward pass and behind it, and the call that makes it.

    ``names`` are those of the loop, and of the function that it calls for the pass where there is one; ``bound`` are
    those that may differ from round to round.
    """

    before: list[ast.stmt]
    call: ast.Call
    behind: list[ast.stmt]
    names: dict[str, Any]
    bound: set[str]


def written_parts(loop: FoundLoop, seen: Seen, model: nn.Module) -> tuple[Any, _Loss] | None:
    """The data of a loop, and its loss of a batch, as its text computes that of one model.

    A batch is what the loader gives; without one, the values of the names that the other statements make. None where
    the text does not show it, where the loss is computed of something that is left of the round before, and where it
    is no number for a batch. Blocks of autocast are taken out: that is a setting around the whole loss.
    """
    found = _round_of(loop, seen)
    if found is None or found.call.keywords or len(found.call.args) > 1 or trees.leaves(found.before):
        return None
    assert isinstance(found.call.func, ast.Attribute)
    value = found.call.args[0] if found.call.args else found.call.func.value  # Accelerate's gets the loss
    result = ast.copy_location(ast.Return(value), found.call)
    before = [one for one in found.before if not trees.clears(one)]
    data: Any = seen.loader
    given = None if data is None else batch_in_head(loop, seen) or batch_in_body(before, loop, seen)
    used = [*trees.computing(trees.read_in(result), before), result]
    if data is None:
        given, used, data = _made(found, used, loop, seen, model)
    if given is None:
        return None
    first = ast.Assign([given], ast.Name(_BATCH, ast.Load()))
    left = trees.Flow(used).read.keys() & found.bound - trees.bound_in(first)
    in_place = trees.bound_in(*(one for one in used if isinstance(one, ast.Expr | ast.AugAssign)))
    if left or in_place & trees.bound_in(first) or any("." in name for name in trees.bound_in(*used)):
        return None
    taken = _Takes(found.names, model)
    defined: Any = ast.parse(f"def computed({_MODEL}, {_BATCH}): pass").body[0]
    defined.body = taken.visit(ast.Module(copy.deepcopy([first, *used]), [])).body
    inside = {name: found.names[name] for name in trees.read_in(defined) & found.names.keys()}
    exec(_compiled([defined], loop.where.file), inside)  # noqa: S102 - it is the user's own loop

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        """The statements of a round from its batch to what ``backward`` is called on."""
        return inside["computed"](model, batch)  # type: ignore[no-any-return]

    batch = seen.batch if seen.loader is not None else next(iter(data)) if isinstance(data, GivenBatches) else data
    try:
        computed = loss(model, batch) if taken.found else None
    except Exception:  # a name that only the whole round gives a value to
        return None
    return (data, loss) if computed is not None and is_number(computed) and computed.requires_grad else None


def _round_of(loop: FoundLoop, seen: Seen) -> _Round | None:
    """The round of a loop around its one backward pass, or around its call of the function that makes the pass.

    None where the pass has options, where a round may do without it, and where functions call functions for it.
    """
    stacks = {users_lines(each.at) for each in seen.passes}
    if len(stacks) != 1:
        return None
    (code, line), *callers = stacks.pop()
    names, bound, body = loop.where.names, trees.bound_in(loop.statement), loop.statement.body
    if code.co_filename == loop.where.file and trees.holds(loop.statement, line):
        return _around("backward", line, body, names, bound)
    function: Any = scope_of(code)
    frames = [one.frame for one in seen.frames if one.code is code]
    is_called = bool(callers) and callers[0][0] is loop.where.code and not getattr(function, "decorator_list", True)
    outer = _around(function.name, callers[0][1], body, names, bound) if frames and is_called else None
    if outer is None:
        return None
    try:
        signature = inspect.signature(trees.value_of(outer.call.func, names))
        given = signature.bind(*outer.call.args, **{one.arg or "": one.value for one in outer.call.keywords}).arguments
    except TypeError:  # such as of `**options`
        return None
    if not all(isinstance(one, ast.expr) and not isinstance(one, ast.Starred) for one in given.values()):
        return None
    changed = {name: value for name, value in given.items() if trees.read_in(value) & bound}
    begin = ast.Assign([_tuple([*changed], ast.Store())], ast.Tuple([*changed.values()], ast.Load()))
    begin = ast.fix_missing_locations(ast.copy_location(begin, outer.call))
    names = {**frames[0].f_globals, **names, **frames[0].f_locals}
    inner = _around("backward", line, function.body, names, bound | trees.bound_in(*function.body) | {*changed})
    return inner and replace(inner, before=[*outer.before, begin, *inner.before], behind=[*inner.behind, *outer.behind])


def _around(name: str, line: int, block: list[ast.stmt], names: dict[str, Any], bound: set[str]) -> _Round | None:
    """The statements around the call of a name at a line, also those of the blocks that lead to it.

    A loop around it has one round, since one call was seen. None under a context that changes something, for a
    backward pass under a condition that may differ from round to round, and where a statement does more than to call.
    """
    calls = [one for one in trees.calls_of(name, block) if one.lineno <= line <= (one.end_lineno or 0)]
    if len(calls) != 1:
        return None
    before, behind = list[ast.stmt](), list[ast.stmt]()
    while block:
        at = next(at for at, one in enumerate(block) if calls[0] in ast.walk(one))
        before, one, behind = [*before, *block[:at]], block[at], [*block[at + 1 :], *behind]
        if isinstance(one, _SIMPLE):
            return _Round(before, calls[0], behind, names, bound)
        if isinstance(one, ast.If) and name == "backward" and varies(one.test, bound):
            return None
        for context in [item.context_expr for item in one.items] if isinstance(one, ast.With) else ():
            is_plain = isinstance(context, ast.Call) and trees.name_called(context) in _PLAIN_CONTEXTS
            if not (is_plain or isinstance(trees.value_of(context, names), nullcontext)):
                return None
        block = next((part for part in trees.blocks(one) if calls[0] in trees.walk(part)), [])
    return None


def _made(
    found: _Round, used: list[ast.stmt], loop: FoundLoop, seen: Seen, model: nn.Module
) -> tuple[ast.expr | None, list[ast.stmt], Any]:
    """The names of a batch, the statements that use it, and the batches that the other statements of a round make.

    The statements after those that use a batch make the next one. If none does, the only batch are the tensors that
    each round uses, if the model gets one of them. No names if other statements need the loss's results, or a model.
    """
    of_model = [any(one is model for one in _values_in([statement], found.names)) for statement in used]
    using = used[of_model.index(True) :] if any(of_model) else []
    begin = found.before.index(using[0]) if using and using[0] in found.before else len(found.before)
    statements = [*found.before[begin:], *found.behind, *found.before[:begin]]
    rest = [one for one in statements if one not in using]
    read = {name for name in trees.Flow(using).read if "." not in name}
    names = sorted(read & found.bound)
    data: Any
    if names:
        making = trees.computing({*names}, rest)
        trains = any(isinstance(one, nn.Module | Optimizer) for one in _values_in(making, found.names))
        of_loss = trees.read_in(*making) & trees.bound_in(*(one for one in statements if one not in making))
        unmade = {*names} - trees.bound_in(*making) - trees.bound_by(loop.statement)
        if not making or trains or trees.leaves(making) or of_loss or unmade:
            return None, used, None
        data = GivenBatches(_made_by(making, _tuple(names, ast.Load()), found, loop), "the script's own loop")
    else:
        given = {id(one) for call in seen.calls if call.module is model for one in tensors_of((call.args, call.kwargs))}
        known = {name: found.names.get(name) for name in read if isinstance(found.names.get(name), torch.Tensor)}
        names = sorted(known, key=lambda name: (id(known[name]) not in given, name))
        if not names or id(known[names[0]]) not in given:
            return None, used, None
        data = tuple(known[name] for name in names)
    return _tuple(names, ast.Store()), using, data


def _made_by(making: list[ast.stmt], row: ast.expr, found: _Round, loop: FoundLoop) -> Callable[[], Iterator[Any]]:
    """The batches that statements make, for each of the loop's items where they read those, in names of their own."""
    head, first = loop.statement, list[ast.stmt]()
    items: Any = itertools.count
    if isinstance(head, ast.For) and trees.bound_by(head) & trees.read_in(*making, row):
        first = [ast.Assign([head.target], ast.Name(_BATCH, ast.Load()))]
        items = functools.partial(eval, compile(ast.Expression(head.iter), loop.where.file, "eval"), found.names)
    code = _compiled([*first, *making, ast.Assign([ast.Name(_BATCH, ast.Store())], row)], loop.where.file)
    names = copy.copy(found.names)

    def batches() -> Iterator[Any]:
        for names[_BATCH] in items():  # the user's own loop
            exec(code, names)  # noqa: S102
            yield names[_BATCH]

    return batches


def _values_in(statements: Sequence[ast.AST], names: dict[str, Any]) -> Iterator[Any]:
    return (trees.value_of(node, names) for node in trees.names_in(statements))


def _tuple(names: Sequence[str], context: ast.expr_context) -> ast.expr:
    return ast.Tuple([ast.Name(name, context) for name in names], context)


class _Takes(ast.NodeTransformer):
    """Puts the function's own model in the place of the script's, and leaves what blocks of autocast hold.

    A block with ``enabled=False``, which keeps its part from the casts around it, stays.
    """

    def __init__(self, names: dict[str, Any], model: nn.Module) -> None:
        self._names, self._model, self.found = names, model, False

    def visit(self, node: ast.AST) -> Any:
        """The node, the name of the model, or the statements of a block."""
        if isinstance(node, ast.Name | ast.Attribute) and trees.value_of(node, self._names) is self._model:
            self.found = True
            return ast.copy_location(ast.Name(_MODEL, ast.Load()), node)
        node = self.generic_visit(node)
        return node.body if isinstance(node, ast.With) and all(map(self._casts, node.items)) else node

    def _casts(self, item: ast.withitem) -> bool:
        context = item.context_expr
        if not isinstance(context, ast.Call):
            return isinstance(trees.value_of(context, self._names), torch.autocast)
        kind = trees.value_of(context.func, self._names)
        off = (one.arg == "enabled" and getattr(one.value, "value", None) is False for one in context.keywords)
        return isinstance(kind, type) and issubclass(kind, torch.autocast) and not any(off)


def _compiled(statements: list[ast.stmt], file: str) -> Any:
    return compile(ast.fix_missing_locations(ast.Module(statements, [])), file, "exec")
