"""The loss of a loop that computes it in statements of its own, as ``loss(model, batch)``."""

import ast
import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advisor.python.loops import blocks, bound_in, clears, is_in_some_rounds, name_called
from advisor.python.positions import COUNTED, reads_once, value_of
from advisor.step.loss import is_number
from advisor.target.draws import buffers_kept, draws_kept
from advisor.target.scripts.body import Again, FoundLoop, position_in
from advisor.target.scripts.making import LEAVES, batches_by_text, is_changed_beside, loaded, slice_of, stored
from advisor.target.scripts.seen import Seen

_LOSS, _MODEL, _BATCH = "__perf_advisor_loss__", "__perf_advisor_model__", "__perf_advisor_batch__"
# Two computations of one loss are apart by this at most, relatively; a step in bfloat16 is 4e-3.
_ROUNDING = 1e-5
# Contexts that change nothing in a step that trains.
_PLAIN_CONTEXTS = frozenset({"enable_grad", "set_grad_enabled", "nullcontext", "record_function"})


@dataclass(frozen=True, slots=True)
class WrittenLoss:
    """The statements of a round from its batch to what ``backward`` is called on, as a function."""

    function: Callable[[nn.Module, Any], torch.Tensor]

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        return self.function(model, batch)


def written_loss(loop: FoundLoop, seen: Seen, model: nn.Module) -> tuple[Any, WrittenLoss] | None:
    """The data of a loop, and its loss of a batch, as its text computes that of one model.

    A batch is what the loader gives; without one, the names that the statements before the model's call make. None
    where the text does not show it, where the loss is computed of something that is left of the round before, and where
    it is no number for a batch. Blocks of autocast are taken out, since that is a setting around the whole loss: None
    where the loss is another one then.
    """
    before = list(_up_to_backward(loop))
    result = before.pop() if before else None
    leaves = any(isinstance(node, LEAVES) for one in before for node in ast.walk(one))
    if not isinstance(result, ast.Return) or loop.contexts or leaves:
        return None
    before = [one for one in before if not clears(one)]
    data: Any
    if seen.loader is None:
        before, data, target = _made(before, result, loop, model)
    else:
        data, target = seen.loader, _batch_in_head(loop, seen) or _batch_in_body(before, loop, seen)
    if target is None:
        return None
    _, kept, making = slice_of(before, loaded(result), loop, by=functools.partial(_concerns, loop))
    used, kept = [*making, result], kept - stored(target)
    parts = set(map(id, (*model.modules(), *model.parameters())))  # changes of these are noticed elsewhere
    if kept & bound_in(loop.statement) or _goes_on(used, loop) or is_changed_beside(used, kept, loop, parts):
        return None
    given = ast.copy_location(ast.Assign([target], ast.Name(_BATCH, ast.Load())), loop.statement)
    taken, uncast = _Takes(loop, model), _Uncast(loop)
    text = ast.Module([taken.visit(copy.deepcopy(one)) for one in (given, *used)], [])
    written, loss = _function(text, loop), _function(uncast.visit(copy.deepcopy(text)), loop)
    batch = next(iter(data)) if seen.loader is None else seen.batch
    value = _value(loss, model, batch, seen.casts)
    if not taken.found or value is None:
        return None
    if seen.casts != "none" and not (uncast.found and _are_alike(value, _value(written, model, batch))):
        return None
    return data, WrittenLoss(loss)


def _goes_on(used: list[ast.stmt], loop: FoundLoop) -> bool:
    """Whether statements use an optimizer or an iterator, which are other ones after each round."""
    nodes = (node for one in used for node in ast.walk(one) if isinstance(node, ast.Name | ast.Attribute))
    return any(isinstance(value_of(node, loop.names), Optimizer | Iterator) for node in nodes)


def _made(
    before: list[ast.stmt], result: ast.Return, loop: FoundLoop, model: nn.Module
) -> tuple[list[ast.stmt], Again | None, ast.expr | None]:
    """The statements from the model's call on, the batches that those before it make, and their names as a target."""
    calls = [node for one in before for node in ast.walk(one) if isinstance(node, ast.Call)]
    of_model = (node for node in calls if value_of(node.func, loop.names) is model)
    called = next((node for node in of_model if not is_in_some_rounds(loop.statement, node.lineno)), None)
    backward = _backward_in(loop)
    if called is None or backward is None:
        return before, None, None
    first = next(place for place, one in enumerate(before) if called in ast.walk(one))
    _, kept, _ = slice_of(before[first:], loaded(result), loop, by=functools.partial(_concerns, loop))
    names = sorted(name for name in kept & bound_in(loop.statement))
    row = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
    data = batches_by_text(loop, row, called, backward) if names else None
    target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
    return before[first:], data, None if data is None else target


