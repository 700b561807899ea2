"""How far a session is between two moments at which it tells: a compilation can take a minute, and time goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from advisor.experiment.state import SessionState

# What is left is an estimate. Until the session tells of the next one, there is always something left to do.
_LEAST_LEFT_S = 1.0


class Countdown:
    """Counts down from what the session told last. ``clock`` gives seconds, from anywhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at = clock()

    def told(self) -> None:
        """The session has told just now how far it is."""
        self._told_at = self._clock()

    def now(self, state: SessionState) -> tuple[float, float | None]:
        """The share of the session's time that has passed by now, and the seconds left, None where nobody knows."""
        told_s = state.left_s
        if not told_s or told_s <= _LEAST_LEFT_S:
            return state.progress, told_s
        left_s = max(_LEAST_LEFT_S, told_s - (self._clock() - self._told_at))
        return 1.0 - (1.0 - state.progress) * left_s / told_s, left_s
