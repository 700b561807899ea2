"""The habits that reading a program finds, each a rule with its message and what to write instead.

A rule speaks only where the text is plain: in a loop that trains, at every step of it, about a value that lies on the
device as far as the text tells.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from advisor.source.flow import FACTORIES, Flow, Kind, moves_to_device
from advisor.source.program import Function, Program, is_backward

_NO_GRAD = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
# Contexts that are known not to switch gradients off; any other may.
_HARMLESS = frozenset({"autocast", "profile", "record_function", "open", "tqdm", "emit_nvtx", "Timer"})
_HARMLESS_DECORATORS = frozenset({"staticmethod", "classmethod", "override", "typechecked", "jaxtyped", "record"})
_TO_HOST = frozenset({"cpu", "numpy", "tolist"})
_SIZES = frozenset({"nonzero", "masked_select", "unique", "unique_consecutive"})
_NUMBERS = frozenset({"float", "int", "bool"})
_LOGS = frozenset({"info", "warning", "error", "write"})
_PROFILERS = frozenset(
    {"torch.profiler.profile", "torch.autograd.profiler.profile", "torch.autograd.profiler.emit_nvtx"}
)
_WORKERS_AT, _PINNED_AT = 5, 7  # the places of num_workers and pin_memory among DataLoader's arguments

_LESS_OFTEN = "read it every hundredth step, or add it up on the device and read the sum at the end"
_ON_DEVICE = "keep the computation on the device, and read values every hundredth step"


@dataclass(frozen=True, slots=True)
class Habit:
    """A habit at a node: the recipe that measures its cost, a description of the line, and what to write instead.

    ``value`` is the one of the recipe's values that does the same as the line, as text; empty where none does.
    """

    node: ast.expr | ast.stmt
    recipe: str
    what: str
    advice: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The input of the rules."""

    program: Program
    flow: Flow

    def each_call(self) -> Iterator[tuple[ast.Call, str]]:
        """Every call with the dotted name of its function."""
        for call in self.program.calls:
            yield call, self.program.called(call)


def habits_of(tree: ast.Module) -> Iterator[Habit]:
    """Every habit in a module's tree. Raises RecursionError for a tree that is nested too deeply."""
    program = Program(tree)
    reading = _Reading(program, Flow(program))
    for rule in _RULES:
        yield from rule(reading)


# --- what makes the host wait ---------------------------------------------------------------------------------


def _host_reads(reading: _Reading) -> Iterator[Habit]:
    """Values read on the host at every step: `.item()`, `float(x)`, `.cpu()`, sizes that depend on values."""
    for call, name in reading.each_call():
        read = _what_is_read(reading, call, name)
        if read is not None and reading.program.every_step(call):
            value, what = read
            yield _waiting(reading, call, value, what)


def _what_is_read(reading: _Reading, call: ast.Call, name: str) -> tuple[ast.expr, str] | None:
    """The value that a call brings to the host, and how; None for a call that brings none."""
    if isinstance(call.func, ast.Attribute) and not name.startswith("torch."):
        what = _method_read(reading, call, call.func)
        return (call.func.value, what) if what else None
    if not call.args or reading.flow.kind(call.args[0]) is not Kind.DEVICE:
        return None
    if name in _NUMBERS and len(call.args) == 1:
        return call.args[0], f"{name}() of a tensor"
    if name in {f"torch.{size}" for size in _SIZES}:
        return call.args[0], f"{name}() has a result whose size depends on the values, so it"
    return None


def _method_read(reading: _Reading, call: ast.Call, func: ast.Attribute) -> str:
    """The way in which a method brings its tensor to the host; empty when it does not."""
    kind = reading.flow.kind(func.value)
    if kind not in (Kind.DEVICE, Kind.MAYBE):
        return ""
    if func.attr == "item" and not call.args:
        return ".item()"
    if (func.attr in _TO_HOST and not call.args) or (func.attr == "to" and _names_cpu(call)):
        return f".{func.attr}() copies to the host and"
    if func.attr in _SIZES and kind is Kind.DEVICE:
        return f".{func.attr}() has a result whose size depends on the values, so it"
    return ""


