"""The clock: blocks of back-to-back steps, timed by the wall and synchronised only at the end of a block.

Nothing else is in a timed block. The spread of single steps comes from a block of its own with an event at each step
boundary: on an H200 those events made a replayed graph of 0.33 ms 4 % slower.
"""

from __future__ import annotations

import itertools
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
_EVENT_BLOCK_S = 0.2
_FEWEST_EVENT_STEPS = 5


class StepClock:
    """Times blocks of ``step()`` calls; ``step`` runs one step and returns the samples in it.

    ``step_ms`` collects the times of single steps: by events on CUDA, by the blocks on the CPU.
    """

    def __init__(self, device: torch.device, step: Callable[[], int]) -> None:
        self.device = device
        self.step = step
        self.step_ms: list[float] = []

    def synchronize(self) -> None:
        """Wait for the device; nothing on the CPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def run(self, steps: int) -> Block:
        """Time a block of exactly ``steps`` steps."""
        self.synchronize()
        samples = 0
        start = time.perf_counter()
        for _ in range(steps):
            samples += self.step()
        self.synchronize()
        return Block(steps, samples, time.perf_counter() - start)

    def run_with_events(self, steps: int) -> None:
        """Run steps on CUDA with an event at each step boundary, for the spread of single steps."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        torch.cuda.synchronize(self.device)
        events[0].record()
        for event in events[1:]:
            self.step()
            event.record()
        torch.cuda.synchronize(self.device)
        self.step_ms += [before.elapsed_time(after) for before, after in itertools.pairwise(events)]

    def percentiles(self) -> tuple[float, float, float] | None:
        """The 5th, 50th and 95th percentile of single steps, ms."""
        times = self.step_ms
        return (percentile(times, 0.05), percentile(times, 0.5), percentile(times, 0.95)) if times else None


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
        blocks.append(clock.run(steps))
    if clock.device.type == "cuda":
        clock.run_with_events(max(_FEWEST_EVENT_STEPS, steps_in(_EVENT_BLOCK_S, step_s)))
    else:
        clock.step_ms += [block.step_ms for block in blocks]
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
