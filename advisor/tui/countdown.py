"""The time left and the running trial's seconds, between two moments at which the session tells of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from advisor.experiment.state import SessionState

# What is left is an estimate. Until the session tells of the next one, there is always something left to do.
_LEAST_LEFT_S = 1.0
# A new estimate that is later than the last by less than this changes nothing, in seconds.
_TOLERANCE_S = 2.0


class Countdown:
    """Counts down from what the session told last. ``clock`` gives seconds, from anywhere.

    What is shown never rises, unless the session has found more to do: ``rise_s`` says then by how much.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at: float | None = None
        self._told_s = 0.0
        self._held_s: float | None = None
        self._began_at = self._trial_began_at = clock()
        self.rise_s = 0.0

    def update(self, state: SessionState) -> None:
        """The session has told just now how far it is."""
        told_s, now = state.left_s, self._clock()
        if told_s is None:
            return
        before_s = None if self._ends_at is None else max(0.0, self._ends_at - now)
        self._told_s, self.rise_s = told_s, 0.0
        if before_s is not None and told_s > before_s:
            if told_s <= before_s + _TOLERANCE_S:
                return
            self.rise_s = told_s - before_s
        self._ends_at = now + told_s

    def begin_anew(self) -> None:
        """Forget the last estimate: the person has asked for more, so a later end is no surprise."""
        self._ends_at, self.rise_s = None, 0.0

    def hold(self, *, waiting: bool) -> None:
        """Stand still while the session waits, and go on after that."""
        now = self._clock()
        if waiting and self._ends_at is not None:
            self._held_s = self._ends_at - now
        elif not waiting and self._held_s is not None:
            self._ends_at, self._held_s = now + self._held_s, None

    def trial_began(self) -> None:
        """A trial has begun just now."""
        self._trial_began_at = self._clock()

    @property
    def session_s(self) -> float:
        """Seconds since the session was opened."""
        return self._clock() - self._began_at

    @property
    def trial_s(self) -> float:
        """Seconds since the running trial began."""
        return self._clock() - self._trial_began_at

    def now(self, state: SessionState) -> tuple[float, float | None]:
        """The share of the session's time that has passed by now, and the seconds left, None where nobody knows."""
        if self._ends_at is None or not state.left_s or self._told_s <= _LEAST_LEFT_S:
            return state.progress, state.left_s
        left_s = self._ends_at - self._clock() if self._held_s is None else self._held_s
        left_s = max(_LEAST_LEFT_S, left_s)
        return 1.0 - (1.0 - state.progress) * min(1.0, left_s / self._told_s), left_s
