"""Warm-up until the step time is steady, forward and backward, compilation and autotuning included."""

from __future__ import annotations

import time
from dataclasses import dataclass

from advisor.trial.measurement.clock import CycleOf, StepClock, block_steps

_WINDOW_S = 0.05
_LONGEST_WINDOW_S = 0.4
_FEWEST_WINDOWS = 3
_FEWEST_STEPS = 5
_STEADY = 0.05


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The way to the steady state; ``step_s`` is the step time at the end."""

    seconds: float
    steps: int
    step_s: float
    steady: bool


def warm_up(
    clock: StepClock, *, limit_s: float, at_least: int = 0, cold: bool = True, cycle_of: CycleOf = lambda most: 1
) -> WarmUp:
    """Run steps until two windows in a row agree within 5 %, or ``limit_s`` has passed since the first step ended.

    The limit does not include the first step, which may compile for minutes. ``at_least`` further steps always run.
    After earlier steps (``cold`` is false) a single step longer than ``limit_s`` is enough.
    Windows hold whole cycles of the data, by ``cycle_of``.
    """
    start = time.perf_counter()
    first = clock.run(1)
    if first.seconds > limit_s and not at_least and not cold:
        return WarmUp(first.seconds, 1, first.seconds, steady=True)
    since = time.perf_counter()
    steps, windows = 1, [first.seconds]
    needed = max(_FEWEST_STEPS, at_least)
    while True:
        step_s = min(windows[-3:])
        block = clock.run(block_steps(_WINDOW_S, step_s, cycle_of, longest_s=_LONGEST_WINDOW_S))
        steps += block.steps
        windows.append(block.seconds / block.steps)
        steady = _steady(windows) and steps >= needed
        if steady or time.perf_counter() - since > limit_s:
            return WarmUp(time.perf_counter() - start, steps, min(windows[-2:]), steady)


def _steady(windows: list[float]) -> bool:
    """Whether the last window is neither faster nor slower than the one before by more than the tolerance."""
    if len(windows) < _FEWEST_WINDOWS + 1:
        return False
    last, before = windows[-1], windows[-2]
    return abs(last - before) <= _STEADY * before
