"""The places in the user's files where settings are written: calls seen at run time, and the statements around them."""

import ast
import contextlib
import inspect
import itertools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from advisor.files.paths import INSTALLED, PACKAGE, is_library
from advisor.python import trees
from advisor.python.functions import as_function, only_noting
from advisor.python.loops import FoundLoop, Pass, Where, scope_of, users_lines
from advisor.records import Place
from advisor.workloads.scripts.running import patched

TORCH = (*(f"{folder}torch/" for folder in INSTALLED), str(PACKAGE))
_NO_CHANGES = frozenset({"train", "eval", "zero_grad"})


def call_in_users_code() -> Place | None:
    """The call in the user's code that is making a PyTorch object right now; None if a library makes the object."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in TORCH):
        frame = frame.f_back
    if frame is None or is_library(frame.f_code.co_filename):
        return None
    positions = inspect.getframeinfo(frame, context=0).positions
    return None if positions is None or None in positions else _at("", frame.f_code.co_filename, positions)


def _at(kind: str, file: str, first: Any, last: Any = None, **more: Any) -> Place:
    """The place of a node, or of all nodes from ``first`` to ``last``. Python's columns count bytes."""
    end = first if last is None else last
    ends = ((first.lineno, first.col_offset), (end.end_lineno, end.end_col_offset))
    before = [linecache.getline(file, line).encode()[:column].decode(errors="replace") for line, column in ends]
    return Place(kind, file, first.lineno, len(before[0]), end.end_lineno, len(before[1]), **more)


