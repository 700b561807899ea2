"""The habits that reading a program finds: a table of rules, each with its pattern, its sentence, and what to do.

A habit is added here, as one function under ``@rule``. It speaks only where the text is plain: in a loop that trains,
at every step of it, about a value that lies on the device as far as the text tells.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from advisor.records import Finding
from advisor.source.flow import FACTORIES, Flow, Kind, names_cpu, words
from advisor.source.program import Function, Loop, is_backward

# Nothing for no habit; True; the text for the braces of the docstring; or the place of the habit, and that text.
Match = bool | str | tuple[ast.expr, str] | None
Pattern = Callable[[Flow, Any], Match]


@dataclass(frozen=True, slots=True)
class Rule:
    """A habit of some classes of nodes, found by a pattern, whose docstring is the sentence: ``what it does: advice``.

    ``recipe`` is the id of the recipe whose trials price it, or a name of its own where no trial does. ``value`` is the
    one of the recipe's values that does the same as the line. ``each_step``: it is a habit only where it runs at every
    step. ``on_gpu``: it costs time on a GPU only. ``in_training``: it is a habit of loops that train.
    """

    recipe: str
    nodes: Any
    pattern: Pattern
    value: str = ""
    each_step: bool = False
    on_gpu: bool = False
    in_training: bool = False


RULES: list[Rule] = []


def rule(recipe: str, nodes: Any, **options: Any) -> Callable[[Pattern], Pattern]:
    """Add the pattern below to the table; the arguments are those of :class:`Rule`."""

    def add(pattern: Pattern) -> Pattern:
        RULES.append(Rule(recipe, nodes, pattern, **options))
        return pattern

    return add


def habits_of(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, Finding]]:
    """Every habit in a module's tree, with its node; the finding has no place yet. Raises RecursionError."""
    flow = Flow(tree)
    rules = {kind: [each for each in RULES if issubclass(kind, each.nodes)] for kind in set(map(type, flow.nodes))}
    for node in flow.nodes:
        for each in rules[type(node)]:
            found = each.pattern(flow, node)
            if found and (not each.each_step or flow.every_step(node)):
                place, text = found if isinstance(found, tuple) else (node, str(found))
                assert isinstance(place, ast.expr | ast.stmt)
                parts = " ".join((each.pattern.__doc__ or "").split()).removesuffix(".").partition(": ")
                what, _, advice = (part.replace("{}", text) for part in parts)
                yield place, Finding(each.recipe, "", 0, "", what, advice, each.value.replace("{}", text))


# --- what makes the host wait ---------------------------------------------------------------------------------

_SIZES = frozenset({"nonzero", "masked_select", "unique", "unique_consecutive"})
_LOGS = frozenset({"info", "warning", "error", "write"})
_READS = ast.Call | ast.If | ast.IfExp | ast.Assert | ast.Subscript | ast.FormattedValue


@rule("loss_sync", _READS, value="every_step", each_step=True, on_gpu=True, in_training=True)
def loss_read_on_host(flow: Flow, node: ast.AST) -> Match:
    """{} makes the host wait for the loss at every step: read it every hundredth step, or add it up on the device and
    read the sum at the end."""
    return next((how for value, how in _read_on_host(flow, node) if flow.names_in(value) & flow.losses_at(node)), None)


@rule("host_sync", _READS, value="as_written", each_step=True, on_gpu=True)
def value_read_on_host(flow: Flow, node: ast.AST) -> Match:
    """{} makes the host wait for the device at every step: keep the computation on the device, and read values every
    hundredth step."""
    read = _read_on_host(flow, node)
    return next((how for value, how in read if not flow.names_in(value) & flow.losses_at(node)), None)


@rule("host_sync", ast.Call, value="as_written", each_step=True, on_gpu=True)
def synchronized(flow: Flow, call: ast.Call) -> Match:
    """torch.cuda.synchronize() makes the host wait for the device at every step: leave it out of the loop; time with
    torch.cuda.Event where you need to."""
    return flow.called(call) == "torch.cuda.synchronize"


def _read_on_host(flow: Flow, node: ast.AST) -> list[tuple[ast.expr, str]]:
    """The tensors of the device that a node makes the host wait for, and how. A method may also be of a likely one."""
    return [
        (value, how)
        for value, how in _may_read(flow, node)
        if flow.kind(value) is Kind.DEVICE or (how.startswith(".") and flow.kind(value) is Kind.MAYBE)
    ]


