"""The session's blocking calls, one after another, each in a thread worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A blocking call and what the status bar says while it lasts."""

    name: str
    call: Callable[[], None]


class Jobs:
    """A queue with at most one running job. ``start`` runs a job and must lead to :meth:`done` when it ends."""

    def __init__(self, start: Callable[[Job], None]) -> None:
        self._start = start
        self._waiting: deque[Job] = deque()
        self.running: Job | None = None

    def add(self, job: Job) -> None:
        """Run a job when its turn comes. One that waits already under the same name is not added again."""
        if any(job.name == other.name for other in self._waiting):
            return
        self._waiting.append(job)
        self._next()

    def done(self) -> None:
        """The running job has ended."""
        self.running = None
        self._next()

    def clear(self) -> None:
        """Forget the jobs that have not begun."""
        self._waiting.clear()

    def _next(self) -> None:
        if self.running is None and self._waiting:
            self.running = self._waiting.popleft()
            self._start(self.running)
