"""The plain loop that times every variant of the benchmark. It shares no code with the trials.

Training runs ``for batch in batches: step(batch)``, and so does inference. The device is synchronised at the ends of a
block only: a block is some steps on one batch, or some epochs of a loader. Synchronising after each short epoch would
keep the loader's workers waiting, which a loop that trains for hours does not do.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

FIRST_STEPS = 6  # steps in which compiling, choosing algorithms and capturing a graph happen
BLOCKS, LEAST_BLOCKS, LEAST_LONG_EPOCHS = 5, 3, 2
# A block of short epochs has at least so many: its end, where the device is waited for, is then a small part of it.
LEAST_SHORT_EPOCHS = 4
# A loop is steady when a block is not faster than the one before by more than this share.
STEADY, SETTLING_S = 0.03, 5.0
# Epochs that take longer, in seconds, are timed twice only, and without settling: they average over many steps.
LONG_EPOCH_S = 1.0
ONE_BATCH = (tuple, dict, torch.Tensor)


@dataclass(frozen=True)
class Timed:
    """Milliseconds per step: the median, and each block's. ``warmup_s`` is what went before, compilation included."""

    step_ms: float
    blocks_ms: list[float]
    warmup_s: float


def time_loop(step: Callable[[Any], Any], data: Any, timed_s: float) -> Timed:
    """Time ``step`` on one batch (a tuple, dict or tensor), or on a loader's batches, for about ``timed_s`` seconds.

    Raises FloatingPointError when the last result is not finite.
    """
    started = time.perf_counter()
    batches, long_epochs = _batches(step, data, timed_s)
    if not long_epochs:
        _settle(step, batches)
    warmup_s = time.perf_counter() - started
    blocks_ms: list[float] = []
    least = LEAST_LONG_EPOCHS if long_epochs else LEAST_BLOCKS
    started = time.perf_counter()
    while len(blocks_ms) < least or time.perf_counter() - started < timed_s:
        step_s, result = run(step, batches())
        blocks_ms.append(1e3 * step_s)
    if not _finite(result):
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


def _batches(step: Callable[[Any], Any], data: Any, timed_s: float) -> tuple[Callable[[], Iterable[Any]], bool]:
    """Return a function that yields the batches of a block, and whether a block is a long epoch."""
    if not isinstance(data, ONE_BATCH):
        epoch_s = _epoch_s(step, data)
        long = epoch_s > LONG_EPOCH_S
        epochs = 1 if long else max(LEAST_SHORT_EPOCHS, round(timed_s / BLOCKS / epoch_s))
        return lambda: chain.from_iterable(repeat(data, epochs)), long
    single_s = [run(step, [data])[0] for _ in range(FIRST_STEPS)][-1]
    return lambda: repeat(data, max(1, round(timed_s / BLOCKS / single_s))), False


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


def _finite(result: Any) -> bool:
    """Whether all numbers of a loss or an output are finite."""
    leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return bool(leaves) and all(bool(torch.isfinite(leaf).all()) for leaf in leaves)