def _may_read(flow: Flow, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[]):
            yield value, ".item()"
        case ast.Call(func=ast.Attribute(value=value, attr="cpu" | "numpy" | "tolist" as name), args=[]):
            yield value, f".{name}() copies to the host and"
        case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[place]) if names_cpu(place):
            yield value, ".to() copies to the host and"
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=given) if name in _SIZES:
            of_torch = flow.name(value) == "torch" and given
            yield given[0] if of_torch else value, f"{name}() has a result whose size depends on the values, so it"
        case ast.Call(func=ast.Name(id="float" | "int" | "bool" as name), args=[value]):
            yield value, f"{name}() of a tensor"
        case ast.Call(args=given) if _makes_text(flow.called(node)):
            yield from ((value, "turning a tensor into text") for value in given)
        case ast.FormattedValue(value=value):
            yield value, "turning a tensor into text"
        case ast.Subscript(slice=ast.Compare() as mask, ctx=ast.Load()):
            yield mask, "selecting by a mask"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            # `if targets:` asks most often whether there are any.
            if not isinstance(test, ast.Name | ast.Attribute) or flow.name(test) in flow.losses_at(test):
                yield test, "a branch on a tensor's value"


def _makes_text(name: str) -> bool:
    head, _, last = name.rpartition(".")
    return name in ("print", "str", "repr") or (last in _LOGS and "log" in head.lower())


# --- memory ---------------------------------------------------------------------------------------------------


@rule("empty_cache", ast.Call, value="every_step", on_gpu=True, in_training=True)
def cache_emptied(flow: Flow, call: ast.Call) -> Match:
    """torch.cuda.empty_cache() at every step gives back memory that the next step asks for again: leave it out of the
    loop; `del` what is no longer needed."""
    if flow.called(call) != "torch.cuda.empty_cache":
        return False
    loop = flow.nearest(call, lambda parent: isinstance(parent, ast.For) and "loader" in ast.unparse(parent.iter))
    return flow.every_step(call) or (loop is not None and not flow.branches(call, loop))


@rule("kept_graphs", ast.AugAssign | ast.Assign | ast.Call, each_step=True, in_training=True)
def graphs_kept(flow: Flow, node: ast.AST) -> Match:
    """`{}` keeps the graph of every loss, and so memory of every step: use loss.detach(), or loss.item() every
    hundredth step."""
    match node:
        case ast.AugAssign(target=kept, op=ast.Add(), value=value):
            pass
        case ast.Assign(targets=[kept], value=ast.BinOp(left=left, op=ast.Add(), right=value)):
            if flow.name(left) != flow.name(kept):
                return None
        case ast.Call(func=ast.Attribute(value=kept, attr="append"), args=[value]):
            pass
        case _:
            return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        value = value.left
    name, losses, region = flow.name(kept), flow.losses_at(node), flow.region(node)
    of_loss = flow.name(value) in losses and flow.kind(value) is Kind.DEVICE and not _without_grad(flow, node)
    if not name or name in losses or not of_loss or region is None:
        return None
    # What is begun anew or emptied in the step does not grow; nor does what holds losses without a graph.
    for other in ast.walk(region):
        changed = flow.names_in(*_targets(other)) if other is not node else set()
        ends = {"detach", "detach_", "data", "clear", "pop", "popleft"} & _words(other)
        if (isinstance(other, ast.Assign) and name in changed) or (
            isinstance(other, ast.Delete | ast.Expr | ast.Assign) and ends and flow.names_in(other) & {name, *losses}
        ):
            return None
        if isinstance(other, ast.Delete | ast.Assign) and other is not node and name in flow.names_in(other):
            return None
    return None if any("deque" in ast.unparse(made) for made in flow.assigned(kept)) else ast.unparse(node)


@rule("copied_state", ast.Call | ast.DictComp, each_step=True, in_training=True)
def state_copied(flow: Flow, node: ast.AST) -> Match:
    """the weights are copied at every step: copy them when a score is the best so far, or every so many steps."""
    match node:
        case ast.Call(args=[ast.Call(func=ast.Attribute(attr="state_dict")), *_]):
            copies = flow.called(node) == "copy.deepcopy"
        case ast.DictComp(value=value, generators=[ast.comprehension(iter=iterated)]):
            copies = "state_dict" in _words(iterated) and not _words(value).isdisjoint({"clone", "deepcopy"})
        case _:
            return False
    region = flow.region(node)
    return copies and region is not None and "load_state_dict" not in _words(region)  # loaded again: it is needed


# --- gradients ------------------------------------------------------------------------------------------------


