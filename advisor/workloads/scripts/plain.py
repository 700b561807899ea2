"""The workload of a watched script: the parts of its plain loop, or else a round of its loop, or its inference.

In a plain loop, the statements from the batch to the tensor with ``backward`` become ``loss(model, batch)``. If the
loop reads no loader, its other statements make the batches (``X, Y = get_batch()``, for example).
"""

import ast
import contextlib
import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from advisor.python import trees
from advisor.python.loops import FoundLoop, scope_of, users_lines, varies
from advisor.step.batch import map_tensors, splitter, tensors_of
from advisor.step.loader import length_of
from advisor.step.loss import is_number
from advisor.workloads.loop import GivenBatches, Loop
from advisor.workloads.scripts.rounds import ScriptStep
from advisor.workloads.scripts.running import Head
from advisor.workloads.scripts.watch import ModelCall, NoLoopError, Seen, parameters_in

_MODEL, _BATCH = "__perf_advisor_model__", "__perf_advisor_batch__"
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
# Contexts that do not change a training step.
_PLAIN_CONTEXTS = frozenset({"enable_grad", "no_grad", "set_grad_enabled", "nullcontext", "record_function"})


def workload_of(seen: Seen) -> Any:
    """The workload of a script. Raises NoLoopError if its loop can be neither split into parts nor run as a whole."""
    if seen.fitted is not None:
        return seen.fitted
    if seen.trains_elsewhere:
        raise NoLoopError("the training runs in processes that the script starts")
    if seen.endless:
        return _whole(None, seen)
    if not seen.updates and not seen.by_hand:
        return _inference_of(seen)
    loop = seen.loop
    ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    workload = (ranks == 1 and _plain(loop, seen)) or _whole(loop, seen)  # ranks exchange gradients in the loop
    if seen.pause is not None:  # else the script has ended after its only round, as a dry run does
        workload.whole_round = workload.step or _rounds_of(loop, seen)
    return workload


def _plain(loop: FoundLoop, seen: Seen) -> Loop | None:
    """The parts of a loop with one update of one model, taken from its source; None if the loop does more.

    A loop without a loader was watched for two rounds. A loop that never clears the gradients has no plain step.
    """
    rounds = 1 if seen.loader is not None else 2
    if len(seen.passes) != rounds or len(seen.updates) != 1 or len(seen.models) != 1 or not loop.clears:
        return None
    of_model = (call for call in seen.calls if call.module is seen.models[0])
    call = next((call for call in of_model if call.gradients == "grad"), None)
    if call is None or not call.trains or seen.changes_gradients or call.autocast == "float16":
        return None
    found = written_parts(loop, seen, call.module) if loop.where.is_users else None
    if found is None:
        return None
    data, loss = found
    made = ", on the batches that the loop makes" if isinstance(data, GivenBatches) else ""
    parts = f"measured: the model, the optimizer and the loss of the loop at {loop.place}{made}"
    return Loop(
        model=call.module,
        data=data,
        loss=loss,
        optimizer=seen.updates[0],
        mode="train",
        current=call.current,
        clip_grad=seen.clip_norm,
        notes=[f"{parts}; the rest of the script is left out", *_beside(seen, "is not measured")],
    )


def _whole(loop: FoundLoop | None, seen: Seen) -> Loop:
    """A round of the script's loop as the step; without a loop, a closure call of the script's only update."""
    notes = ["the training is one optimizer.step(closure); a call of its closure is the step"]
    if loop is not None:
        seen.updates += _other_optimizers([loop], seen)
        notes = [f"a round of the loop at {loop.place} is the step", *_beside(seen, "runs as it is")]
    # Not every trained tensor is in a model: it may be an image, or weights that torch.func passes to a meta module.
    models = [one for one in seen.models or seen.called if not any(p.is_meta for p in one.parameters())]
    models = models or [nn.ParameterList(p for one in seen.updates for p in parameters_in(one))]
    step = _rounds_of(loop, seen)
    return Loop(
        data=step.batches,
        mode="train",
        step=step,
        models=[one for one in models if not any(one is not o and any(m is one for m in o.modules()) for o in models)],
        optimizers=seen.optimizers,
        notes=notes,
        samples=_samples(seen),
    )


