"""The clock: blocks of back-to-back steps, timed by the wall and synchronised only at the end of a block.

On CUDA an event at each step boundary gives the spread of single steps without a synchronisation inside the block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from advisor.records import Block
from advisor.runtime.batches import tensors_of
from advisor.stats import percentile, relative_half_width

BLOCKS_PER_TRIAL = 24
FEWEST_BLOCKS = 5
PRECISION = 0.01
_CHECK_EVERY = 5
_LONGEST_BLOCK_STEPS = 2000


class StepClock:
    """Times blocks of ``step()`` calls; ``step`` runs one step and returns the samples in it.

    ``step_s`` is the steady step time so far, from which the length of a block follows.
    """

    def __init__(self, device: torch.device, step: Callable[[], int]) -> None:
        self.device = device
        self.step = step
        self.event_step_ms: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        """Wait for the device; nothing on the CPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def run(self, steps: int) -> Block:
        """Time a block of exactly ``steps`` steps, without events."""
        self.synchronize()
        samples = 0
        start = time.perf_counter()
        for _ in range(steps):
            samples += self.step()
        self.synchronize()
        return Block(steps, samples, time.perf_counter() - start)

    def run_with_events(self, steps: int) -> Block:
        """Time a block and, on CUDA, record an event at each step boundary."""
        if self.device.type != "cuda":
            block = self.run(steps)
            self.event_step_ms.append(block.step_ms)
            return block
        events = self._pool(steps + 1)
        samples = 0
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        events[0].record()
        for index in range(1, steps + 1):
            samples += self.step()
            events[index].record()
        torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - start
        self.event_step_ms += [events[i].elapsed_time(events[i + 1]) for i in range(steps)]
        return Block(steps, samples, seconds)

    def percentiles(self) -> tuple[float, float, float] | None:
        """The 5th, 50th and 95th percentile of single steps, ms."""
        times = self.event_step_ms
        return (percentile(times, 0.05), percentile(times, 0.5), percentile(times, 0.95)) if times else None

    def _pool(self, size: int) -> list[torch.cuda.Event]:
        while len(self._events) < size:
            self._events.append(torch.cuda.Event(enable_timing=True))
        return self._events


def steps_in(seconds: float, step_s: float) -> int:
    """How many steps fill this many seconds, at least one."""
    return max(1, min(_LONGEST_BLOCK_STEPS, round(seconds / step_s)))


def measure(clock: StepClock, step_s: float, measure_s: float) -> list[Block]:
    """Blocks until the interval of the median is narrower than 1 %, or ``measure_s`` is spent.

    At least five blocks are timed while they fit in twice ``measure_s``; at least one always.
    """
    steps = steps_in(measure_s / BLOCKS_PER_TRIAL, step_s)
    blocks: list[Block] = []
    start = time.perf_counter()
    while not _enough(blocks, time.perf_counter() - start, measure_s):
        blocks.append(clock.run_with_events(steps))
    return blocks


def _enough(blocks: list[Block], elapsed_s: float, measure_s: float) -> bool:
    if len(blocks) < FEWEST_BLOCKS:
        return bool(blocks) and elapsed_s > 2 * measure_s
    if elapsed_s >= measure_s:
        return True
    due = len(blocks) >= 2 * FEWEST_BLOCKS and len(blocks) % _CHECK_EVERY == 0
    return due and relative_half_width([block.samples_per_s for block in blocks]) < PRECISION / 4


def batch_samples(batch: Any, fallback: int) -> int:
    """How many samples a batch holds: the length of its first tensor."""
    tensor = next(tensors_of(batch), None)
    return tensor.shape[0] if tensor is not None and tensor.dim() else fallback
