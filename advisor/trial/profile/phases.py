"""Phases: the time of each part of a step, waiting at each boundary."""

import time
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from advisor.machine.device import backend_of
from advisor.records import Phase
from advisor.step.graph import GraphedStep
from advisor.step.step import InferStep, OwnStep, TrainStep
from advisor.trial.measurement.feed import Feed

_MOST_STEPS = 20
_FEWEST_STEPS = 3
# The part of a step that is replayed as one graph.
CAPTURED = "captured step"

# Runs a call as the named phase of a step, and returns what it returns.
RunPhase = Callable[[str, Callable[[], Any]], Any]


def measure_phases(step: TrainStep | InferStep | GraphedStep, feed: Feed, *, limit_s: float) -> dict[str, float]:
    """Milliseconds per phase over several steps, each waited for. A captured step has two: its batch and its replay.

    They are medians, and the mean of the waits for data: where every fourth batch takes long, the usual wait is none,
    and yet the loop waits. Stops after ``limit_s`` when three steps are done, after twice that when one is.
    """
    times_s: dict[str, list[float]] = {}
    backend = backend_of(step.device)

    def timed(phase: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        backend.synchronize()
        times_s.setdefault(phase, []).append(time.perf_counter() - start)
        return result

    started = time.perf_counter()
    for done in range(_MOST_STEPS):
        limit = limit_s if done >= _FEWEST_STEPS else 2 * limit_s
        if done and time.perf_counter() - started > limit:
            break
        run_in_phases(step, feed, timed)
    return {phase: 1e3 * (fmean if phase == Phase.DATA_WAIT else median)(times) for phase, times in times_s.items()}


def run_in_phases(step: TrainStep | InferStep | GraphedStep, feed: Feed, run: RunPhase) -> None:
    """One step of the timed loop in its phases, each of them run by ``run``."""
    batch = run(Phase.DATA_WAIT, feed.next)
    if isinstance(step, GraphedStep):
        run(CAPTURED, lambda: step(batch))
        return
    moved = run(Phase.HOST_TO_DEVICE, lambda: step.to_device(batch))
    if isinstance(step, InferStep):
        step.begin_graphs()
        run(Phase.OWN_STEP if isinstance(step, OwnStep) else Phase.FORWARD, lambda: step.forward(moved))
        return
    run(Phase.ZERO_GRAD, step.zero_grad)
    step.begin_graphs()
    output = run(Phase.FORWARD, lambda: step.forward(moved))
    loss = run(Phase.LOSS, lambda: step.loss(output, moved))
    run(Phase.BACKWARD, lambda: step.backward(loss))
    run(Phase.OPTIMIZER, step.update)
    step.finish(loss.detach())