class BuildWatch:
    """Records the calls that make optimizers and loaders while a function runs, and the function's final variables."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()
        self._views: list[Where] = []

    @contextlib.contextmanager
    def watching(self, function: Any) -> Iterator[None]:
        """Watch what the function does inside this context."""
        tracing, code = sys.gettrace(), getattr(function, "__code__", None)
        with patched((Optimizer, "__init__", self._on_new), (DataLoader, "__init__", self._on_new)):
            sys.settrace(lambda frame, *_: self._at_return if frame.f_code is code else None)
            try:
                yield
            finally:
                sys.settrace(tracing)

    def _on_new(self, original: Callable[..., Any], made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        if call := call_in_users_code():
            self._made[made] = call

    def _at_return(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            self._views.append(Where(frame, frame.f_lineno))
        return self._at_return

    def places(self, models: Iterable[nn.Module], optimizers: Iterable[Any], loader: Any) -> tuple[Place, ...]:
        """The places where these models, optimizers and the loader are made."""
        views = [view for view in self._views if view.is_users]
        return tuple(places_of_made(self._made, views, models, optimizers, loader)) if views else ()


def places_of_made(
    made: Mapping[Any, Place], views: Sequence[Where], models: Iterable[Any], optimizers: Iterable[Any], loader: Any
) -> Iterator[Place]:
    """The places where the models, the optimizers and the loader are made; ``made`` holds the calls that were seen."""
    for kind, values in (("model", models), ("optimizer", optimizers), ("loader", [loader])):
        yield from filter(None, (_bound(kind, value, views) for value in values if value is not None))
    yield from (replace(made[one], kind="optimizer call") for one in optimizers if one in made)
    # A library's loader may replace the user's, but holds the same dataset.
    beside = [one for one in made if getattr(one, "dataset", made) is getattr(loader, "dataset", None)]
    for one in sorted(beside, key=lambda one: one is not loader)[:1]:
        yield replace(made[one], kind="loader call")


def place_of_call(kind: str, name: str, files: Iterable[str]) -> Iterator[Place]:
    """The call of a function whose name ends with ``name``, if the files have exactly one such call."""
    nodes = ((file, node) for file in files for node in ast.walk(trees.tree_of_file(file)))
    found = [one for one in nodes if isinstance(one[1], ast.Call) and ast.unparse(one[1].func).endswith(name)]
    if len(found) == 1:
        yield _at(kind, *found[0])


def _bound(kind: str, value: Any, views: Sequence[Where]) -> Place | None:
    """The last statement before the loop that assigns a value or calls its methods, in a block around the loop."""
    for view in views:
        for name in _names_of(value, view.names):
            scopes: list[tuple[Any, int]] = [(scope_of(view.code), view.line)]
            if name.startswith("self."):  # any method of its class may set it
                own = {one.__name__ for one in type(view.names["self"]).__mro__}
                classes = (one for one in ast.walk(trees.tree_of_file(view.file)) if isinstance(one, ast.ClassDef))
                methods = (one for node in classes if node.name in own for one in node.body)
                scopes = [(one, 1 + (one.end_lineno or 0)) for one in methods if isinstance(one, ast.FunctionDef)]
            for scope, line in scopes:
                blocks = trees.blocks_to(line, scope.body)
                before = [one for block in blocks for one in block if (one.end_lineno or 0) < line]
                first, parts = 1 + name.startswith("self."), name.split(".")
                owners = [".".join(parts[:end]) for end in range(first, 1 + len(parts))]  # `a.b` changes with `a`
                if found := [one for one in before if any(_concerns(one, owner) for owner in owners)]:
                    return _at(kind, view.file, found[-1], name=name)
    return None


def _names_of(value: Any, names: Mapping[str, Any]) -> Iterator[str]:
    """The expressions for a value: variables, attributes of ``self``, and submodules of either."""
    own = getattr(names.get("self"), "__dict__", {})
    found = {**names, **{f"self.{name}": held for name, held in {**own, **own.get("_modules", {})}.items()}}
    yield from (name for name, held in found.items() if held is value)
    modules = {name: held for name, held in found.items() if isinstance(held, nn.Module)}
    parts = ((name, part) for name, held in modules.items() for part, one in held.named_modules() if one is value)
    yield from (f"{name}.{part}" for name, part in parts if all(map(str.isidentifier, part.split("."))))


def _concerns(statement: ast.stmt, name: str) -> bool:
    """Whether a statement binds a name, or calls a method that may change the object."""
    if isinstance(statement, trees.FUNCTIONS | ast.ClassDef):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in trees.bound_by(node):
            return not isinstance(node.value, ast.Constant | None)  # not `self.model = None`
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith(f"{name}."):
            return trees.name_called(call) not in _NO_CHANGES
    return False


def places_of_call(calls: Sequence[Where]) -> Iterator[Place]:
    """The statement that calls the model, and the copies of its inputs, for a script that only predicts."""
    for view in calls[:1]:
        block, begin, _ = _block_of({view.line}, _body_of(view.code), view.line)
        yield from [_at("forward", view.file, block[begin])] if block else []
        yield from _copies(view.file, scope_of(view.code), view.names)


@dataclass(frozen=True, slots=True)
class LoopPlaces:
    """A loop of the user's, and the user's functions that were running at its update, innermost first."""

    loop: FoundLoop
    views: Sequence[Where]
    model: nn.Module
    loader: Any = None

    def of(self, passes: Iterable[Pass]) -> Iterator[Place]:
        """The places of the loop, of its forward passes, of its whole step, and of the copies of its batches."""
        statement, own = self.loop.statement, self.loop.where.code
        yield _at("loop", self.loop.where.file, statement)
        if self.loader is not None and isinstance(statement, ast.For):
            yield from itertools.islice(self._reads_of_loader(statement), 1)
        # "above" is the outermost enclosing loop that does not create the model again.
        whole = (one for one, makes_anew in self._around() if not makes_anew)
        yield _at("above", self.loop.where.file, next(whole, statement))
        passes = list(passes)
        yield from dict.fromkeys(place for one in passes for place in self._of_pass(one))
        inner = (code for each in passes for code, _ in users_lines(each.at)[:1])
        scopes = {own: statement} | {code: scope_of(code) for code in inner if code is not own}
        for code, scope in scopes.items():
            yield from _copies(code.co_filename, scope, self._names_in(code))

    def _reads_of_loader(self, statement: ast.For) -> Iterator[Place]:
        """The expressions for the loader in a loop's head; for Accelerate's loader, those for the wrapped loader."""
        loader = getattr(self.loader, "base_dataloader", self.loader)
        for one in ast.walk(statement.iter):
            if isinstance(one, ast.Name | ast.Attribute):
                name, held = ast.unparse(one), trees.value_of(one, self.loop.where.names)
                with contextlib.suppress(Exception):  # an object may have no attributes, or hide them
                    parts = (part for part, value in {"": held, **vars(held)}.items() if value is loader)
                    names = (f"{name}.{part}" if part else name for part in parts if not part or part.isidentifier())
                    yield from (_at("loader read", self.loop.where.file, statement, name=text) for text in names)

    def _around(self) -> list[tuple[ast.stmt, bool]]:
        """The enclosing loops, outermost first, and the loop itself; each with whether it creates the model again."""
        names = _names_of(self.model, self.loop.where.names)
        made = {".".join(name.split(".")[: 2 if name.startswith("self.") else 1]) for name in names}
        statements = trees.statements_at(self.loop.statement.lineno, _body_of(self.loop.where.code))
        loops = (one for one in statements if isinstance(one, trees.Loop))
        return [(one, any(_concerns(one, name) for name in made)) for one in loops]

    def _names_in(self, code: CodeType) -> Mapping[str, Any]:
        return next((view.names for view in self.views if view.code is code), {})

    def _of_pass(self, each: Pass) -> Iterator[Place]:
        # The line that leads to the backward pass, in the innermost function that also makes the forward pass.
        common = next(((one, line) for one, line in each.at if any(one is other for other, _ in each.calls)), None)
        if common is None or is_library(common[0].co_filename):
            return
        code, backward = common
        file, whole, names = code.co_filename, scope_of(code), self._names_in(code)
        block, begin, end = _block_of({line for one, line in each.calls if one is code}, _body_of(code), backward)
        if not block:
            return
        backwards = itertools.chain.from_iterable(ast.walk(one) for one in block if trees.holds(one, backward))
        last, read = end - 1, {ast.unparse(one) for one in backwards if isinstance(one, ast.expr)}
        while last > begin and not trees.bound_in(block[last]) & read:  # not of the loss
            last -= 1
        is_own = code is self.loop.where.code
        scope = self.loop.statement if is_own else whole
        classes = [node for node in ast.walk(trees.tree_of_file(file)) if isinstance(node, ast.ClassDef)]
        is_method = any(whole in one.body for one in classes)  # a method is not called by its name alone
        if not is_own and isinstance(whole, trees.FUNCTIONS) and not is_method:
            yield _at("function", file, whole)
        inside = block[begin : max(begin, last) + 1]
        found = {"problem": "the forward and the backward pass are on one line"}
        found = as_function(inside, (scope, whole), names) if begin < end else found
        yield _at("forward", file, inside[0], inside[-1], **found)
        yield from (_at("clear", file, one) for one in trees.calls_of("zero_grad", block))
        update = trees.place_in(block, self.views[0].line) if self.views and self.views[0].code is code else -1
        if update >= end:
            behind = itertools.takewhile(lambda one: not trees.calls_of("backward", [one]), block[update + 1 :])
            lines = [line for line, _ in _updates(behind, names)]
            done = max([update, *(trees.place_in(block, line) for line in lines)])
            yield self._step(block, begin, inside[-1], done, code)

    def _step(self, block: list[ast.stmt], begin: int, last: ast.stmt, done: int, code: CodeType) -> Place:
        """The place of a step, from its forward pass to its update, with the statements that clear the gradients.

        ``last`` is the last statement of the forward pass. Later statements that only record numbers can be moved
        after the step (``total += loss.item()``, for example).
        """
        clearing = [isinstance(one, ast.Expr) and trees.clears(one) for one in block]
        while begin and clearing[begin - 1]:
            begin -= 1
        while done + 1 < len(block) and clearing[done + 1]:
            done += 1
        names, inside = self._names_in(code), block[begin : done + 1]
        behind = only_noting(inside, last.end_lineno or 0, names)
        captured = [one for one in inside if one not in behind]
        own, whole = self.loop.where.code, scope_of(code)
        found = as_function(captured, (self.loop.statement if code is own else whole, whole), names, on_device=True)
        bound = set().union(*map(trees.bound_in, captured))  # as `for optimizer in optimizers:` does
        known = (name for _, name in _updates(captured, names))
        optimizers = {one for one in known if one.partition(".")[0].partition("[")[0] not in bound}
        model, problem = next(_names_of(self.model, names), ""), found["problem"]
        given = (trees.value_of(one, names) for call in trees.calls_of("step", captured) for one in call.args)
        if any(isinstance(one, Optimizer) for one in given):
            problem = "your own gradient scaler makes the update"
        elif not (model and optimizers):
            problem = "no variable for the model or for its optimizer was seen"
        beside = whole in _body_of(own) and own.co_name == "<module>"
        if code is not own and (not beside or any(makes_anew for _, makes_anew in self._around())):
            problem = "the step is in a function that the loop calls"
        found |= {"name": ", ".join([model, *sorted(optimizers)]), "problem": problem}
        found["behind"] = tuple(one.lineno for one in behind)
        return _at("step", code.co_filename, inside[0], inside[-1], **found)


def _updates(statements: Iterable[ast.AST], names: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The lines at which statements call an optimizer's ``step``, each with the expression for the optimizer."""
    calls = ((call, getattr(call.func, "value", call)) for call in trees.calls_of("step", statements))
    values = ((call, owner, trees.value_of(owner, names)) for call, owner in calls)
    return [(call.lineno, ast.unparse(owner)) for call, owner, value in values if isinstance(value, Optimizer)]