def _waiting(reading: _Reading, node: ast.expr, value: ast.expr, what: str) -> Habit:
    if reading.flow.of_loss(value):
        told = f"{what} makes the host wait for the loss at every step"
        return Habit(node, "loss_sync", told, _LESS_OFTEN, "every_step")
    told = f"{what} makes the host wait for the device at every step"
    return Habit(node, "host_sync", told, _ON_DEVICE, "as_written")


def _printed_tensors(reading: _Reading) -> Iterator[Habit]:
    for node in reading.program.nodes:
        for value in _turned_into_text(reading, node):
            if reading.flow.kind(value) is Kind.DEVICE and reading.program.every_step(value):
                yield _waiting(reading, value, value, "turning a tensor into text")


def _turned_into_text(reading: _Reading, node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.FormattedValue):
        return [node.value]
    if isinstance(node, ast.Call):
        name = reading.program.called(node)
        head, _, last = name.rpartition(".")
        if name in ("print", "str", "repr") or (last in _LOGS and "log" in head.lower()):
            return list(node.args)
    return []


def _branches_on_values(reading: _Reading) -> Iterator[Habit]:
    """`if loss > 3:` and its like, at every step."""
    for node in reading.program.nodes:
        if not isinstance(node, ast.If | ast.IfExp | ast.Assert):
            continue
        test = node.test
        plain_name = isinstance(test, ast.Name | ast.Attribute) and not reading.flow.of_loss(test)
        if reading.flow.kind(test) is Kind.DEVICE and not plain_name and reading.program.every_step(node):
            yield _waiting(reading, test, test, "a branch on a tensor's value")


def _masks(reading: _Reading) -> Iterator[Habit]:
    """`x[x > 0]` at every step."""
    for node in reading.program.nodes:
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.slice, ast.Compare)
            and reading.flow.kind(node.slice) is Kind.DEVICE
            and reading.program.every_step(node)
        ):
            yield _waiting(reading, node, node.value, "selecting by a mask")


def _synchronizing(reading: _Reading) -> Iterator[Habit]:
    for call, name in reading.each_call():
        if name == "torch.cuda.synchronize" and reading.program.every_step(call):
            what = "torch.cuda.synchronize() makes the host wait for the device at every step"
            advice = "leave it out of the loop; time with torch.cuda.Event where you need to"
            yield Habit(call, "host_sync", what, advice, "as_written")


# --- memory and gradients -------------------------------------------------------------------------------------


def _emptied_caches(reading: _Reading) -> Iterator[Habit]:
    program = reading.program
    for call, name in reading.each_call():
        if name != "torch.cuda.empty_cache":
            continue
        loop = program.loader_loop(call)
        if program.every_step(call) or (loop is not None and not program.branches(call, loop)):
            what = "torch.cuda.empty_cache() at every step gives back memory that the next step asks for again"
            advice = "leave it out of the loop; `del` what is no longer needed"
            yield Habit(call, "empty_cache", what, advice, "every_step")


def _zeroed_gradients(reading: _Reading) -> Iterator[Habit]:
    for call in reading.program.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
            value = _argument(call, "set_to_none", 0)
            if _is(value, False):
                what = "zero_grad(set_to_none=False) fills the gradients with zeros"
                yield Habit(call, "zero_grad", what, "call zero_grad() as it is: it drops the gradients", "zeros")


def _gradients_by_hand(reading: _Reading) -> Iterator[Habit]:
    """`for p in model.parameters(): p.grad = None`, or zeroed."""
    for loop in reading.program.nodes:
        if isinstance(loop, ast.For) and _over_parameters(loop.iter):
            targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
            for node in (part for statement in loop.body for part in ast.walk(statement)):
                yield from _cleared_by_hand(reading.program, node, targets)


