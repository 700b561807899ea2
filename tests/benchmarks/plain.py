"""The plain loop by which all in the table is timed. It shares no code with the trials.

Training runs ``for batch in batches: step(batch)``, and so does inference. The device is synchronised at the ends of
a block only: of some steps on one batch, or of some epochs of a loader. Where epochs are short, to wait for the device
at the end of each would keep the loader's workers waiting as well, as no loop that trains for hours does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch

# Compiling, choosing algorithms and capturing a graph happen in the first steps.
FIRST_STEPS = 6
BLOCKS, LEAST_BLOCKS = 5, 3
STEADY, SETTLING_S = 0.03, 5.0


@dataclass(frozen=True)
class Timed:
    """Milliseconds per step: the median, and each block's. ``warmup_s`` is what went before, compilation included."""

    step_ms: float
    blocks_ms: list[float]
    warmup_s: float


def time_loop(step: Callable[[Any], Any], data: Any, timed_s: float) -> Timed:
    """Time ``step`` on one batch (a tuple), or on the batches of a loader, for about ``timed_s`` seconds.

    Raises FloatingPointError when the last result is not finite: what computes nothing may be as fast as it likes.
    """
    started = time.perf_counter()
    batches = _batches(step, data, timed_s)
    _settle(step, batches)
    warmup_s = time.perf_counter() - started
    blocks_ms: list[float] = []
    started = time.perf_counter()
    while len(blocks_ms) < LEAST_BLOCKS or time.perf_counter() - started < timed_s:
        step_s, result = run(step, batches())
        blocks_ms.append(1e3 * step_s)
    if not torch.isfinite(result).all():
        raise FloatingPointError("the loss or the output is not finite")
    return Timed(statistics.median(blocks_ms), blocks_ms, warmup_s)


def run(step: Callable[[Any], Any], batches: Iterable[Any]) -> tuple[float, Any]:
    """Seconds per step over these batches, and the last step's result."""
    steps, result = 0, None
    started = time.perf_counter()
    for batch in batches:
        result = step(batch)
        steps += 1
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps, result


def _batches(step: Callable[[Any], Any], data: Any, timed_s: float) -> Callable[[], Iterable[Any]]:
    """What yields the batches of a block."""
    if not isinstance(data, tuple):
        epochs = max(1, round(timed_s / BLOCKS / _epoch_s(step, data)))
        return lambda: chain.from_iterable(repeat(data, epochs))
    single_s = [run(step, [data])[0] for _ in range(FIRST_STEPS)][-1]
    return lambda: repeat(data, max(1, round(timed_s / BLOCKS / single_s)))


def _epoch_s(step: Callable[[Any], Any], loader: Iterable[Any]) -> float:
    """Seconds of an epoch, the second one: in the first a step compiles, is captured, and workers start."""
    run(step, loader)
    started = time.perf_counter()
    run(step, loader)
    return time.perf_counter() - started


def _settle(step: Callable[[Any], Any], batches: Callable[[], Iterable[Any]]) -> None:
    """Run blocks until one is no faster than the one before it."""
    started = time.perf_counter()
    before, now = float("inf"), run(step, batches())[0]
    while now < before * (1 - STEADY) and time.perf_counter() - started < SETTLING_S:
        before, now = now, run(step, batches())[0]
