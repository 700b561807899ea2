"""Phases: the time of each part of a step, waiting at each boundary; and the same step by several clocks."""

import time
from collections.abc import Callable
from statistics import fmean, median
from typing import Any, Protocol, TypeVar

import torch

from advisor.machine.device import backend_of
from advisor.records import ClockCheck, Phase
from advisor.step.graph import GraphedStep
from advisor.step.step import InferStep, OwnStep, TrainStep
from advisor.trial.measurement.clock import StepClock
from advisor.trial.measurement.feed import Feed

_MOST_STEPS = 20
_FEWEST_STEPS = 3
# Past this multiple of the limit even the fewest steps are not completed. Unitless.
_PATIENCE = 2
# The part of a step that is replayed as one graph.
CAPTURED = "captured step"
T = TypeVar("T")


class RunPhase(Protocol):
    """Runs a call as a phase of a step and returns what it returns."""

    def __call__(self, phase: Phase, call: Callable[[], T], /) -> T:
        """``call()``, as this phase."""
        ...


class PhaseTimer:
    """Times named phases of consecutive steps, synchronising the device at the end of each."""

    def __init__(self, device: torch.device) -> None:
        self._backend = backend_of(device)
        self.times_s: dict[str, list[float]] = {}

    def run(self, phase: str, call: Callable[[], T]) -> T:
        """``call()``, its time added to a phase."""
        start = time.perf_counter()
        result = call()
        self._backend.synchronize()
        self.times_s.setdefault(phase, []).append(time.perf_counter() - start)
        return result

    def typical_ms(self) -> dict[str, float]:
        """Each phase in ms, in the order in which a step runs them: medians, and the mean of the waits for data.

        Where every fourth batch takes long, the usual wait is none, and yet the loop waits.
        """
        return {
            phase: 1e3 * (fmean if phase == Phase.DATA_WAIT else median)(times) for phase, times in self.times_s.items()
        }


def measure_phases(step: TrainStep | InferStep, feed: Feed, *, limit_s: float) -> dict[str, float]:
    """Milliseconds per phase over several steps, each waited for.

    Stops after ``limit_s`` when three steps are done, after twice that when one is.
    """
    timer = PhaseTimer(step.device)
    started = time.perf_counter()
    for done in range(_MOST_STEPS):
        elapsed_s = time.perf_counter() - started
        if elapsed_s > (limit_s if done >= _FEWEST_STEPS else _PATIENCE * limit_s) and done:
            break
        run_in_phases(step, feed, timer.run)
    return timer.typical_ms()


def measure_parts(step: TrainStep | InferStep | GraphedStep, feed: Feed, *, limit_s: float) -> dict[str, float]:
    """The phases of a step as it was timed. A captured step has two: the wait for its batch, and its replay."""
    if not isinstance(step, GraphedStep):
        return measure_phases(step, feed, limit_s=limit_s)
    timer, started = PhaseTimer(step.device), time.perf_counter()
    for done in range(_MOST_STEPS):
        if done >= _FEWEST_STEPS and time.perf_counter() - started > limit_s:
            break
        batch = timer.run(Phase.DATA_WAIT, feed.next)
        timer.run(CAPTURED, lambda batch=batch: step(batch))  # type: ignore[misc]
    return timer.typical_ms()


def run_in_phases(step: TrainStep | InferStep, feed: Feed, run: RunPhase) -> None:
    """One step of the timed loop in its phases, each of them run by ``run``."""
    batch = run(Phase.DATA_WAIT, feed.next)
    moved = run(Phase.HOST_TO_DEVICE, lambda: step.to_device(batch))
    if isinstance(step, InferStep):
        step.begin_graphs()
        run(Phase.OWN_STEP if isinstance(step, OwnStep) else Phase.FORWARD, lambda: step.forward(moved))
    else:
        _train_in_phases(step, moved, run)


def _train_in_phases(step: TrainStep, batch: Any, run: RunPhase) -> None:
    run(Phase.ZERO_GRAD, step.zero_grad)
    step.begin_graphs()
    output = run(Phase.FORWARD, lambda: step.forward(batch))
    loss = run(Phase.LOSS, lambda: step.loss(output, batch))
    run(Phase.BACKWARD, lambda: step.backward(loss))
    run(Phase.OPTIMIZER, step.update)
    step.finish(loss.detach())


_LIMIT_S = 0.1
_FEWEST_READINGS = 1
_MOST_READINGS = 20
# Few, as people do it, and so that the launches fit into the device's queue: a host that meets a full queue waits.
_NAIVE_STEPS = 5
_QUEUED_LAUNCHES = 1000
_WARM_STEPS = 2
_LONG_STEP_MS = 1000.0


def check_clocks(clock: StepClock, block_ms: float, kernels_per_step: float | None) -> ClockCheck:
    """The same steps under each clock, medians in ms; ``block_ms`` is the result of the timed blocks.

    The steps run in the timed loop, their data included. The naive clock starts from an empty queue and times so few
    steps that their kernels do not fill it, or it would wait for the device after all.
    """
    steps = max(_FEWEST_READINGS, min(_MOST_READINGS, round(1e3 * _LIMIT_S / block_ms)))
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
