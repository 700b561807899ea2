"""The clocks compared: what a clock that people put around a step says of it, and what the block clock says."""

from __future__ import annotations

import time
from statistics import median

from advisor.records import ClockCheck
from advisor.trial.measurement.clock import StepClock

_LIMIT_S = 0.1
_FEWEST_STEPS = 1
_MOST_STEPS = 20
# Few, as people do it, and so that the launches fit into the device's queue: a host that meets a full queue waits.
_NAIVE_STEPS = 5
_QUEUED_LAUNCHES = 1000
_WARM_STEPS = 2
_LONG_STEP_MS = 1000.0


def check_clocks(clock: StepClock, block_ms: float, kernels_per_step: float | None) -> ClockCheck:
    """The same steps under each clock, medians in ms; ``block_ms`` is what the timed blocks said of them.

    The steps run in the timed loop, their data included. The naive clock starts from an empty queue and times so few
    steps that their kernels do not fill it, or it would wait for the device after all.
    """
    steps = max(_FEWEST_STEPS, min(_MOST_STEPS, round(1e3 * _LIMIT_S / block_ms)))
    naive_steps = max(1, min(_NAIVE_STEPS, steps, int(_QUEUED_LAUNCHES / (kernels_per_step or 1))))
    if block_ms < _LONG_STEP_MS:
        clock.run(min(_WARM_STEPS, steps))
    return ClockCheck(
        naive_ms=_naive_ms(clock, naive_steps),
        synchronized_ms=median(clock.run(1).step_ms for _ in range(steps)),
        block_ms=block_ms,
        events_ms=_events_ms(clock, steps),
    )


def _naive_ms(clock: StepClock, steps: int) -> float:
    """The reading of a host clock around each step when nothing waits for the device."""
    clock.synchronize()
    times_s = []
    for _ in range(steps):
        start = time.perf_counter()
        clock.run_steps(1)
        times_s.append(time.perf_counter() - start)
    clock.synchronize()
    return 1e3 * median(times_s)


def _events_ms(clock: StepClock, steps: int) -> float | None:
    """The reading of the device's events at the step boundaries; None on the CPU, which has none."""
    if not clock.backend.is_ahead:
        return None
    timed = StepClock(clock.device, clock.run_steps)
    timed.time_single_steps(steps)
    return median(timed.step_ms)