def _cleared_by_hand(program: Program, node: ast.AST, targets: set[str]) -> Iterator[Habit]:
    advice = "optimizer.zero_grad() does the same in one call"
    if isinstance(node, ast.Assign) and any(_is_grad(target, targets) for target in node.targets):
        if _is(node.value, None):
            what = "the gradients are dropped by hand, parameter by parameter"
            yield Habit(node, "zero_grad", what, advice, "manual")
        elif isinstance(node.value, ast.Call) and program.called(node.value) in ("torch.zeros_like", "torch.zeros"):
            yield _zeroed(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "zero_":
        receiver: ast.AST = node.func.value
        while isinstance(receiver, ast.Attribute | ast.Call) and not _is_grad(receiver, targets):
            receiver = receiver.func if isinstance(receiver, ast.Call) else receiver.value
        if _is_grad(receiver, targets):
            yield _zeroed(node)


def _zeroed(node: ast.expr | ast.stmt) -> Habit:
    advice = "call optimizer.zero_grad() instead"
    return Habit(node, "zero_grad", "the gradients are made zero by hand", advice, "zeros")


def _is_grad(node: ast.AST, names: set[str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "grad"
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    )


def _over_parameters(iterated: ast.expr) -> bool:
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Attribute):
        return iterated.func.attr in ("parameters", "named_parameters")
    return isinstance(iterated, ast.Subscript) and _is(iterated.slice, "params")


# --- validation -----------------------------------------------------------------------------------------------


def _recording_validation(reading: _Reading) -> Iterator[Habit]:
    """A model that is put into evaluation mode and then called where autograd records."""
    program = reading.program
    if any(program.called(call).endswith("set_grad_enabled") and not _in_with(program, call) for call in program.calls):
        return
    for statement in program.nodes:
        model = _put_into_evaluation(program, statement)
        if model and isinstance(statement, ast.stmt):
            call = _recorded_call(program, statement, model)
            if call is not None:
                what = f"{model} is called in evaluation mode, and autograd records: eval() alone does not stop it"
                advice = "put it under `with torch.no_grad():` or torch.inference_mode()"
                yield Habit(call, "eval_no_grad", what, advice, "grad")


def _put_into_evaluation(program: Program, statement: ast.AST) -> str:
    """The model that `model.eval()` or `model = ….eval()` is about, empty for another statement."""
    if not isinstance(statement, ast.Expr | ast.Assign):
        return ""
    call: ast.expr = statement.value
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        if call.func.attr == "eval" and not call.args:
            assigned = isinstance(statement, ast.Assign) and len(statement.targets) == 1
            return program.name(statement.targets[0] if assigned else call.func.value)  # type: ignore[union-attr]
        call = call.func.value
    return ""


def _recorded_call(program: Program, evaluates: ast.stmt, model: str) -> ast.Call | None:
    """The model's first call after the statement, in its block, that autograd records; None without one."""
    if _protected(program, evaluates):
        return None
    found: ast.Call | None = None
    for statement in _after(program, evaluates):
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        if any(is_backward(call) or program.called(call) in _USES_GRADIENTS for call in calls):
            return None
        if any(program.called(call) == f"{model}.train" for call in calls):
            break
        if found is None:
            own = [call for call in calls if program.called(call) == model and not _protected(program, call)]
            found = min(own, key=lambda call: (call.lineno, call.col_offset), default=None)
    return found if not _freezes(program, model) else None


_USES_GRADIENTS = frozenset({"torch.autograd.grad", "torch.func.grad", "torch.jit.trace", "torch.export.export"})


def _after(program: Program, statement: ast.stmt) -> list[ast.stmt]:
    parent = program.parents.get(statement)
    for block in (getattr(parent, field, None) for field in ("body", "orelse", "finalbody")):
        if isinstance(block, list) and statement in block:
            return block[block.index(statement) + 1 :]
    return []


def _protected(program: Program, node: ast.AST) -> bool:
    """Whether something around a node keeps autograd from recording, or may."""
    scope = program.scope(node)
    for parent, child in program.above(node):
        if _may_stop_grad(program, parent, child) or isinstance(parent, ast.Lambda):
            return True
        if not _HARMLESS_DECORATORS.issuperset(_decorators(program, parent)):
            return True
    return isinstance(scope, Function) and _called_without_grad(program, scope)


def _called_without_grad(program: Program, function: Function) -> bool:
    """Whether the file calls a function where gradients are, or may be, switched off."""
    for call in program.calls:
        if program.called(call).rpartition(".")[2] != function.name:
            continue
        for parent, child in program.above(call):
            if _may_stop_grad(program, parent, child) or not _NO_GRAD.isdisjoint(_decorators(program, parent)):
                return True
    return False


def _may_stop_grad(program: Program, parent: ast.AST, child: ast.AST) -> bool:
    if not isinstance(parent, ast.With | ast.AsyncWith) or child not in parent.body:
        return False
    return any(_name_of(program, item.context_expr).rpartition(".")[2] not in _HARMLESS for item in parent.items)


def _decorators(program: Program, node: ast.AST) -> set[str]:
    decorators = node.decorator_list if isinstance(node, Function) else ()
    return {_name_of(program, decorator).rpartition(".")[2] for decorator in decorators}


def _freezes(program: Program, model: str) -> bool:
    """Whether the model's parameters ask for no gradients, so that there is nothing to record."""
    calls = {program.called(call) for call in program.calls}
    assigned = [
        target
        for node in program.nodes
        if isinstance(node, ast.Assign) and _is(node.value, False)
        for target in node.targets
    ]
    by_hand = any(isinstance(target, ast.Attribute) and target.attr == "requires_grad" for target in assigned)
    return f"{model}.requires_grad_" in calls or by_hand


def _in_with(program: Program, call: ast.Call) -> bool:
    return isinstance(program.parents.get(call), ast.withitem)


# --- what was left on -----------------------------------------------------------------------------------------


def _debugging(reading: _Reading) -> Iterator[Habit]:
    program = reading.program
    for call, name in reading.each_call():
        last = name.rpartition(".")[2]
        if program.in_test(call) or program.conditional(call):
            continue
        if name == "torch.autograd.set_detect_anomaly" and _is(_argument(call, "mode", 0), True):
            yield _left_on(call, "anomaly detection is on for everything that follows", "anomaly")
        elif name == "torch.autograd.detect_anomaly" and _in_with(program, call):
            yield _left_on(call, "anomaly detection is on in this block", "anomaly")
        elif last == "Trainer" and _is(_keyword(call, "detect_anomaly"), True):
            yield _left_on(call, "the trainer runs with anomaly detection", "anomaly")
        elif name.startswith("torch.autograd.") and last in ("gradcheck", "gradgradcheck"):
            what = f"{last}() computes gradients numerically, input by input"
            yield Habit(call, "debug_off", what, "move it into a test", "gradcheck")
        elif name in _PROFILERS and _profiles_all(program, call):
            which = "nvtx" if last == "emit_nvtx" else "profiler"
            yield _left_on(call, f"{last} is on around the whole loop that trains", which)


def _left_on(node: ast.expr, what: str, value: str) -> Habit:
    return Habit(node, "debug_off", what, "switch it off when you are not looking for a bug", value)


def _profiles_all(program: Program, call: ast.Call) -> bool:
    """Whether a profiler without a schedule or a switch is around a loop that trains."""
    statement = next((parent for parent, _ in program.above(call) if isinstance(parent, ast.stmt)), None)
    if not isinstance(statement, ast.With) or not _in_with(program, call):
        return False
    enabled = _keyword(call, "enabled")
    limited = _keyword(call, "schedule") is not None or bool(call.args) or not (enabled is None or _is(enabled, True))
    return not limited and any(node in program.regions for node in ast.walk(statement))


def _deterministic(reading: _Reading) -> Iterator[Habit]:
    program = reading.program
    advice = "switch it off when runs need not repeat to the bit"
    for node in program.nodes:
        if isinstance(node, ast.Assign) and _is(node.value, True) and not program.conditional(node):
            names = [program.name(target) for target in node.targets]
            if "torch.backends.cudnn.deterministic" in names:
                yield Habit(node, "deterministic_off", "cuDNN is held to deterministic algorithms", advice)
        elif isinstance(node, ast.Call) and _asks_determinism(program, node) and not program.conditional(node):
            yield Habit(node, "deterministic_off", "PyTorch is held to deterministic algorithms", advice)


def _asks_determinism(program: Program, call: ast.Call) -> bool:
    return program.called(call) == "torch.use_deterministic_algorithms" and _is(_argument(call, "mode", 0), True)


# --- data -----------------------------------------------------------------------------------------------------


def _loaders(reading: _Reading) -> Iterator[Habit]:
    program = reading.program
    on_cuda = any(isinstance(node, ast.Constant | ast.Attribute) and _says_cuda(node) for node in program.nodes)
    for call in program.calls:
        spread = any(keyword.arg is None for keyword in call.keywords) or any(
            isinstance(argument, ast.Starred) for argument in call.args
        )
        if spread or program.in_test(call) or not program.is_loader_call(call):
            continue
        workers, pinned = _argument(call, "num_workers", _WORKERS_AT), _argument(call, "pin_memory", _PINNED_AT)
        if workers is None or _is(workers, 0):
            what = "this DataLoader loads in the training process: num_workers is 0"
            yield Habit(call, "num_workers", what, "give it workers when the step waits for data")
        if on_cuda and (pinned is None or _is(pinned, False)):
            what = "this DataLoader's batches are not in pinned memory"
            yield Habit(call, "pin_memory", what, "pin_memory=True, and .to(device, non_blocking=True)")


def _says_cuda(node: ast.Constant | ast.Attribute) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "cuda"
    return isinstance(node.value, str) and node.value.startswith("cuda")


def _made_on_host(reading: _Reading) -> Iterator[Habit]:
    """`torch.zeros(…).to(device)` at every step."""
    program, flow = reading.program, reading.flow
    for call in program.calls:
        if not moves_to_device(program, call) or not program.every_step(call):
            continue
        assert isinstance(call.func, ast.Attribute)
        receiver = call.func.value
        made_at = flow.made.get(receiver, receiver)
        if flow.kind(receiver) is Kind.FRESH and program.region(made_at) is program.region(call):
            what = "a tensor is made on the host at every step and copied to the device"
            factory = _factory(program, made_at)
            yield Habit(call, "create_on_device", what, f"make it there: {factory}(…, device=device)")


def _factory(program: Program, node: ast.AST) -> str:
    names = [program.called(part) for part in ast.walk(node) if isinstance(part, ast.Call)]
    return next((name for name in names if name in FACTORIES), "torch.zeros")


# --- small questions ------------------------------------------------------------------------------------------


def _name_of(program: Program, node: ast.expr) -> str:
    return program.called(node) if isinstance(node, ast.Call) else program.name(node)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    positional = call.args[place] if len(call.args) > place else None
    return _keyword(call, name) or positional


def _is(node: ast.AST | None, value: object) -> bool:
    """Whether a node is the constant ``value``, of the same type."""
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def _names_cpu(call: ast.Call) -> bool:
    return len(call.args) == 1 and _is(call.args[0], "cpu")


_RULES: tuple[Callable[[_Reading], Iterator[Habit]], ...] = (
    _host_reads,
    _printed_tensors,
    _branches_on_values,
    _masks,
    _synchronizing,
    _emptied_caches,
    _zeroed_gradients,
    _gradients_by_hand,
    _recording_validation,
    _debugging,
    _deterministic,
    _loaders,
    _made_on_host,
)