def _batch_in_head(loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of the batch in the head of a ``for`` loop over the loader; None for another loop."""
    position = position_in(loop, seen)
    if position is None or not isinstance(loop.statement, ast.For):
        return None
    target = loop.statement.target
    if position == COUNTED:
        return target.elts[1] if isinstance(target, ast.Tuple) else None
    return target


def _batch_in_body(block: list[ast.stmt], loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of a batch that the loop reads with ``next``. That statement is taken out. None without one."""
    lines = {line for code, line in seen.reads if code is loop.code}
    for place, one in enumerate(block):
        if not isinstance(one, ast.Assign) or not isinstance(one.value, ast.Call) or one.lineno not in lines:
            continue
        if name_called(one.value) == "next" and reads_once(loop.statement, loop.code, seen.reads):
            del block[place]
            return one.targets[0]
    return None


def _value(loss: Callable[..., Any], model: nn.Module, batch: Any, casts: str = "none") -> torch.Tensor | None:
    """The loss of a batch under autocast to a type; None where it is no number that goes backward."""
    device = next(model.parameters()).device.type
    around = nullcontext() if casts == "none" else torch.autocast(device, dtype=getattr(torch, casts))
    try:
        with draws_kept(model), buffers_kept(model), around:
            value = loss(model, batch)
    except Exception:  # a name that only the whole round gives a value to
        return None
    return value if is_number(value) and value.requires_grad else None


def _are_alike(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether two losses of a batch are equal but for the order of sums."""
    return other is not None and torch.allclose(one.double(), other.double(), rtol=_ROUNDING, atol=0)


def _backward_in(loop: FoundLoop) -> ast.Call | None:
    """The only backward pass of a loop, where it is made in each round and without options; else None."""
    calls = [node for one in loop.statement.body for node in ast.walk(one) if isinstance(node, ast.Call)]
    found = [call for call in calls if name_called(call) == "backward"]
    if len(found) != 1 or found[0].args or found[0].keywords or is_in_some_rounds(loop.statement, found[0].lineno):
        return None
    return found[0]


def _up_to_backward(loop: FoundLoop) -> Iterator[ast.stmt]:
    """The statements of each round up to its backward pass, and a ``return`` of what that is called on."""
    call = _backward_in(loop)
    if call is not None and isinstance(call.func, ast.Attribute):
        yield from _up_to(call, _unscaled(call.func.value, loop), loop.statement.body, loop)


def _unscaled(value: ast.expr, loop: FoundLoop) -> ast.expr:
    """The loss in ``scaler.scale(loss)`` where the scaler is off and changes nothing; else the value itself."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "scale":
        scaler = value_of(value.func.value, loop.names)
        if isinstance(scaler, torch.amp.GradScaler) and not scaler.is_enabled():
            return value.args[0]
    return value


def _up_to(call: ast.Call, value: ast.expr, block: list[ast.stmt], loop: FoundLoop) -> Iterator[ast.stmt]:
    for statement in block:
        if call not in ast.walk(statement):
            yield statement
            continue
        if isinstance(statement, ast.Expr):
            yield ast.copy_location(ast.Return(value), statement)
        elif isinstance(statement, ast.If) or (isinstance(statement, ast.With) and _changes_nothing(statement, loop)):
            for part in blocks(statement):
                if any(call in ast.walk(one) for one in part):
                    yield from _up_to(call, value, part, loop)
        return


def _changes_nothing(block: ast.With, loop: FoundLoop) -> bool:
    contexts = [item.context_expr for item in block.items]
    return all(
        name_called(one) in _PLAIN_CONTEXTS
        if isinstance(one, ast.Call)
        else isinstance(value_of(one, loop.names), nullcontext)
        for one in contexts
    )


def _concerns(loop: FoundLoop, statement: ast.AST) -> set[str]:
    """The names by which a statement may have to do with a loss.

    Those that it binds; of one that is no assignment also those that it reads, as it may change them. What is done in
    some rounds only, such as an evaluation, is no part of the loss unless it binds a part of it.
    """
    binds = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
    if isinstance(statement, ast.If) and is_in_some_rounds(loop.statement, statement.body[0].lineno):
        binds = True
    return bound_in(statement) if binds else bound_in(statement) | stored(statement) | loaded(statement)


class _Takes(ast.NodeTransformer):
    """Puts the function's own model in the place of the script's."""

    def __init__(self, loop: FoundLoop, model: nn.Module) -> None:
        self._names, self._model, self.found = loop.names, model, False

    def visit(self, node: ast.AST) -> Any:
        """The node, or the name of the model."""
        if isinstance(node, ast.Name | ast.Attribute) and value_of(node, self._names) is self._model:
            self.found = True
            return ast.copy_location(ast.Name(_MODEL, ast.Load()), node)
        return self.generic_visit(node)


class _Uncast(ast.NodeTransformer):
    """Leaves what blocks of autocast hold in their place.

    A block with ``enabled=False``, which keeps its part from the casts around it, stays.
    """

    def __init__(self, loop: FoundLoop) -> None:
        self._names, self.found = loop.names, False

    def visit_With(self, node: ast.With) -> Any:
        """Return the statements inside a block of autocast, and any other block as it is."""
        self.generic_visit(node)
        if not all(self._casts(item.context_expr) for item in node.items):
            return node
        self.found = True
        return node.body

    def _casts(self, context: ast.expr) -> bool:
        if not isinstance(context, ast.Call):
            return isinstance(value_of(context, self._names), torch.autocast)
        kind = value_of(context.func, self._names)
        off = (one.arg == "enabled" and getattr(one.value, "value", None) is False for one in context.keywords)
        return isinstance(kind, type) and issubclass(kind, torch.autocast) and not any(off)


def _function(text: ast.Module, loop: FoundLoop) -> Callable[[nn.Module, Any], torch.Tensor]:
    """A function of a model and a batch, in a copy of those of the loop's names that it reads."""
    module = ast.parse(f"def {_LOSS}({_MODEL}, {_BATCH}): pass")
    module.body[0].body = text.body  # type: ignore[attr-defined]
    read = {node.id for node in ast.walk(text) if isinstance(node, ast.Name)}
    absent = object()
    names = {name: value for name in read if (value := loop.names.get(name, absent)) is not absent}
    exec(compile(ast.fix_missing_locations(module), loop.file, "exec"), names)  # noqa: S102 - it is the user's own loop
    function: Callable[[nn.Module, Any], torch.Tensor] = names[_LOSS]
    return function
