"""Tells when a round of a script's loop is over, and times its parts, by Python's own tracing of the loop's frame."""

from __future__ import annotations

import ast
import itertools
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from advisor.python.positions import Loop
from advisor.records import LeftOut, RoundTimes
from advisor.workloads.scripts.loops import shown


class RoundTrace:
    """Calls ``ended`` in the loop's own frame after each round, from the one on that is at ``line``.

    ``ended`` is told whether the loop was left. What it raises is raised there: no generator that the loop reads and no
    function that it calls is left in the middle. An error of the script's own passes through.
    """

    def __init__(self, frame: FrameType, loop: Loop, line: int, ended: Callable[[bool], None]) -> None:
        self._frame = frame
        self._loop = loop
        self._ended = ended
        self._before: Any = None
        self._raises = False
        # A `while True` has no line of its own in a round; its first statement may be a loop, and come several times.
        self._has_left_first = not _holds(loop.body[0], line)

    def begin(self) -> None:
        """Look at each further line of the frame."""
        self._before = sys.gettrace()
        self._frame.f_trace = self._look
        sys.settrace(lambda *_: None)  # no function that is called is looked at

    def end(self) -> None:
        """Look no more."""
        self._frame.f_trace = None
        sys.settrace(self._before)

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        left = self._is_left(frame.f_lineno) if event == "line" else event == "return" and not self._raises
        self._raises = event == "exception"
        if left or (event == "line" and self._begins_round(frame.f_lineno)):
            self._has_left_first = False
            self._ended(left)
        return self._look

    def _is_left(self, line: int) -> bool:
        """Whether a line that the frame comes to is outside the loop, or in what follows its last round."""
        return not _holds(self._loop, line) or any(_holds(one, line) for one in self._loop.orelse)

    def _begins_round(self, line: int) -> bool:
        """Whether a line of the loop that the frame comes to is its head, or its first statement again."""
        first = self._loop.body[0]
        if line < first.lineno:
            return True
        begins_again = line == first.lineno and self._has_left_first
        self._has_left_first = self._has_left_first or not _holds(first, line)
        return begins_again and (isinstance(self._loop, ast.While) or line == self._loop.lineno)


def _holds(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


# Rounds that are timed, while there is time for more; and the longest that all of it may take. Seconds.
_MOST_ROUNDS, _TIME_S, WHOLE_ROUNDS_S = 64, 2.0, 10.0
# Statements beside the step that are named, and the least share of a round that one has to take. Unitless.
_NAMED, _LEAST_SHARE = 3, 0.01


class _TooLong(BaseException):
    """Raised in a round that stands still, as one that waits for a thread which is not in this process."""


class WholeRounds:
    """Times rounds of a loop as they are written, from each statement of its body to the next.

    ``synchronize`` waits for the device: what the step launched is not the time of what follows it.
    """

    def __init__(self, body: Any, synchronize: Callable[[], None]) -> None:
        self._body = body
        self._synchronize = synchronize
        self._statements = body.loop.statement.body
        places = range(len(self._statements))
        self._step = next((at for at in places if _holds(self._statements[at], body.loop.update)), places[-1])
        self._seconds = [0.0 for _ in places]
        self._evaluates: set[int] = set()
        self._now, self._since, self._rounds = -1, 0.0, 0
        body.mark_statements(self._begin)

    def times(self, data: Any) -> RoundTimes | None:
        """The times of rounds on these batches. None where a round fails, or none ends."""
        signals = signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, WHOLE_ROUNDS_S)
        hook = module_hooks.register_module_forward_pre_hook(self._look)
        until = time.perf_counter() + _TIME_S
        try:
            for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(data)), _MOST_ROUNDS):
                self._begin(-1)
                self._body(batch)
                self._begin(-1)
                self._rounds += 1
                if time.perf_counter() > until:
                    break
        except _TooLong:  # what came up to then shows what takes so long
            self._begin(-1)
            self._rounds += 1
        except Exception:
            return None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signals)
            hook.remove()
        return self._times() if self._rounds else None

    def _leave(self, *_: Any) -> None:
        raise _TooLong

    def _begin(self, statement: int) -> None:
        """Note that a statement begins; -1 for none."""
        if self._now >= 0:
            if self._now == self._step:
                self._synchronize()
            self._seconds[self._now] += time.perf_counter() - self._since
        self._now, self._since = statement, time.perf_counter()

    def _look(self, *_: Any) -> None:
        if self._now >= 0 and not torch.is_grad_enabled():
            self._evaluates.add(self._now)

    def _times(self) -> RoundTimes:
        whole_s = sum(self._seconds)
        beside = [
            at for at in range(len(self._seconds)) if at > self._step or (at in self._evaluates and at < self._step)
        ]
        shares = sorted(((self._seconds[at] / whole_s, at) for at in beside), reverse=True)
        named = (
            LeftOut(shown(self._statements[at]), self._statements[at].lineno, share, at in self._evaluates)
            for share, at in shares[:_NAMED]
            if share >= _LEAST_SHARE
        )
        step_s = whole_s - sum(self._seconds[at] for at in beside)
        return RoundTimes(self._rounds, 1e3 * whole_s / self._rounds, 1e3 * step_s / self._rounds, tuple(named))
