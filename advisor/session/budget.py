"""The budget: wall seconds of a session, and what a trial may take of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

_SHORTEST_MEASURE_S = 0.5
_LONGEST_MEASURE_S = 3.0
_MEASURE_SHARE = 0.015
# Before one has been seen: the compilation of a mid-size model, on either device.
_FIRST_COMPILE_S = 30.0
_LONGEST_TRIAL_SHARE = 0.5


class Budget:
    """Keeps the time of a session. ``clock`` is injectable for tests."""

    def __init__(self, total_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_s = total_s
        self._clock = clock
        self._started = clock()
        self._walls: list[float] = []
        self._compile_walls: list[float] = []

    @property
    def spent_s(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._started

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.total_s - self.spent_s)

    @property
    def measure_s(self) -> float:
        """How long one trial measures."""
        return min(_LONGEST_MEASURE_S, max(_SHORTEST_MEASURE_S, _MEASURE_SHARE * self.total_s))

    @property
    def warmup_limit_s(self) -> float:
        """How long a trial may warm up after its first step."""
        return 2 * self.measure_s

    @property
    def timeout_s(self) -> float:
        """When a trial counts as hanging: what is left, or half the budget if that is less, but never under 10 s."""
        return max(10.0, min(self.left_s, _LONGEST_TRIAL_SHARE * self.total_s))

    def saw(self, wall_s: float, *, expensive: bool) -> None:
        """Learn what a trial took."""
        (self._compile_walls if expensive else self._walls).append(wall_s)

    def expected_s(self, *, expensive: bool = False) -> float:
        """What the next trial is expected to take."""
        ordinary = median(self._walls[-5:]) if self._walls else 2 * self.measure_s + 1
        if not expensive:
            return ordinary
        return max(self._compile_walls[-3:], default=_FIRST_COMPILE_S + ordinary)

    def allows(self, expected_s: float, *, reserve_s: float = 0.0) -> bool:
        """Whether something of this length, and what must come after it, still fits."""
        return expected_s + reserve_s <= self.left_s
