"""Phases: how long each part of a step takes, in a pass of its own with a synchronisation at each boundary."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean, median
from typing import Any, Protocol, TypeVar

import torch

from advisor.machine.device import backend_of
from advisor.portable.graphed import GraphedStep
from advisor.records import Phase
from advisor.runtime.step import InferStep, OwnStep, TrainStep
from advisor.trial.measurement.feed import Feed

_MOST_STEPS = 20
_FEWEST_STEPS = 3
# Beyond the limit as many times, even the fewest steps are too many.
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
    """The same of a step as it was timed: a captured one has no parts but the wait for its batch and its replay."""
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
    step.after(loss.detach())