def _rounds_of(loop: FoundLoop | None, seen: Seen) -> ScriptStep:
    """Return the rounds of the script as ``step(batch) -> loss``. A loop that ends starts again."""
    heads: list[Head] = []
    for one in itertools.dropwhile(lambda one: loop and one.place != loop.place, seen.loops if loop else ()):
        heads += filter(None, [Head.latest.get((one.where.code, one.statement.lineno))])
        made = _values_in(one.beside, one.where.names, ast.Store)
        if any(isinstance(value, Optimizer) for value in made):  # an outer loop (over seeds) makes a new one
            break
    for head in heads:
        head.counts_to = None if seen.loader is None else length_of(seen.loader)
        head.goes_on = head is heads[-1]
    return ScriptStep(seen, loop)


def _other_optimizers(loops: Iterable[FoundLoop], seen: Seen) -> list[Optimizer]:
    """The optimizers in the text of these loops whose parameters were not trained by the updates that were seen."""
    trained = {id(p) for one in seen.updates for p in parameters_in(one)}
    values = (value for loop in loops for value in _values_in([loop.statement], loop.where.names))
    named = {id(one): one for one in values if isinstance(one, Optimizer)}
    return [one for one in named.values() if trained.isdisjoint(map(id, parameters_in(one)))]


def _beside(seen: Seen, fate: str) -> list[str]:
    """Notes on the updates of other optimizers in outer loops (a generator's, around a critic's loop)."""
    return [f"updates by {type(one).__name__} around this loop {fate}" for one in _other_optimizers(seen.loops, seen)]


def _samples(seen: Seen) -> int | None:
    """The number of samples in one step: the rows of a model's input, times the backward passes; None if unknown.

    The model with the fewest calls counts, by its largest call, and at most as many calls as there are backward
    passes. More calls see the same samples again: a model that compares two images, or the discriminator of a GAN.
    """
    calls, backward_passes = seen.round or (seen.calls, 1)
    of_models = [[call for call in calls if call.module is model and call.gradients == "grad"] for model in seen.models]
    fewest = min(filter(None, of_models), key=len, default=[])
    # The first input with dimensions (a step's time has none). A row of floats is one sample (an observation).
    first = [[one for one in tensors_of((call.args, call.kwargs)) if one.dim()][:1] for call in fewest]
    rows = [one.shape[0] for found in first for one in found if one.dim() > int(one.is_floating_point())]
    return max(rows) * max(1, min(len(fewest), backward_passes)) if any(rows) else None


def _inference_of(seen: Seen) -> Loop:
    """The model of a script that makes no update, on the script's loader, or else on the inputs of its last call."""
    if seen.goes_backward:
        raise NoLoopError("gradients are computed, but no optimizer of torch.optim makes an update in a loop")
    if not seen.calls:
        raise NoLoopError("no optimizer made an update, and no model was called")
    of_loader: list[ModelCall] = []
    for one in seen.calls if seen.batch is not None else ():
        split = splitter(one.module, with_target=False)(seen.batch)
        of_loader += [one] if same_values((split.args, split.kwargs), (one.args, one.kwargs)) else []
    call = (of_loader or seen.calls)[-1]
    inputs = "batches of its loader" if of_loader else "inputs of its last call (the time to make them is left out)"
    notes = [f"the script's model on the {inputs}; it makes no update, so this is inference"]
    if of_loader and len(seen.calls) > 1:
        notes.append("the script calls models several times for each batch; only the call with the batch is measured")
    if seen.goes_on:
        notes.append("the script was paused while it predicted: if it trains later, make it train sooner")
    data = seen.loader if of_loader else _inputs_alone(call, seen)
    model = call.module.eval()
    if any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model)  # autograd refuses tensors that were made in inference mode
    current = {**call.current, "infer.grad": call.gradients}
    return Loop(model=model, data=data, mode="infer", current=current, notes=notes)


