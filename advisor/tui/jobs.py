"""The session's blocking calls, one after another, each in a thread worker; and the moments of drawing."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.timer import Timer


@dataclass(frozen=True, slots=True)
class Job:
    """A blocking call and its text in the status bar; the ``trial`` that it runs, if it is one."""

    name: str
    call: Callable[[], None]
    trial: str = ""


class Jobs:
    """A queue with at most one running job. ``start`` runs a job and must lead to :meth:`done` when it ends.

    ``after`` calls something some seconds later.
    """

    def __init__(self, start: Callable[[Job], None], after: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._start = start
        self._after = after
        self._waiting: deque[Job] = deque()
        self._later: tuple[Job, Timer] | None = None
        self.running: Job | None = None

    @property
    def busy_with(self) -> str:
        """The name of the job that runs or is about to, empty when there is none."""
        if self.running:
            return self.running.name
        return self._later[0].name if self._later else ""

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of the trials that were asked for and have not begun."""
        return tuple(job.trial for job in self._waiting if job.trial)

    def add(self, job: Job) -> None:
        """Run a job when its turn comes. One that waits already under the same name is not added again."""
        if any(job.name == other.name for other in self._waiting):
            return
        self._waiting.append(job)
        self._next()

    def add_later(self, job: Job, delay_s: float) -> None:
        """Add a job when nothing has been added in this way for ``delay_s``: only the last of several is run."""
        self.forget_later()
        self._later = job, self._after(delay_s, self._add_now)

    def forget_later(self) -> None:
        """Drop the job that :meth:`add_later` was given."""
        if self._later:
            self._later[1].stop()
            self._later = None

    def done(self) -> None:
        """The running job has ended."""
        self.running = None
        self._next()

    def clear(self) -> None:
        """Forget the jobs that have not begun."""
        self.forget_later()
        self._waiting.clear()

    def _add_now(self) -> None:
        if self._later:
            job, _ = self._later
            self._later = None
            self.add(job)

    def _next(self) -> None:
        if self.running is None and self._waiting:
            self.running = self._waiting.popleft()
            self._start(self.running)


class Pace:
    """Calls ``draw`` for news, at most once in ``interval_s``, and always after the last of them.

    ``after`` calls something some seconds later. Whatever draws for another reason says so with :meth:`drawn`.
    """

    def __init__(
        self, draw: Callable[[], None], after: Callable[[float, Callable[[], None]], Timer], interval_s: float
    ) -> None:
        self._draw = draw
        self._after = after
        self._interval_s = interval_s
        self._drawn_at = -math.inf
        self._next: Timer | None = None

    @property
    def due(self) -> bool:
        """Whether there is news that has not been drawn yet."""
        return self._next is not None

    def request_draw(self) -> None:
        """Draw now or, shortly after a draw, once the interval is over."""
        wait_s = self._drawn_at + self._interval_s - time.monotonic()
        if wait_s <= 0:
            self._draw()
        elif self._next is None:
            self._next = self._after(wait_s, self._draw_what_is_due)

    def _draw_what_is_due(self) -> None:
        """Draw, unless something else did while the timer's call waited for its turn: stopping it came too late."""
        if self.due:
            self._draw()

    def drawn(self) -> None:
        """All that is known is on screen. The interval begins now: where drawing is slow, keys get their turn."""
        self._drawn_at = time.monotonic()
        if self._next:
            self._next.stop()
            self._next = None
