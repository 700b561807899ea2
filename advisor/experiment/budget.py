"""The budget: wall seconds of a session, and what a trial may take of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from copy import copy
from statistics import median

_SHORTEST_MEASURE_S = 0.5
_LONGEST_MEASURE_S = 3.0
_MEASURE_SHARE = 0.015
# A guess until one has been seen. On an H200's host trials that compiled training took 33 s for a ResNet-50 of 161
# parameter tensors, 27 s for a GPT-2 of 148, 24 s for a ResNet-18 of 62 and 11 s for an MLP of 48; for inference the
# ResNet-50 took 14 s.
_COMPILE_S = 6.0
_COMPILE_S_PER_TENSOR = 0.15
_FORWARD_SHARE = 0.4
_MID_SIZE_TENSORS = 100
_LONGEST_TRIAL_SHARE = 0.5
_REPEAT_SHARE = 0.15
# Importing torch, building a large model and its first steps can take this long before anything is known. A shorter
# budget leaves less for that, but not so little that most baselines would be lost.
_FIRST_TRIAL_S = 120.0
_SHORTEST_FIRST_TRIAL_S = 60.0
# However little is left, a trial that was started may take so many times as long as is expected.
_FEWEST_TIMES, _FEWEST_TIMES_GUESSED = 2.0, 5.0
# An ordinary trial, one that compiles nothing, hangs when it takes so many times as long as usual, and some seconds.
_HANGS_AFTER = 10.0
_HANGS_AFTER_S = 30.0


class Budget:
    """Keeps the time of a session. ``clock`` is injectable for tests.

    ``baseline_s`` is what a trial like the baseline takes, less inspecting and profiling; None before it is measured.
    ``interpreter_s`` is what a trial in a fresh interpreter takes beside: it imports torch and builds the target again.
    """

    def __init__(self, total_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_s = total_s
        self._clock = clock
        self._started = clock()
        self._walls: list[float] = []
        self._compile_walls: list[float] = []
        self.repeated_s = 0.0
        self.baseline_s: float | None = None
        self.interpreter_s = 0.0
        self.parameter_tensors = _MID_SIZE_TENSORS
        self.compiles_backward = True
        self.hinted_compile_s: float | None = None

    def renewed(self) -> Budget:
        """A budget as long as this one that begins now, and knows already what trials take."""
        fresh = copy(self)
        fresh._walls, fresh._compile_walls = list(self._walls), list(self._compile_walls)
        fresh._started, fresh.repeated_s = self._clock(), 0.0
        return fresh

    @property
    def spent_s(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._started

    @property
    def first_compile_s(self) -> float:
        """What compiling takes before that has been seen: as in an earlier session, or by the number of parameters."""
        if self.hinted_compile_s is not None:
            return self.hinted_compile_s
        share = 1.0 if self.compiles_backward else _FORWARD_SHARE
        return _COMPILE_S + _COMPILE_S_PER_TENSOR * share * self.parameter_tensors

    @property
    def compile_s(self) -> float | None:
        """What the longest trial that compiled has taken, relative to its cost; None before there was one."""
        return max(self._compile_walls, default=None)

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
        """How long a trial may warm up after its first steps."""
        return 1.5 * self.measure_s

    def timeout_s(self, reserve_s: float = 0.0) -> float:
        """When a trial counts as hanging: what is left less a reserve, half the budget at most.

        It is never less than a few times what a trial takes, which is but a guess before one was seen; the first may
        need long, for nothing is known before it.
        """
        first_s = max(_SHORTEST_FIRST_TRIAL_S, min(_FIRST_TRIAL_S, self.total_s))
        times = _FEWEST_TIMES if self._walls else _FEWEST_TIMES_GUESSED
        shortest = times * self.expected_s() if self._knows_trials else first_s
        return max(shortest, min(self.left_s - reserve_s, _LONGEST_TRIAL_SHARE * self.total_s))

    @property
    def patience_s(self) -> float:
        """When an ordinary trial counts as hanging, however much is left: the others need that."""
        return _HANGS_AFTER * self.expected_s() + _HANGS_AFTER_S if self._knows_trials else math.inf

    @property
    def _knows_trials(self) -> bool:
        return bool(self._walls) or self.baseline_s is not None

    def saw(self, wall_s: float, *, cost: float) -> None:
        """Learn what a trial took. ``cost`` is 0 for an ordinary one, else what its recipe says of its compilation."""
        if cost:
            self._compile_walls.append(wall_s / cost)
        else:
            self._walls.append(wall_s)

    def expected_s(self, *, cost: float = 0.0) -> float:
        """What the next trial is expected to take; ``cost`` as in :meth:`saw`."""
        guess_s = max(2 * self.measure_s + 1, self.baseline_s or 0.0)
        ordinary = median(self._walls[-5:]) if self._walls else guess_s
        if not cost:
            return ordinary
        return cost * max(self._compile_walls, default=self.first_compile_s + ordinary)

    def allows_repeat(self, expected_s: float) -> bool:
        """Whether a disturbed trial may be measured again: repeats get a fixed share of the budget."""
        return self.repeated_s + expected_s <= _REPEAT_SHARE * self.total_s and self.allows(2 * expected_s)

    def allows(self, expected_s: float, *, reserve_s: float = 0.0) -> bool:
        """Whether something of this length, and what must come after it, still fits."""
        return expected_s + reserve_s <= self.left_s