def _inputs_alone(call: ModelCall, seen: Seen) -> Any:
    """The inputs of a call as a batch. Raises NoLoopError for several models, or for other inputs (a cache)."""
    if len(seen.models) > 1:
        raise NoLoopError("no optimizer made an update, and no model was called with a loader's batch")
    # Autograd refuses tensors that were made in inference mode, but accepts their copies.
    args, kwargs = map_tensors(lambda tensor: tensor.detach().clone(), (call.args, call.kwargs))
    named = {"args": args, "kwargs": kwargs}
    with contextlib.suppress(TypeError, ValueError):  # a forward without a signature
        named = inspect.signature(call.module.forward).bind(*args, **kwargs).arguments
    if not all(isinstance(leaf, torch.Tensor | int | float | str | None) for leaf in tree_leaves(named)):
        problem = "no optimizer made an update, and the inputs of the model's last call are not a batch"
        generates = "; `perf-advisor hf:NAME -- generate=64` measures how a model generates text"
        raise NoLoopError(problem + (generates if hasattr(call.module, "generate") else ""))
    alone = [*named.values()] if len(named) == 1 else []
    return alone[0] if alone and isinstance(alone[0], torch.Tensor) else named


@dataclass(frozen=True, slots=True)
class _Round:
    """A round of a loop: the statements before and after its backward pass, and the call of the backward pass.

    ``names``: of the loop, and of the function that it calls for the pass; ``bound``: those that rounds may change.
    """

    before: list[ast.stmt]
    call: ast.Call
    behind: list[ast.stmt]
    names: dict[str, Any]
    bound: set[str]


def written_parts(loop: FoundLoop, seen: Seen, model: nn.Module) -> tuple[Any, Callable[..., torch.Tensor]] | None:
    """The data of a loop, and its loss as a function of one model and a batch, taken from the source of the loop.

    A batch comes from the loader; without a loader, it is the variables that the other statements make. None if the
    source does not show the batch, if the loss needs values of the previous round, or if the loss is not a scalar.
    Autocast blocks are removed, because autocast is a setting around the whole loss.
    """
    found = _round_of(loop, seen)
    if found is None or found.call.keywords or len(found.call.args) > 1 or trees.leaves(found.before):
        return None
    assert isinstance(found.call.func, ast.Attribute)
    value = found.call.args[0] if found.call.args else found.call.func.value  # Accelerate's backward(loss)
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
        """The statements of a round, from its batch to the tensor whose ``backward`` is called."""
        return inside["computed"](model, batch)  # type: ignore[no-any-return]

    batch = seen.batch if seen.loader is not None else next(iter(data)) if isinstance(data, GivenBatches) else data
    try:
        computed = loss(model, batch) if taken.found else None
    except Exception:  # a name may be bound only in the whole round
        return None
    return (data, loss) if computed is not None and is_number(computed) and computed.requires_grad else None


def _round_of(loop: FoundLoop, seen: Seen) -> _Round | None:
    """The round of a loop around its one backward pass, or around its call of a function with the backward pass.

    None if ``backward`` has options, if a round may skip it, or if it is more than one function call away.
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
    except TypeError:  # the call may have `**options`
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
    """The statements around the call of a function at a line, with those of the enclosing blocks.

    An inner loop runs once, since one call was seen. None if the call is inside a context that changes the step, if a
    backward pass is under a condition that may vary between rounds, or if its statement is not a simple one.
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
            if not (is_plain or isinstance(trees.value_of(context, names), contextlib.nullcontext)):
                return None
        block = next((part for part in trees.blocks(one) if calls[0] in trees.walk(part)), [])
    return None