@rule("zero_grad", ast.Call, value="zeros", in_training=True)
def zeros_asked_for(flow: Flow, call: ast.Call) -> Match:
    """zero_grad(set_to_none=False) fills the gradients with zeros: call zero_grad() as it is, which drops them."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"
    return named and _is(_argument(call, "set_to_none", 0), False)


@rule("zero_grad", ast.Assign | ast.Call, value="{}", in_training=True)
def cleared_by_hand(flow: Flow, node: ast.AST) -> Match:
    """the gradients are cleared by hand, parameter by parameter: call optimizer.zero_grad() instead."""
    match node:
        case ast.Assign(targets=[target], value=ast.Constant(value=None)) if _is_gradient(flow, target):
            return "manual"
        case ast.Assign(targets=[target], value=ast.Call() as made) if _is_gradient(flow, target):
            return "zeros" if flow.called(made) in ("torch.zeros_like", "torch.zeros") else None
        case ast.Call(func=ast.Attribute(value=owner, attr="zero_")):
            return "zeros" if any(_is_gradient(flow, part) for part in ast.walk(owner)) else None
    return None


def _is_gradient(flow: Flow, node: ast.AST) -> bool:
    """Whether a node is the gradient of the variable of a loop over parameters."""
    if not isinstance(node, ast.Attribute) or node.attr != "grad":
        return False
    loops = [parent for parent, _ in flow.above(node) if isinstance(parent, ast.For)]
    return any(
        flow.name(node.value) in flow.names_in(loop.target)
        and ast.unparse(loop.iter).endswith(("parameters()", "['params']"))
        for loop in loops
    )


# --- validation -----------------------------------------------------------------------------------------------

# Contexts and decorators that are known not to switch gradients off; any other may.
_HARMLESS = words(
    "autocast profile record_function open tqdm emit_nvtx Timer "
    "staticmethod classmethod override typechecked jaxtyped record"
)
_USES_GRADIENTS = frozenset({"torch.autograd.grad", "torch.func.grad", "torch.jit.trace", "torch.export.export"})


@rule("eval_no_grad", ast.Expr | ast.Assign, value="grad")
def validation_recorded(flow: Flow, statement: ast.Expr | ast.Assign) -> Match:
    """{} is called in evaluation mode, and autograd records, which eval() alone does not stop: put it under
    `with torch.no_grad():` or torch.inference_mode()."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="eval"), args=[])):
            model = flow.name(owner)
        case ast.Assign(targets=[target], value=ast.Call()) if ".eval()" in ast.unparse(statement.value):
            model = flow.name(target)
        case _:
            return None
    if not model or _gradients_off(flow) or _without_grad(flow, statement):
        return None
    found: ast.Call | None = None
    block = next(block for block in _blocks(flow.parents[statement]) if statement in block)
    for later in block[block.index(statement) + 1 :]:
        calls = {call: flow.called(call) for call in ast.walk(later) if isinstance(call, ast.Call)}
        if any(is_backward(call) or name in _USES_GRADIENTS for call, name in calls.items()):
            return None
        if f"{model}.train" in calls.values():
            break
        own = [call for call, name in calls.items() if name == model and not _without_grad(flow, call)]
        found = found or min(own, key=lambda call: (call.lineno, call.col_offset), default=None)
    return (found, model) if found else None


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    found = (getattr(node, field, None) for field in ("body", "orelse", "finalbody"))
    return [block for block in found if isinstance(block, list)]


def _gradients_off(flow: Flow) -> bool:
    """Whether the file switches gradients off for all that follows, or for parameters."""
    attributes = [node for node in flow.nodes if isinstance(node, ast.Attribute)]
    frozen = {node.attr for node in attributes if isinstance(node.ctx, ast.Store) or node.attr == "requires_grad_"}
    alone = [_last(flow, node.value) for node in flow.nodes if isinstance(node, ast.Expr)]
    return not frozen.isdisjoint({"requires_grad", "requires_grad_"}) or "set_grad_enabled" in alone


def _without_grad(flow: Flow, node: ast.AST) -> bool:
    """Whether something around a node, or around a call of its function, keeps autograd from recording, or may."""
    if not _contexts(flow, node) <= _HARMLESS:
        return True
    function = flow.scope(node)
    calls = [call for call in flow.calls if isinstance(function, Function) and _last(flow, call) == function.name]
    return any(not _contexts(flow, call) <= _HARMLESS for call in calls)


