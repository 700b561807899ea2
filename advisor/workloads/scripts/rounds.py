"""Times the rounds of a script's loop as they are, and its statements by Python's own tracing of the loop's frame."""

from __future__ import annotations

import ast
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from advisor.python.trees import place_in
from advisor.records import LeftOut, RoundTimes
from advisor.workloads.scripts.running import ScriptStep

# Rounds that are timed, while there is time for more; and the longest that all of it may take. Seconds.
_MOST_ROUNDS, _TIME_S, WHOLE_ROUNDS_S = 64, 1.0, 10.0
# Statements beside the step that are named, and the least share of a round that one has to take. Unitless.
_NAMED, _LEAST_SHARE = 3, 0.01
_LONGEST = 60  # characters of a statement as it is shown


class _TooLong(BaseException):
    """Raised in a round that hangs, for example while it waits for a thread that this process does not have."""


class WholeRounds:
    """Times rounds of a loop: first each statement of its body, then whole rounds without tracing.

    ``synchronize`` waits for the device, so that work of the step is not counted for later statements.
    """

    def __init__(self, step: ScriptStep, synchronize: Callable[[], None]) -> None:
        self._step, self._synchronize = step, synchronize
        self._statements: list[ast.stmt] = step.loop.statement.body
        self._update = place_in(self._statements, step.loop.where.line) % len(self._statements)
        self._seconds = [0.0 for _ in self._statements]
        self._trains: dict[int, bool] = {}  # of statements that call modules: whether any with gradients
        self._now, self._since, self._rounds = -1, 0.0, 0

    def times(self, data: Any) -> RoundTimes | None:
        """The times of rounds on these batches. None where a round fails, or none ends."""
        batches = itertools.chain.from_iterable(itertools.repeat(data))
        signals = signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, WHOLE_ROUNDS_S)
        found: tuple[int, float] | None = None
        try:
            with self._tracing():
                found = self._some(batches, 1)
                if found[1] < _TIME_S:  # else it is all there is time for, with what the first round alone loads
                    self._seconds = [0.0 for _ in self._statements]
                    found = self._some(batches)
            found = self._some(batches)
        except _TooLong:  # what came up to then shows what takes so long
            found = found or (self._rounds + 1, sum(self._seconds))
        except Exception:
            return None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signals)
        return self._times(*found) if any(self._seconds) else None

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
        frame, script = self._step.loop.where.frame, self._step.script
        hook = module_hooks.register_module_forward_pre_hook(self._look_for_evaluation)
        frame.f_trace = self._look
        script.begins = lambda: sys.settrace(lambda *_: None)  # no function that is called is looked at
        try:
            yield
        finally:
            self._begin(-1)
            frame.f_trace = script.begins = None
            sys.settrace(None)
            hook.remove()

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        """Note the statement of the body that a line of the loop's frame is in."""
        if event == "line" and (at := place_in(self._statements, frame.f_lineno)) != self._now:
            self._begin(at)
        return self._look

    def _leave(self, *_: Any) -> None:
        raise _TooLong

    def _begin(self, statement: int) -> None:
        """Note that a statement begins; -1 for none."""
        if self._now >= 0:
            if self._now == self._update:
                self._synchronize()
            self._seconds[self._now] += time.perf_counter() - self._since
        self._now, self._since = statement, time.perf_counter()

    def _look_for_evaluation(self, *_: Any) -> None:
        if self._now >= 0:
            self._trains[self._now] = self._trains.get(self._now, False) or torch.is_grad_enabled()

    def _times(self, rounds: int, whole_s: float) -> RoundTimes:
        traced_s = sum(self._seconds)
        evaluates = {at for at, trains in self._trains.items() if not trains}
        beside = [at for at in range(len(self._seconds)) if at > self._update or at in evaluates - {self._update}]
        shares = sorted(((self._seconds[at] / traced_s, at) for at in beside), reverse=True)
        named = (
            LeftOut(_shown(self._statements[at]), self._statements[at].lineno, share, at in evaluates)
            for share, at in shares[:_NAMED]
            if share >= _LEAST_SHARE
        )
        round_ms = 1e3 * whole_s / rounds
        return RoundTimes(rounds, round_ms, round_ms * (1 - sum(share for share, _ in shares)), tuple(named))


def _shown(statement: ast.stmt) -> str:
    """A statement in one short line."""
    first, _, rest = ast.unparse(statement).partition("\n")
    text = f"{first} …" if rest else first
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
