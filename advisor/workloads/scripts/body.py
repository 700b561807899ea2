"""The body of a script's training loop as a function of one batch: the user's own code, compiled from its source."""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from advisor.errors import TargetError
from advisor.process.meanwhile import replaced
from advisor.python.places import scope_of
from advisor.python.positions import COUNTED, Loop, is_count, is_read_in, position_of, reads_once, value_of
from advisor.step.loader import length_of
from advisor.workloads.batches import MOST_KEPT
from advisor.workloads.scripts.files import writing_over_nothing
from advisor.workloads.scripts.loops import (
    behind,
    branch_of_the_loss,
    clears_gradients,
    is_part_of_round,
    with_called,
)
from advisor.workloads.scripts.seen import Seen, Where
from advisor.workloads.scripts.surroundings import Context, Names, Readings, contexts_of, entered

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ITEM, _LEFT, _STAYS = "__perf_advisor_item__", "__perf_advisor_left__", "__perf_advisor_stays__"
_MARK = "__perf_advisor_mark__"
# Rounds of one step, up to one with a backward pass, of a loop that reads no loader. A count.
_MOST_ROUNDS = 1000
# Batches in a row that a loop may pass over with `continue`, such as the last and smaller ones. A count.
_MOST_SKIPPED = 16


class NoBodyError(Exception):
    """Raised, with the reason, for a loop whose body cannot be run by itself."""


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """A loop of the script's: its statement, the names as they are in its frame, and the code that it is part of.

    ``contexts`` are the blocks of PyTorch's around it, the outermost first. ``behind`` are the statements of a round
    that call something after the backward pass, in a line each. ``branch`` is the line of a branch by which the loss of
    one round may be computed otherwise than that of another; None without one. ``clears`` tells whether gradients are
    cleared in the loop; where they are not, they add up. ``outer`` is the loop that it is a statement of. ``beside``
    are the other statements of the loop around it, or of its function where none is. ``part`` is the loop of a few
    rounds that is a part of its own. ``update`` is the line of the update, or of what makes it.
    """

    statement: Loop
    names: dict[str, Any]
    code: CodeType
    contexts: tuple[Context, ...] = ()
    behind: tuple[str, ...] = ()
    branch: int | None = None
    clears: bool = True
    outer: Loop | None = None
    beside: Sequence[ast.stmt] = ()
    part: FoundLoop | None = None
    update: int = 0

    @property
    def file(self) -> str:
        """The file that the loop is in."""
        return self.code.co_filename

    @property
    def place(self) -> str:
        """The place of the loop's body in the script: ``file:line``."""
        return f"{self.file}:{self.statement.lineno}"


class _Left(BaseException):
    """Stands in for a ``return`` of the function that the loop is in."""


def training_loop(seen: Seen) -> FoundLoop:
    """The loop that the first update was made in. Raises NoBodyError where the script's source has none that fits.

    With a loader it is the innermost loop that reads the loader; else the innermost one around the update. Where that
    is a part of a round of the loop around it, as the updates of a critic before one of a generator, it is that one,
    unless that makes an optimizer for each round, as a loop of several seeds or folds does.
    """
    found: list[FoundLoop] = []
    users = [where for where in seen.frames if where.is_users]
    for place, where in enumerate(users):
        if loops := loops_around(where):
            found += _with_names(where, loops, users[:place], users[place + 1 :])
    if not found:
        raise NoBodyError("no loop in the script's own code stands around the update of the weights")
    reading = (loop for loop in found if position_in(loop, seen) or is_read_in(loop.statement, loop.code, seen.reads))
    loop = next(reading, found[0])
    around = next((after for one, after in itertools.pairwise(found) if one is loop), None)
    if around is None or _makes_optimizer(loop):
        return loop
    is_part = is_part_of_round(loop.file, loop.statement, loop.beside, loop.names)
    return replace(around, part=loop) if is_part else loop


def _makes_optimizer(loop: FoundLoop) -> bool:
    """Whether an optimizer is made beside a loop: with another one for each, its updates are no part of a step."""
    stored = (node for one in loop.beside for node in ast.walk(one) if isinstance(node, ast.Name | ast.Attribute))
    return any(isinstance(value_of(node, loop.names), Optimizer) for node in stored if isinstance(node.ctx, ast.Store))


def optimizers_in(loop: FoundLoop) -> list[Optimizer]:
    """The optimizers that a loop names, or what stands beside the one that is a part of it."""
    places: list[tuple[ast.AST, dict[str, Any]]] = [(loop.statement, loop.names)]
    if loop.part is not None:
        places += [(beside, loop.part.names) for beside in with_called(loop.part.file, loop.part.beside)]
    named = ((node, names) for place, names in places for node in ast.walk(place))
    found = (value_of(node, names) for node, names in named if isinstance(node, ast.Name | ast.Attribute))
    return [value for value in found if isinstance(value, Optimizer)]


