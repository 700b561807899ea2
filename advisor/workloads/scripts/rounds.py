"""Rounds of a paused script's loop: run as steps, and timed as they are, with the statements beside the step."""

import ast
import contextlib
import itertools
import signal
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advisor.errors import TargetError
from advisor.python.loops import FoundLoop, lines_up, scope_of, users_lines
from advisor.python.trees import holds
from advisor.records import LeftOut, RoundTimes
from advisor.workloads.loop import GivenBatches
from advisor.workloads.scripts.files import writing_aside
from advisor.workloads.scripts.running import Pause, patched, without_workers
from advisor.workloads.scripts.watch import Seen, parameters_in

_MOST_SKIPPED = 16  # batches in a row that a loop may pass over with `continue`, such as smaller ones; a count
# Rounds that are timed, while there is time for more; and the longest that all of it may take. Seconds.
_MOST_ROUNDS, _TIME_S, WHOLE_ROUNDS_S = 64, 1.0, 10.0
# Statements beside the step that are named, and the least share of a round that one has to take. Unitless.
_NAMED, _LEAST_SHARE = 3, 0.01
_LONGEST = 60  # characters of a statement as it is shown


class ScriptStep:
    """Runs one round of a paused script on a batch, and returns the last tensor that ``backward`` was called on.

    A loader's iterators return the given batch and never end. Other loaders are read as usual, and so is this one
    without gradients, since that is an evaluation. For a batch that the loop skips, the previous loss is returned.
    Raises TargetError if the script ends, or if a round trains another model, which it made without settings.
    """

    capture_problem = (
        "the step is one round of your script's loop, and a replay would skip its counting and reading; "
        "`perf-advisor init` writes the script's parts as a build() to complete"
    )

    def __init__(self, seen: Seen, loop: FoundLoop | None) -> None:
        self._place = loop.place if loop else next(f"{one.file}:{one.line}" for one in seen.frames if one.is_users)
        self.script, self.loop, self._optimizers = seen.script, loop, seen.optimizers
        self.lines = [(one.code, one.line) for one in seen.frames]  # that led to the update, innermost first
        self.casts = seen.casts  # the type that the script's own autocast casts to within the step
        self.batches = seen.loader  # what feeds it: the loader, or numbers
        if self.batches is None:
            self.batches = GivenBatches(itertools.count, "the script's own loop")
        self._pause = seen.pause or Pause()  # else the script has ended after its only round
        self._iterators = seen.iterators
        self._anew: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._loss, self._losses = torch.zeros(()), list[torch.Tensor]()
        self._skipped = 0
        self._updated: list[Optimizer] = []
        self._replays, self._goes_backward = 0, bool(seen.passes)

    def __call__(self, batch: Any) -> torch.Tensor:
        """Run a round."""
        self._losses.clear()
        self._updated.clear()
        self._replays = 0
        with self._hooked():
            goes_on = self.script.go_on(batch)
        self._skipped = 0 if self._losses or self._updated or self._replays else self._skipped + 1
        if not goes_on or self._skipped > _MOST_SKIPPED or self._trains_another():
            raise TargetError(
                f"the loop at {self._place} has come to its end.",
                "Let it go on for longer, with arguments of the script after --, or take out what ends it.",
            )
        self._loss = self._losses[-1].detach() if self._losses else self._loss
        return self._loss

    def _trains_another(self) -> bool:
        """Whether all updates of a round are of parameters that no optimizer had before."""
        if not {*self._updated}.isdisjoint(self._optimizers):
            return False
        known, updated = ({id(p) for one in some for p in parameters_in(one)}
                          for some in (self._optimizers, self._updated))  # fmt: skip
        return bool(known and updated) and known.isdisjoint(updated)

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[None]:
        wrappers = (
            (_BaseDataLoaderIter, "__next__", self._on_next_batch),
            (DataLoader, "__iter__", self._on_iter),
            (torch.Tensor, "backward", self._on_backward),
            (torch.cuda.CUDAGraph, "replay", self._on_replay),
        )
        with register_optimizer_step_pre_hook(self._on_update), patched(*wrappers), writing_aside(new_ones_too=True):
            yield

    def _on_next_batch(self, read: Callable[..., Any], iterator: Any) -> Any:
        loader = self._iterators.get(iterator) if self.script.runs else None
        if loader is None:
            return read(iterator)
        if loader is self._pause.at and torch.is_grad_enabled():
            return self.script.pause()
        if iterator not in self._anew:
            self._anew[iterator] = DataLoader.__iter__(loader)
        return read(self._anew[iterator])

    def _on_iter(self, begin: Callable[..., Any], loader: Any) -> Any:
        read_by = self._pause.at  # Accelerate's loaders iterate the one inside them
        is_measured = loader is getattr(read_by, "base_dataloader", read_by)
        if not is_measured or not self.script.runs or not torch.is_grad_enabled():
            return begin(loader)
        with without_workers(loader):  # it is not read
            iterator = begin(loader)
        self._iterators[iterator] = read_by
        return iterator

    def _on_backward(self, backward: Callable[..., Any], loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self._losses.append(loss)
        backward(loss, *args, **kwargs)
        self._end_at("backward")

    def _on_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._updated.append(optimizer)
        if self._losses or self._replays or not self._goes_backward:  # else another optimizer's of the same round
            self._end_at("update")

    def _end_at(self, event: str) -> None:
        """Pause the script where this event is the end of its round."""
        lines = self._pause.at
        if event == self._pause.event and self.script.runs and lines in (None, users_lines(lines_up(sys._getframe(2)))):
            self.script.pause()

    def _on_replay(self, replay: Callable[..., Any], graph: Any) -> None:
        self._replays += 1  # the step of a changed file may be a captured one
        replay(graph)


class _TooLong(BaseException):
    """Raised in a round that hangs, for example while it waits for a thread that this process does not have."""


class WholeRounds:
    """Times rounds of a loop: first each statement of its body, then whole rounds without tracing.

    ``synchronize`` waits for the device, so that work of the step is not counted for later statements.
    """

    def __init__(self, step: ScriptStep, synchronize: Callable[[], None]) -> None:
        assert step.loop is not None
        self._step, self._frame, self._synchronize = step, step.loop.where.frame, synchronize
        # The statements of functions of its file that lead to the update, and of the loop; those that do, those behind.
        where = step.loop.where
        inner = itertools.takewhile(lambda one: one[0] is not where.code, step.lines)
        self._blocks = {one: getattr(scope_of(one), "body", []) for one, _ in inner if one.co_filename == where.file}
        self._blocks[where.code] = step.loop.statement.body
        lines = [(one, line) for code, line in step.lines for one in self._blocks.get(code, [])]
        self._updates = [one for one, line in lines if holds(one, line)]  # innermost first
        self._behind = [one for one, line in lines if one.lineno > line]
        self._seconds: defaultdict[ast.stmt, float] = defaultdict(float)
        self._trains: dict[ast.stmt, bool] = {}  # of statements that call modules: whether any with gradients
        self._now: ast.stmt | None = None
        self._since, self._rounds = 0.0, 0

    def times(self) -> RoundTimes | None:
        """The times of rounds. None where a round fails, or none ends."""
        batches = itertools.chain.from_iterable(itertools.repeat(self._step.batches))
        signals = signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, WHOLE_ROUNDS_S)
        found: tuple[int, float] | None = None
        try:
            with self._tracing():
                _, first_s = self._some(batches, 1)
                if first_s < _TIME_S:  # else it is all there is time for, with what the first round alone loads
                    self._seconds.clear()
                    found = self._some(batches)
            found = self._some(batches)
        except _TooLong:  # what came up to then shows what takes so long
            found = found or (self._rounds + 1, sum(self._seconds.values()))
        except Exception:
            return None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signals)
        return self._times(*found) if any(self._seconds.values()) else None

    def _some(self, batches: Iterator[Any], most: int = _MOST_ROUNDS) -> tuple[int, float]:
        """Run some rounds; their number, and how long they took."""
        begun, self._rounds = time.perf_counter(), 0
        while self._rounds < most and time.perf_counter() < begun + _TIME_S:
            self._step(next(batches))
            self._rounds += 1
        self._synchronize()
        return self._rounds, time.perf_counter() - begun

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        self._frame.f_trace = self._look
        self._step.script.begins = lambda: sys.settrace(self._look)
        with module_hooks.register_module_forward_pre_hook(self._look_for_evaluation):
            try:
                yield
            finally:
                self._begin(None)
                self._frame.f_trace = self._step.script.begins = None
                sys.settrace(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        """Note the statement that a line of the loop's body, or of a function on the way to the update, is in."""
        block = self._blocks.get(frame.f_code)
        statement = next((one for one in block or () if holds(one, frame.f_lineno)), None)
        if event == "line" and statement is not self._now:
            self._begin(statement)
        return self._look if block else None  # no other function that is called is looked at

    def _leave(self, *_: Any) -> None:
        raise _TooLong

    def _begin(self, statement: ast.stmt | None) -> None:
        """Note that a statement begins; None for what is in none."""
        if self._now is not None:
            if self._now in self._updates[:1]:
                self._synchronize()
            self._seconds[self._now] += time.perf_counter() - self._since
        self._now, self._since = statement, time.perf_counter()

    def _look_for_evaluation(self, *_: Any) -> None:
        if self._now is not None:
            self._trains[self._now] = self._trains.get(self._now, False) or torch.is_grad_enabled()

    def _times(self, rounds: int, whole_s: float) -> RoundTimes:
        traced_s = sum(self._seconds.values())
        evaluates = [one for one, trains in self._trains.items() if not trains and one not in self._updates]
        shares = {one: self._seconds[one] / traced_s for one in (*self._behind, *evaluates)}
        most = [one for one in sorted(shares, key=lambda one: -shares[one])[:_NAMED] if shares[one] >= _LEAST_SHARE]
        named = tuple(LeftOut(_shown(one), one.lineno, shares[one], one in evaluates) for one in most)
        round_ms = 1e3 * whole_s / rounds
        return RoundTimes(rounds, round_ms, round_ms * (1 - sum(shares.values())), named)


def _shown(statement: ast.stmt) -> str:
    """A statement in one short line."""
    first, _, rest = ast.unparse(statement).partition("\n")
    text = f"{first} …" if rest else first
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
