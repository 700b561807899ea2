"""The rules that find slow habits in a program's source. Each has a pattern, a sentence, and advice.

To add a habit, write a function with ``@rule`` here. A rule reports only certain cases (mostly lines that run at every
step of a training loop). The profile finds the other lines that make the host wait, and their cost.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from advisor.records import Finding
from advisor.source.program import Function, Loop, Program, is_backward

# False or None without a habit; else True, the text for the docstring's braces, or the habit's node and that text.
Match = bool | str | tuple[ast.expr, str] | None
Pattern = Callable[[Program, Any], Match]


@dataclass(frozen=True, slots=True)
class Rule:
    """A habit that a pattern finds in nodes of some classes. The pattern's docstring is ``what it does: advice``.

    ``recipe``: the id of the recipe whose trials price it, or a name of its own. ``value``: its value that does what
    the line does. ``each_step``: only where each step runs it. ``on_gpu``: on a GPU only. ``in_training``: only then.
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
    """Add the decorated pattern to the table; the arguments are those of :class:`Rule`."""

    def add(pattern: Pattern) -> Pattern:
        RULES.append(Rule(recipe, nodes, pattern, **options))
        return pattern

    return add


def habits_of(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, Finding]]:
    """The habits in a module's tree, each with its node. Its finding has no file or line yet. Raises RecursionError."""
    program = Program(tree)
    rules = {kind: [each for each in RULES if issubclass(kind, each.nodes)] for kind in set(map(type, program.nodes))}
    for node in program.nodes:
        for each in rules[type(node)]:
            found = each.pattern(program, node)
            if found and (not each.each_step or program.every_step(node)):
                place, text = found if isinstance(found, tuple) else (node, str(found))
                assert isinstance(place, ast.expr | ast.stmt)
                parts = " ".join((each.pattern.__doc__ or "").split()).removesuffix(".").partition(": ")
                what, _, advice = (part.replace("{}", text) for part in parts)
                yield place, Finding(each.recipe, "", 0, "", what, advice, each.value.replace("{}", text))


_MAKES_TEXT = re.compile(r"print|str|repr|(?i:.*log.*)\.(info|warning|error|write)")


@rule("loss_sync", ast.Call | ast.FormattedValue, value="every_step", each_step=True, on_gpu=True, in_training=True)
def loss_read_on_host(program: Program, node: ast.AST) -> Match:
    """{} makes the host wait for the loss at every step: read it every hundredth step, or add it up on the device and
    read the sum at the end."""
    return next((how for value, how in _read_on_host(program, node) if _is_of_loss(program, value)), None)


def _is_of_loss(program: Program, value: ast.expr) -> bool:
    """Whether a value is computed from a loss that is still on the device."""
    return bool(program.names_in(value) & program.losses[program.scope(value)]) and not program.is_on_host(value)