def step_of(loop: FoundLoop, seen: Seen) -> tuple[Body, Any]:
    """The body as ``step(batch) -> loss``, and what feeds it: the loader, or what the loop goes through.

    Raises NoBodyError for a body that cannot stand by itself.
    """
    loader, position = seen.loader, position_in(loop, seen)
    if position is not None:
        return Body(loop, Readings(seen.iterators), _counter_of(loop, loader) if position == COUNTED else None), loader
    if loader is not None and reads_once(loop.statement, loop.code, seen.reads):
        return Body(loop, Readings(seen.iterators, loader), Rounds(items_of(loop)), ended=seen.leaves_loop), loader
    counts = isinstance(loop.statement, ast.While) or is_count(loop.statement.iter)
    turns = Rounds(items_of(loop), alone=True) if counts else None
    return Body(loop, Readings(seen.iterators), turns, ended=seen.leaves_loop), items_of(loop)


@dataclass(slots=True)
class Counter:
    """The numbers that ``enumerate`` gives to a loader's batches, from ``first`` on in each epoch of ``batches``."""

    number: int
    first: int
    batches: int | None

    def next(self) -> int:
        """The number of the next batch."""
        if self.batches and self.number >= self.first + self.batches:
            self.number = self.first
        self.number += 1
        return self.number - 1

    def begins_anew(self) -> bool:
        """Count from the first number again; False where no later number has been given yet."""
        last, self.number = self.number - 1, self.first
        return last > self.first


@dataclass(slots=True)
class Rounds:
    """The items of a loop that reads its batches by itself, one in each round, from the first one again at the end.

    ``alone``: it reads no loader.
    """

    items: Iterable[Any]
    alone: bool = False
    _left: Iterator[Any] = field(default_factory=lambda: iter(()))

    def next(self) -> Any:
        """The item of the next round."""
        for item in self._left:
            return item
        self._left = iter(self.items)
        return next(self._left)

    def begin_anew(self) -> None:
        """Go on with the first item."""
        self._left = iter(())


class Body:
    """The statements of a loop, run for one item after another in the names that the loop had.

    Returns the last tensor that ``backward`` was called on. Raises TargetError where the loop comes to its end.
    ``turns`` counts the batches where the loop does so with ``enumerate``, or has the items of one that reads its
    batches by itself. Of one that reads no loader, the rounds up to a backward pass are one step. What another loop
    does around it (a new episode, ``iter(loader)``) is run where one that reads by itself ends. A batch that the loop
    passes over is a step with the loss before. ``ended``: the script was left at the loop's end.
    """

    casts = "none"  # the type that the script's own autocast casts to within the step
    capture_problem = (
        "the step is the body of your script's loop, whose counting and reading a replay would leave out; "
        "`perf-advisor init` writes the script's parts as a build() to complete"
    )

    def __init__(
        self, loop: FoundLoop, readings: Readings, turns: Counter | Rounds | None = None, *, ended: bool = False
    ) -> None:
        self.loop = loop
        self._readings = readings
        _check_stands_alone(loop.statement.body)
        loop.names[_Left.__name__] = _Left
        self._code = _once(loop.statement, loop.statement.body, loop.file)
        self._names = loop.names
        self._turns = turns
        self._has_ended = ended
        self._alone = isinstance(turns, Rounds) and turns.alone
        self._between = _between(loop) if isinstance(turns, Rounds) else None
        if self._between is None and (isinstance(loop.statement, ast.While) or is_count(loop.statement.iter)):
            readings.never_end()
        self._loss, self._skipped = torch.zeros(()), 0
        around = loop.contexts
        self._contexts = (lambda: entered(around)) if around else contextlib.nullcontext

    def __call__(self, batch: Any) -> torch.Tensor:
        """Run the body on a batch and return the loss."""
        for _ in range(_MOST_ROUNDS):
            if losses := self._one_round(batch):
                self._loss, self._skipped = losses[-1].detach(), 0
                return self._loss
            if not self._has_another():
                break
        if not (self._alone or self._has_ended) and self._skipped < _MOST_SKIPPED:
            self._skipped += 1
            return self._loss
        raise TargetError(
            f"the loop at {self.loop.place} made a round without a backward pass, as at its end.",
            "Let it go on for longer, with arguments of the script after --, or take out the statement that ends it.",
        )

    def mark_statements(self, mark: Callable[[int], None]) -> None:
        """Have ``mark`` called with the place of each statement of the body before that is run."""
        self._names[_MARK] = mark
        marked = [
            part
            for at, one in enumerate(self.loop.statement.body)
            for part in (ast.Expr(ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(at)], [])), one)
        ]
        self._code = _once(self.loop.statement, marked, self.loop.file)

    def _has_another(self) -> bool:
        """Whether a round without a backward pass may be followed by one that has it."""
        if isinstance(self._turns, Counter):
            return self._turns.begins_anew()  # a loop that ends by its count goes on in the next epoch
        return self._between is not None if self._has_ended else self._alone

    def _one_round(self, batch: Any) -> list[torch.Tensor]:
        """Run the body on a batch and return what ``backward`` was called on."""
        with (
            _losses(self._loss) as losses,
            self._readings.giving(batch),
            writing_over_nothing(),
            contextlib.suppress(_Left),
            self._contexts(),
        ):
            if self._has_ended and self._between is not None:
                self._begin_anew()
            self._has_ended, item = True, self._item(batch)
            while True:
                try:
                    self._has_ended = not self._stays(self._code, item)
                    break
                except StopIteration:  # a loader has ended, and another one perhaps in the next try
                    if not self._readings.begin_anew(batch):
                        raise
        return losses

    def _begin_anew(self) -> None:
        """Run the statements of the outer loop between two runs of this one."""
        assert isinstance(self._turns, Rounds)
        assert self._between is not None
        after, before, items = self._between
        if not self._stays(after, None) or not self._stays(before, items.next()):
            self._between = None  # that loop has ended too
            raise _Left
        self._turns.begin_anew()

    def _stays(self, code: CodeType, item: Any) -> bool:
        """Run statements of a loop for an item, and tell whether they stay in the loop."""
        self._names[_ITEM], self._names[_STAYS] = item, False
        exec(code, self._names)  # noqa: S102 - it is the user's own loop
        return bool(self._names[_STAYS])

    def _item(self, batch: Any) -> Any:
        """The value of the loop's variable in the next round."""
        if isinstance(self._turns, Rounds):
            return self._turns.next()
        return batch if self._turns is None else (self._turns.next(), batch)