def _body_of(code: CodeType) -> list[ast.stmt]:
    return getattr(scope_of(code), "body", [])


def _block_of(lines: set[int], body: list[ast.stmt], last: int) -> tuple[list[ast.stmt], int, int]:
    """The innermost block that holds ``last`` and any of ``lines``, and the places of the first and the last in it.

    Lines outside of that block belong to other model calls. In reinforcement learning, for example, a loop also calls
    the model to choose actions. The block is empty if there is none.
    """
    for block in reversed(list(trees.blocks_to(last, body))):
        inside = [line for line in lines if block[0].lineno <= line <= (block[-1].end_lineno or 0)]
        if inside and 0 <= (begin := trees.place_in(block, min(inside))) <= (end := trees.place_in(block, last)):
            return block, begin, end
    return [], 0, 0


def _copies(file: str, scope: ast.AST, names: Mapping[str, Any]) -> Iterator[Place]:
    """The calls that copy a tensor to a device, named by its number of dimensions, with ``f`` if it is a float."""
    for node in trees.calls_of("to", [scope]) + trees.calls_of("cuda", [scope]):
        given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "device")]
        text = ast.unparse(given[0]) if given else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        target = trees.value_of(given[0], names) if given else None
        to_device = isinstance(target, torch.device) or any(word in text for word in ("device", "cuda", "rank"))
        value = trees.value_of(node.func.value, names) if isinstance(node.func, ast.Attribute) else node
        if to_device and (value is None or isinstance(value, torch.Tensor)):
            what = "" if value is None else f"{value.dim()}{'f' if value.is_floating_point() else ''}"
            yield _at("copy", file, node, name=what)