def _contexts(flow: Flow, node: ast.AST) -> set[str]:
    """The last names of the contexts and decorators around a node; a lambda, called from anywhere, counts as one."""
    found: set[str] = set()
    for parent, child in flow.above(node):
        if isinstance(parent, ast.With | ast.AsyncWith) and child in parent.body:
            found.update(_last(flow, item.context_expr) for item in parent.items)
        elif isinstance(parent, Function):
            found.update(_last(flow, decorator) for decorator in parent.decorator_list)
        elif isinstance(parent, ast.Lambda):
            found.add("lambda")
    return found


# --- what was left on -----------------------------------------------------------------------------------------


@rule("debug_off", ast.Call, value="anomaly")
def anomalies_detected(flow: Flow, call: ast.Call) -> Match:
    """anomaly detection is on: switch it off when you are not looking for a bug."""
    name = flow.called(call)
    on = name == "torch.autograd.set_detect_anomaly" and _is(_argument(call, "mode", 0), True)
    on |= name == "torch.autograd.detect_anomaly" and isinstance(flow.parents[call], ast.withitem)
    on |= _last(flow, call) == "Trainer" and _is(_argument(call, "detect_anomaly"), True)
    return on and _left_on(flow, call)


@rule("debug_off", ast.Call, value="gradcheck")
def gradients_checked(flow: Flow, call: ast.Call) -> Match:
    """{}() computes gradients numerically, input by input: move it into a test."""
    checks = flow.called(call) in ("torch.autograd.gradcheck", "torch.autograd.gradgradcheck")
    return _last(flow, call) if checks and _left_on(flow, call) else None


@rule("debug_off", ast.With, value="{}")
def training_profiled(flow: Flow, node: ast.With) -> Match:
    """the {} is on around the whole loop that trains: switch it off when you are not looking for a bug."""
    for call in (item.context_expr for item in node.items):
        if not isinstance(call, ast.Call) or call.keywords or flow.regions.isdisjoint(ast.walk(node)):
            continue
        if flow.called(call).startswith(("torch.profiler.", "torch.autograd.pro")) and _left_on(flow, node):
            return call, "nvtx" if _last(flow, call) == "emit_nvtx" else "profiler"
    return None


@rule("deterministic_off", ast.Assign | ast.Call)
def deterministic(flow: Flow, node: ast.AST) -> Match:
    """{} held to deterministic algorithms: switch it off when runs need not repeat to the bit."""
    match node:
        case ast.Call() if flow.called(node) == "torch.use_deterministic_algorithms":
            asked, held = _is(_argument(node, "mode", 0), True), "PyTorch is"
        case ast.Assign(targets=[target], value=value) if flow.name(target) == "torch.backends.cudnn.deterministic":
            asked, held = _is(value, True), "cuDNN is"
        case _:
            return None
    return held if asked and _left_on(flow, node) else None


def _left_on(flow: Flow, node: ast.AST) -> bool:
    """Whether a node runs whenever the program does: not in a test, and under no condition."""
    return not _in_test(flow, node) and not flow.branches(node, flow.scope(node))


def _in_test(flow: Flow, node: ast.AST) -> bool:
    return any(isinstance(parent, Function) and parent.name.startswith("test") for parent, _ in flow.above(node))


# --- data -----------------------------------------------------------------------------------------------------

_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_ARRAYS = words("array asarray zeros ones full empty arange linspace stack concatenate zeros_like ones_like")
_TENSORS = frozenset({"torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor"})


@rule("num_workers", ast.Call)
def no_workers(flow: Flow, call: ast.Call) -> Match:
    """this DataLoader loads in the training process, with num_workers=0: give it workers where steps wait for data."""
    workers = _argument(call, "num_workers", 5)
    return (workers is None or _is(workers, 0)) and _makes_loader(flow, call) and not _in_memory(flow, call)


@rule("num_workers", ast.Call, value="{}")
def workers_for_memory(flow: Flow, call: ast.Call) -> Match:
    """{} workers copy what is in memory already: num_workers=0 is often faster, and fastest with whole batches read at
    once."""
    workers = _argument(call, "num_workers", 5)
    given = workers is not None and not _is(workers, 0) and _makes_loader(flow, call) and _in_memory(flow, call)
    return ast.unparse(workers) if given and workers is not None else None


@rule("pin_memory", ast.Call, on_gpu=True)
def not_pinned(flow: Flow, call: ast.Call) -> Match:
    """this DataLoader's batches are not in pinned memory: pin_memory=True, and .to(device, non_blocking=True)."""
    pinned = _argument(call, "pin_memory", 7)
    return _makes_loader(flow, call) and (pinned is None or _is(pinned, False)) and any(map(_says_cuda, flow.nodes))


