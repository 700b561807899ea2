"""Phases: how long each part of a step takes, in a pass of its own with a synchronisation at each boundary."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar

import torch

from advisor.records import Phase
from advisor.runtime.step import InferStep, TrainStep
from advisor.trial.feed import Feed

_MOST_STEPS = 20
_FEWEST_STEPS = 3
T = TypeVar("T")


class PhaseTimer:
    """Times named phases of consecutive steps, synchronising the device at the end of each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times_s: dict[str, list[float]] = {}

    def run(self, phase: str, call: Callable[[], T]) -> T:
        """``call()``, its time added to a phase."""
        start = time.perf_counter()
        result = call()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.times_s.setdefault(phase, []).append(time.perf_counter() - start)
        return result

    def medians_ms(self) -> dict[str, float]:
        """The median of each phase, ms, in the order in which a step runs them."""
        return {phase: 1e3 * median(times) for phase, times in self.times_s.items()}


def measure_phases(step: TrainStep | InferStep, feed: Feed, *, limit_s: float) -> dict[str, float]:
    """Milliseconds per phase, the median over several steps; stops after ``limit_s`` when three steps are done."""
    timer = PhaseTimer(step.device)
    started = time.perf_counter()
    for done in range(_MOST_STEPS):
        if done >= _FEWEST_STEPS and time.perf_counter() - started > limit_s:
            break
        batch = timer.run(Phase.DATA_WAIT, feed.next)
        _one_step(step, batch, timer)
    return timer.medians_ms()


def _one_step(step: TrainStep | InferStep, batch: Any, timer: PhaseTimer) -> None:
    moved = timer.run(Phase.HOST_TO_DEVICE, lambda: step.to_device(batch))
    if isinstance(step, InferStep):
        timer.run(Phase.FORWARD, lambda: step.forward(moved))
        return
    timer.run(Phase.ZERO_GRAD, step.zero_grad)
    output = timer.run(Phase.FORWARD, lambda: step.forward(moved))
    loss = timer.run(Phase.LOSS, lambda: step.loss(output, moved))
    timer.run(Phase.BACKWARD, lambda: step.backward(loss))
    timer.run(Phase.OPTIMIZER, step.update)