def _read_on_host(program: Program, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The values that a node copies to the host or turns into text or a Python number, each with words for it."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[]):
            yield value, ".item()"
        case ast.Call(func=ast.Attribute(value=value, attr="cpu" | "numpy" | "tolist" as name), args=[]):
            yield value, f".{name}() copies to the host and"
        case ast.Call(func=ast.Name(id="float" | "int" | "bool" as name), args=[value]):
            yield value, f"{name}() of a tensor"
        case ast.Call(args=given) if _MAKES_TEXT.fullmatch(program.called(node)):
            yield from ((value, "turning a tensor into text") for value in given)
        case ast.FormattedValue(value=value):
            yield value, "turning a tensor into text"


@rule("empty_cache", ast.Call, value="every_step", on_gpu=True, in_training=True)
def cache_emptied(program: Program, call: ast.Call) -> Match:
    """torch.cuda.empty_cache() at every step frees memory that the next step allocates again: remove it from the
    loop; `del` tensors that are no longer needed."""
    if program.called(call) != "torch.cuda.empty_cache":
        return False
    loop = program.nearest(call, lambda parent: isinstance(parent, ast.For) and "loader" in ast.unparse(parent.iter))
    return program.every_step(call) or (loop is not None and not program.is_conditional(call, loop))


# Methods and attributes that empty a list or detach a loss from its graph.
_ENDS = frozenset({"detach", "detach_", "data", "clear", "pop", "popleft"})


@rule("kept_graphs", ast.AugAssign | ast.Assign | ast.Call, each_step=True, in_training=True)
def graphs_kept(program: Program, node: ast.AST) -> Match:
    """`{}` keeps the graph of every loss, and so the memory of every step: use loss.detach(), or loss.item() every
    hundredth step."""
    match node:
        case ast.AugAssign(target=kept, op=ast.Add(), value=value):
            pass
        case ast.Assign(targets=[kept], value=ast.BinOp(left=left, op=ast.Add(), right=value)) if program.name(
            left
        ) == program.name(kept):
            pass
        case ast.Call(func=ast.Attribute(value=kept, attr="append"), args=[value]):
            pass
        case _:
            return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        value = value.left
    name, losses, region = program.name(kept), program.losses[program.scope(node)], program.region(node)
    of_loss = program.name(value) in losses and _is_of_loss(program, value) and not _without_grad(program, node)
    if not name or name in losses or not of_loss or region is None:
        return None
    # A sum or list does not grow if it is reset or emptied in the step, or if its losses are detached.
    for other in ast.walk(region):
        if other is not node and isinstance(other, ast.Delete | ast.Expr | ast.Assign):
            names = program.names_in(other)
            ends = _ENDS & _words(other) if names & {name, *losses} else set()
            if ends or (name in names and not isinstance(other, ast.Expr)):
                return None
    return None if any("deque" in ast.unparse(made) for made in program.assigned(kept)) else ast.unparse(node)


@rule("copied_state", ast.Call | ast.DictComp, each_step=True, in_training=True)
def state_copied(program: Program, node: ast.AST) -> Match:
    """the weights are copied at every step: copy them only for the best score so far, or every hundredth step."""
    match node:
        case ast.Call(args=[ast.Call(func=ast.Attribute(attr="state_dict")), *_]):
            copies = program.called(node) == "copy.deepcopy"
        case ast.DictComp(value=value, generators=[ast.comprehension(iter=iterated)]):
            copies = "state_dict" in _words(iterated) and not _words(value).isdisjoint({"clone", "deepcopy"})
        case _:
            return False
    region = program.region(node)
    return copies and region is not None and "load_state_dict" not in _words(region)  # a copy that is loaded is needed


@rule("zero_grad", ast.Call, value="zeros", in_training=True)
def zeros_asked_for(program: Program, call: ast.Call) -> Match:
    """zero_grad(set_to_none=False) fills the gradients with zeros: call zero_grad() without it, which frees them."""
    given = [getattr(one, "value", None) for one in (*call.args, *(one.value for one in call.keywords))]
    return isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad" and given == [False]


# Contexts and decorators that do not switch gradients off. All others may.
_HARMLESS = frozenset(
    ("autocast", "profile", "record_function", "open", "tqdm", "Timer", "staticmethod", "classmethod", "override")
)
# A file with one of these words may switch gradients off, for all later code or for some parameters.
_SWITCHES = frozenset({"requires_grad", "requires_grad_", "set_grad_enabled"})
_USES_GRADIENTS = frozenset({"torch.autograd.grad", "torch.func.grad", "torch.jit.trace", "torch.export.export"})


@rule("eval_no_grad", ast.Expr | ast.Assign, value="grad")
def validation_recorded(program: Program, statement: ast.Expr | ast.Assign) -> Match:
    """{} is called in evaluation mode while autograd records, since eval() does not stop it: put the call under
    `with torch.no_grad():` or torch.inference_mode()."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="eval"), args=[])):
            model = program.name(owner)
        case ast.Assign(targets=[target], value=ast.Call()) if ".eval()" in ast.unparse(statement.value):
            model = program.name(target)
        case _:
            return None
    if not model or not _words(program.tree).isdisjoint(_SWITCHES) or _without_grad(program, statement):
        return None
    found: ast.Call | None = None
    blocks = (block for _, block in ast.iter_fields(program.parents[statement]) if isinstance(block, list))
    block = next(block for block in blocks if statement in block)
    for later in block[block.index(statement) + 1 :]:
        calls = {call: program.called(call) for call in ast.walk(later) if isinstance(call, ast.Call)}
        if any(is_backward(call) or name in _USES_GRADIENTS for call, name in calls.items()):
            return None
        if f"{model}.train" in calls.values():
            break
        own = [call for call, name in calls.items() if name == model and not _without_grad(program, call)]
        found = found or min(own, key=lambda call: (call.lineno, call.col_offset), default=None)
    return (found, model) if found else None


def _without_grad(program: Program, node: ast.AST) -> bool:
    """Whether a context around a node, or around a call of its function, stops or may stop autograd's recording."""
    function = program.scope(node)
    calls = (call for call in program.calls if isinstance(function, Function) and _last(program, call) == function.name)
    return any(not _contexts(program, place) <= _HARMLESS for place in (node, *calls))


def _contexts(program: Program, node: ast.AST) -> set[str]:
    """The last names of the contexts and decorators around a node, and "lambda", which may be called from anywhere."""
    found: set[str] = set()
    for parent, child in program.above(node):
        if isinstance(parent, ast.With | ast.AsyncWith) and child in parent.body:
            found.update(_last(program, item.context_expr) for item in parent.items)
        elif isinstance(parent, Function):
            found.update(_last(program, decorator) for decorator in parent.decorator_list)
        elif isinstance(parent, ast.Lambda):
            found.add("lambda")
    return found


_MAKES_TENSORS = frozenset({"torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor"})
_MAKES_ARRAYS = re.compile(r"numpy\.(array|asarray|stack|concatenate|load|zeros|ones|full|random\.randn?)")


@rule("list_of_arrays", ast.Call)
def tensor_of_arrays(program: Program, call: ast.Call) -> Match:
    """{} of a list of NumPy arrays reads each number separately: give it numpy.stack(...) of the list."""
    runs_often = program.nearest(call, lambda parent: isinstance(parent, Loop | Function))
    if program.called(call) not in _MAKES_TENSORS or len(call.args) != 1 or not runs_often:
        return None
    kept, scope = program.name(call.args[0]), program.scope(call)
    appends = (one for one in program.calls if one.args and program.called(one) == f"{kept}.append")
    elements = [one.args[0] for one in appends if "." in kept or program.scope(one) is scope]
    match program.latest(call.args[0]) or call.args[0]:
        case ast.ListComp(elt=element) | ast.List(elts=[element, *_]) | ast.Tuple(elts=[element, *_]):
            elements.append(element)
    made = [one for one in (program.latest(one) or one for one in elements) if isinstance(one, ast.Call)]
    arrays = any(one.args and _MAKES_ARRAYS.fullmatch(program.called(one)) for one in made)  # rand() is a number
    return program.called(call) if arrays or any(getattr(one.func, "attr", "") == "numpy" for one in made) else None


_CELLS = {f"torch.nn.{name}Cell": name for name in ("LSTM", "GRU", "RNN")}


@rule("cell_loop", ast.Assign)
def cell_in_loop(program: Program, node: ast.Assign) -> Match:
    """a loop in Python calls a cell for each time step: nn.{} runs the whole sequence in one call."""
    match node:
        case ast.Assign(targets=[target], value=ast.Call(func=cell, args=[inputs, state])):
            made = {program.called(one) if isinstance(one, ast.Call) else "" for one in program.assigned(cell)}
        case _:
            return None
    loop = program.nearest(node, lambda parent: isinstance(parent, Loop))
    if len(made) != 1 or not made <= _CELLS.keys() or not isinstance(loop, ast.For) or loop in program.regions:
        return None
    # nn.LSTM does the same only if the inputs are the loop's items and the state is the cell's last result.
    own, outputs = set(ast.walk(target)), program.names_in(target)
    others = [part for part in ast.walk(loop) if isinstance(getattr(part, "ctx", None), ast.Store) and part not in own]
    given = program.names_in(inputs, *filter(None, [program.latest(inputs)]))
    of_time = given & program.names_in(loop.target) and not given & outputs
    carried = program.names_in(state) <= outputs and not program.names_in(*others) & outputs
    return _CELLS[made.pop()] if of_time and carried and not program.is_conditional(node, loop) else None


_PRODUCTS = frozenset({"matmul", "bmm", "einsum", "baddbmm"})
_TRANSPOSES = frozenset({"transpose", "permute", "swapaxes", "mT", "T", "t", "einsum"})


@rule("written_attention", ast.Call)
def attention_by_hand(program: Program, call: ast.Call) -> Match:
    """attention is written by hand and stores all pairs of positions: F.scaled_dot_product_attention is one kernel."""
    around = [parent for parent, _ in program.above(call)]
    function = next((parent for parent in around if isinstance(parent, Function)), None)
    if function is None or _last(program, call) != "softmax" or "scaled_dot_product_attention" in _words(function):
        return None
    called = [one for one in ast.walk(function) if isinstance(one, ast.Call) and _last(program, one) in _PRODUCTS]
    operators = [one for one in ast.walk(function) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult)]
    products = [*called, *operators]
    later = [one for one in products if one in around or one.lineno > call.lineno]
    return bool(later) and any(_words(one) & _TRANSPOSES for one in products if one not in later)


def _last(program: Program, node: ast.AST) -> str:
    return (program.called(node) if isinstance(node, ast.Call) else program.name(node)).rpartition(".")[2]


def _words(node: ast.AST) -> set[str]:
    """The names of the variables, attributes and methods in a node."""
    attributes = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return attributes | {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