def _makes_loader(flow: Flow, call: ast.Call) -> bool:
    """Whether a call makes a DataLoader, with all its arguments in the text, and not for a test."""
    if flow.called(call) not in _LOADERS or _in_test(flow, call):
        return False
    spread = any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)
    return not spread


def _in_memory(flow: Flow, call: ast.Call) -> bool:
    """Whether a loader's dataset is a TensorDataset."""
    dataset = _argument(call, "dataset", 0)
    made = [dataset, *flow.assigned(dataset)] if dataset is not None else []
    return any(isinstance(one, ast.Call) and _last(flow, one) == "TensorDataset" for one in made)


def _says_cuda(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "cuda"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda")


@rule("create_on_device", ast.Call, each_step=True, on_gpu=True)
def made_on_host(flow: Flow, call: ast.Call) -> Match:
    """a tensor is made on the host at every step and copied to the device: make it there, {}(…, device=device)."""
    if not isinstance(call.func, ast.Attribute) or not flow.moves_to_device(call):
        return None
    value = call.func.value
    made = flow.latest(value) or value
    if flow.kind(value) is not Kind.FRESH or flow.region(made) is not flow.region(call):
        return None
    names = [flow.called(part) for part in ast.walk(made) if isinstance(part, ast.Call)]
    return next((name for name in names if name in FACTORIES), "torch.zeros")


@rule("tensor_of_arrays", ast.Call)
def tensor_of_arrays(flow: Flow, call: ast.Call) -> Match:
    """a tensor is made of a list of arrays, number by number: torch.from_numpy(numpy.stack(arrays)) copies them at
    once."""
    if flow.called(call) not in _TENSORS or not call.args:
        return False
    given, scope = call.args[0], flow.scope(call)
    lists, append = flow.assigned(given) if flow.name(given) else [given], f"{flow.name(given)}.append"
    added = (one for one in flow.calls if flow.name(given) and flow.called(one) == append and flow.scope(one) is scope)
    parts: list[ast.expr] = [part for one in added for part in one.args]
    for one in lists:
        if not isinstance(one, ast.List | ast.ListComp):
            return False
        parts += one.elts if isinstance(one, ast.List) else [one.elt]
    return bool(parts) and all(_is_array(flow, part) for part in parts)


def _is_array(flow: Flow, node: ast.AST) -> bool:
    made = [node] if isinstance(node, ast.Call) else flow.assigned(node)
    names = [flow.called(one) if isinstance(one, ast.Call) else "" for one in made]
    return bool(made) and all(name.removeprefix("numpy.") in _ARRAYS and "numpy." in name for name in names)


# --- models ---------------------------------------------------------------------------------------------------

_CELLS = {f"torch.nn.{name}Cell": name for name in ("LSTM", "GRU", "RNN")}


@rule("cell_loop", ast.Assign)
def cell_in_loop(flow: Flow, node: ast.Assign) -> Match:
    """a loop in Python calls a cell for each time step: nn.{} runs the whole sequence in one call."""
    match node:
        case ast.Assign(targets=[target], value=ast.Call(func=cell, args=[inputs, state])):
            made = {flow.called(one) if isinstance(one, ast.Call) else "" for one in flow.assigned(cell)}
        case _:
            return None
    loop = flow.nearest(node, lambda parent: isinstance(parent, Loop))
    if len(made) != 1 or not made <= _CELLS.keys() or not isinstance(loop, ast.For) or loop in flow.regions:
        return None
    # The same only where the inputs go with the loop, and the state is what the cell returned before.
    outputs, elsewhere = flow.names_in(target), [one for other in ast.walk(loop) if other is not node
                                                 for one in _targets(other)]  # fmt: skip
    given = flow.names_in(inputs, *filter(None, [flow.latest(inputs)]))
    of_time = given & flow.names_in(loop.target) and not given & outputs
    carried = flow.names_in(state) <= outputs and not flow.names_in(*elsewhere) & outputs
    return _CELLS[made.pop()] if of_time and carried and not flow.branches(node, loop) else None


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) else []


# --- small questions ------------------------------------------------------------------------------------------


def _argument(call: ast.Call, name: str, place: int | None = None) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return call.args[place] if named is None and place is not None and len(call.args) > place else named


def _is(node: ast.AST | None, value: object) -> bool:
    """Whether a node is the constant ``value``, of the same type."""
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def _last(flow: Flow, node: ast.AST) -> str:
    return (flow.called(node) if isinstance(node, ast.Call) else flow.name(node)).rpartition(".")[2]


def _words(node: ast.AST) -> set[str]:
    """The names in a node, and those of its attributes and methods."""
    attributes = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return attributes | {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