def _made(
    found: _Round, used: list[ast.stmt], loop: FoundLoop, seen: Seen, model: nn.Module
) -> tuple[ast.expr | None, list[ast.stmt], Any]:
    """The names of a batch, the statements that use it, and the batches that the other statements of a round make.

    The other statements make the next batch. If they make none, the tensors that every round uses are the only batch,
    if one of them is an input of the model. The names are None if those statements need a model or the loss's results.
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
    """A function that yields batches by running statements repeatedly, on the loop's items if they use them."""
    head, first = loop.statement, list[ast.stmt]()
    items: Any = itertools.count
    if isinstance(head, ast.For) and trees.bound_by(head) & trees.read_in(*making, row):
        first = [ast.Assign([head.target], ast.Name(_BATCH, ast.Load()))]
        items = functools.partial(eval, compile(ast.Expression(head.iter), loop.where.file, "eval"), found.names)
    code = _compiled([*first, *making, ast.Assign([ast.Name(_BATCH, ast.Store())], row)], loop.where.file)
    names = copy.copy(found.names)

    def batches() -> Iterator[Any]:
        for names[_BATCH] in items():
            exec(code, names)  # noqa: S102 - it is the user's own loop
            yield names[_BATCH]

    return batches


def _values_in(
    statements: Iterable[ast.AST], names: dict[str, Any], context: type[ast.expr_context] = ast.expr_context
) -> Iterator[Any]:
    """The values of the names that statements read (``ast.Load``) or bind (``ast.Store``); by default, of both."""
    return (trees.value_of(node, names) for node in trees.names_in(statements) if isinstance(node.ctx, context))


def _tuple(names: Sequence[str], context: ast.expr_context) -> ast.expr:
    return ast.Tuple([ast.Name(name, context) for name in names], context)


class _Takes(ast.NodeTransformer):
    """Replaces the script's model by the function's parameter, and autocast blocks by their statements."""

    def __init__(self, names: dict[str, Any], model: nn.Module) -> None:
        self._names, self._model, self.found = names, model, False

    def visit(self, node: ast.AST) -> Any:
        """Return the node, or else the name of the model, or the statements of an autocast block."""
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
        # A block with ``enabled=False`` stays, because its statements must not be cast.
        off = (one.arg == "enabled" and getattr(one.value, "value", None) is False for one in context.keywords)
        return isinstance(kind, type) and issubclass(kind, torch.autocast) and not any(off)


def _compiled(statements: list[ast.stmt], file: str) -> Any:
    return compile(ast.fix_missing_locations(ast.Module(statements, [])), file, "exec")


def batch_in_head(loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of the batch in the head of a ``for`` loop: its target, or a part of it (after enumerate's count)."""
    if not isinstance(loop.statement, ast.For) or seen.loader is None:
        return None
    target, names = loop.statement.target, loop.where.names
    head = Head.latest.get((loop.where.code, loop.statement.lineno))
    if head is None and trees.value_of(loop.statement.iter, names) is seen.loader:
        return target
    item = trees.value_of(target, names) if head is None else head.item
    parts = zip(target.elts, item, strict=False) if isinstance(target, ast.Tuple) and isinstance(item, Sequence) else ()
    return next((one for one, value in [(target, item), *parts] if same_values(value, seen.batch)), None)


def batch_in_body(block: list[ast.stmt], loop: FoundLoop, seen: Seen) -> ast.expr | None:
    """The name of a batch that the loop reads by ``next()``; None without one. Removes the statement from ``block``."""
    lines = {line for code, line in seen.reads if code is loop.where.code and trees.holds(loop.statement, line)}
    inner = [one for one in trees.walk(loop.statement.body) if isinstance(one, trees.Loop)]
    for place, one in enumerate(block):
        match one.body[0] if isinstance(one, ast.Try) else one:
            case ast.Assign([target], ast.Call() as call) as read if trees.name_called(call) == "next":
                if lines == {read.lineno} and not any(trees.holds(one, read.lineno) for one in inner):
                    del block[place]
                    return target
    return None


def same_values(one: Any, other: Any) -> bool:
    """Whether two nested structures of tensors hold the same values, even on different devices."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu()))
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same_values, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    return one is other