@contextlib.contextmanager
def _losses(before: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The tensors that ``backward`` is called on inside this context.

    Where an update is made of gradients that no backward pass made, as ``torch.func`` does, it is the loss ``before``.
    """
    found: list[torch.Tensor] = []
    original: Any = torch.Tensor.backward
    updates = register_optimizer_step_post_hook(lambda *_: None if found else found.append(before))

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found.append(loss)
        return original(loss, *args, **kwargs)

    try:
        with replaced(torch.Tensor, "backward", backward):
            yield found
    finally:
        updates.remove()


def position_in(loop: FoundLoop, seen: Seen) -> str | None:
    """The form in which a loop goes through the loader of the step; None where it does not."""
    if seen.loader is None:
        return None
    return position_of(loop.statement, loop.names, seen.loader, seen.iterators)


def items_of(loop: FoundLoop) -> Any:
    """The items that a loop without a loader reads, from the first one in each epoch; a count for a ``while`` loop."""
    if isinstance(loop.statement, ast.While):
        return Again(itertools.count)
    code = compile(ast.Expression(loop.statement.iter), loop.file, "eval")
    named = (value_of(node, loop.names) for node in ast.walk(loop.statement.iter) if isinstance(node, ast.expr))
    ends = any(isinstance(value, Iterator) for value in named)
    return Again(lambda: iter(eval(code, loop.names)), ends)  # noqa: S307 - it is the user's own loop


@dataclass(slots=True)
class Again:
    """An iterable that begins anew each time. Of one that ``ends`` for good, its first items are kept and repeated."""

    begin: Callable[[], Iterable[Any]]
    ends: bool = False
    _kept: list[Any] = field(default_factory=list)
    made_by = "the script's own loop"

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.begin())
        first = next(items, items)
        if first is items:  # it has ended
            yield from self._kept
            return
        for item in itertools.chain([first], items):
            if self.ends and len(self._kept) < MOST_KEPT:
                self._kept.append(item)
            yield item


# --- the source -------------------------------------------------------------------------------------------------


def loops_around(where: Where) -> list[Loop]:
    """The loops around the line of a frame, innermost first, within the function that the frame runs."""
    around = [
        node
        for node in _own_statements(scope_of(where.frame.f_code))
        if isinstance(node, ast.For | ast.While) and node.body[0].lineno <= where.line <= (node.end_lineno or 0)
    ]
    return sorted(around, key=lambda node: node.lineno, reverse=True)


def _with_names(where: Where, loops: list[Loop], inner: list[Where], outer: list[Where]) -> Iterator[FoundLoop]:
    """The loops of a frame with its names, and with the contexts that it and the frames that called it are in.

    ``inner`` are the frames of functions that the loop called, in which the update was made.
    """
    names, scope = _names(where), scope_of(where.frame.f_code)
    called = [text for one in inner for text in behind(getattr(scope_of(one.frame.f_code), "body", []), one.line)]
    outside = [context for caller in reversed(outer) for context in _contexts(caller, _names(caller), caller.line)]
    inside = [branch_of_the_loss(getattr(scope_of(one.frame.f_code), "body", []), one.line) for one in inner]
    for loop in loops:
        branch = next(filter(None, [branch_of_the_loss(loop.body, where.line, loops), *inside]), None)
        around = (*outside, *_contexts(where, names, loop.lineno))
        after = (*called, *behind(loop.body, where.line))
        code = where.frame.f_code
        clears = clears_gradients(code.co_filename, loop, [scope_of(one.frame.f_code) for one in inner])
        parent = next((other for other in loops if loop in other.body), None)
        holder: Any = next((other for one, other in itertools.pairwise(loops) if one is loop), scope)
        beside = [one for one in holder.body if not one.lineno <= loop.lineno <= (one.end_lineno or 0)]
        yield FoundLoop(loop, names, code, around, after, branch, clears, parent, beside, update=where.line)


def _names(where: Where) -> dict[str, Any]:
    frame = where.frame
    return frame.f_globals if frame.f_code.co_name == "<module>" else Names(frame)


def _contexts(where: Where, names: dict[str, Any], line: int) -> Iterator[Context]:
    """The contexts of PyTorch's that a line of a frame's function is in, the outermost first."""
    blocks = [
        node
        for node in _own_statements(scope_of(where.frame.f_code))
        if isinstance(node, ast.With) and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    blocks.sort(key=lambda node: node.lineno)
    return contexts_of(blocks, names, where.frame.f_code.co_filename)


def _own_statements(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a scope but those of functions and classes within it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            continue
        yield child
        yield from _own_statements(child)


def _counter_of(loop: FoundLoop, loader: Any) -> Counter:
    """The counter of a loop over ``enumerate``, as it stands after the step that was seen."""
    statement = loop.statement
    assert isinstance(statement, ast.For), "only a `for` loop counts"
    target = statement.target
    name = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    now = loop.names.get(name.id) if isinstance(name, ast.Name) else None
    first = next(filter(None, map(_start, ast.walk(statement.iter))), 0)
    return Counter(now + 1 if isinstance(now, int) else first + 1, first, length_of(loader))


def _start(node: ast.AST) -> int:
    """The number that a call of ``enumerate`` starts with; 0 for any other node."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "enumerate":
        return 0
    given = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
    value = given[0].value if given and isinstance(given[0], ast.Constant) else 0
    return value if isinstance(value, int) else 0


def _between(loop: FoundLoop) -> tuple[CodeType, CodeType, Rounds] | None:
    """The statements after and before a loop in the one around it, and the items of that; None without such a loop."""
    outer = loop.outer
    if outer is None:
        return None
    place = outer.body.index(loop.statement)
    try:
        _check_stands_alone(outer.body)
    except NoBodyError:
        return None
    after = _once(None, outer.body[place + 1 :], loop.file)
    return after, _once(outer, outer.body[:place], loop.file), Rounds(items_of(replace(loop, statement=outer)))


def _once(loop: Loop | None, statements: list[ast.stmt], file: str) -> CodeType:
    """Statements as a loop over the one item at hand, so that ``continue`` and ``break`` mean what they meant.

    Without the loop that they are from they are run for no variable and under no condition.
    """
    own = copy.deepcopy(loop)
    body: list[ast.stmt] = [_Returns().visit(one) for one in copy.deepcopy(statements)] or [ast.Pass()]
    target: ast.expr = ast.Name(_LEFT, ast.Store())
    if isinstance(own, ast.For):
        target = own.target
    elif own is not None:
        body = [ast.copy_location(ast.If(own.test, body, [ast.Break()]), own)]
    items = ast.Tuple([ast.Name(_ITEM, ast.Load())], ast.Load())
    stays: list[ast.stmt] = [ast.Assign([ast.Name(_STAYS, ast.Store())], ast.Constant(value=True))]
    again = ast.For(target, items, body, stays)
    again = again if own is None else ast.copy_location(again, own)
    return compile(ast.fix_missing_locations(ast.Module([again], [])), file, "exec")


def _check_stands_alone(body: list[ast.stmt]) -> None:
    """Raise NoBodyError for statements that have a meaning only in their function."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal):
                raise NoBodyError(f"line {node.lineno} has `{type(node).__name__.lower()}`")
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "super" and not node.args:
                raise NoBodyError(f"line {node.lineno} calls super()")


class _Returns(ast.NodeTransformer):
    """Puts the end of this round in the place of each ``return`` of the loop's own function."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Leave a function within the loop as it is."""
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        """Leave it as it is."""
        return node

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        """Raise ``_Left`` in its place: the step ends there."""
        return ast.copy_location(ast.Raise(ast.Name(_Left.__name__, ast.Load()), None), node)
