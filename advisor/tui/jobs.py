"""The session's blocking calls, one after another, each in a thread worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from advisor.tui.pacing import Timer


@dataclass(frozen=True, slots=True)
class Job:
    """A blocking call and what the status bar says while it lasts; the ``trial`` that it runs, if it is one."""

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
        """Do not add what :meth:`add_later` was given."""
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
