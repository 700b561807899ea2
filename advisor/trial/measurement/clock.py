"""The clock: a warm-up until steps are steady, then blocks of back-to-back steps.

A block contains only steps. The spread of single steps comes from separate blocks of one step each: the events of
single steps made a replayed graph of 0.33 ms 4 % slower on an H200.

On CUDA, blocks follow one another without waiting: an event at each boundary records when the device got there. After a
wait, the device idles until the next kernels are launched: 0.3 to 1.4 ms per block on H200s, 1 % of a GPT-2's step of
84 ms. If workers deliver many batches at once, a wait would also count what the loop does meanwhile.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from advisor.figures.stats import FEWEST_BLOCKS, median_error
from advisor.machine.device import backend_of
from advisor.records import Block, Latency
from advisor.step.batch import PAIR, tensors_of

BLOCKS_PER_TRIAL = 24
# Standard error of the median's logarithm at which its 95 % interval is 0.5 % wide.
_LARGEST_ERROR = math.log1p(0.0025) / NormalDist().inv_cdf(0.975)
_CHECK_EVERY = 5
_LONGEST_BLOCK_STEPS = 2000
_SINGLE_STEPS_S = 0.2
_FEWEST_SINGLE_STEPS = 5
_MOST_SINGLE_STEPS = 400
_UNEVEN = 0.1  # if step times range wider than this, blocks are too short; relative to the median
# The latency is that of as many calls as fit in this time, in seconds, within these counts.
_CALLS_S = 0.5
_FEWEST_CALLS = 20
_MOST_CALLS = 400
# Shortest time between two progress messages of a trial. Seconds; writing one takes about 0.03 ms.
_REPORT_INTERVAL_S = 0.25
# Smallest share of the wall time that the marks between blocks must cover. Unitless; the last wait is not covered.
_SEEN_BY_MARKS = 0.8


class StepClock:
    """Times blocks of steps; ``run_steps(n)`` runs ``n`` steps and returns the samples in them.

    ``cycle_of(most)`` returns the steps of a cycle in the data, at most ``most``; 1 if batches take the same work.
    """

    def __init__(
        self, device: torch.device, run_steps: Callable[[int], int], cycle_of: Callable[[int], int] = lambda most: 1
    ) -> None:
        self.device = device
        self.backend = backend_of(device)
        self.run_steps = run_steps
        self.cycle_of = cycle_of

    def steps_of(self, seconds: float, step_s: float, *, longest_s: float = 0.0) -> int:
        """The steps in a block of about this duration: whole cycles of the data, or one cycle up to ``longest_s``."""
        steps = steps_in(seconds, step_s)
        cycle = self.cycle_of(max(steps, steps_in(longest_s, step_s)))
        return cycle * max(1, round(steps / cycle))

    def run(self, steps: int) -> Block:
        """Time a block of exactly ``steps`` steps, and wait for the device before and after it."""
        self.backend.synchronize()
        start = time.perf_counter()
        samples = self.run_steps(steps)
        self.backend.synchronize()
        return Block(steps, samples, time.perf_counter() - start)

    def blocks(self, steps: int, enough: Callable[[list[Block]], bool], *, ahead: int = 1) -> list[Block]:
        """Time blocks of ``steps`` steps, without synchronising between them, until ``enough`` of them are done.

        An asynchronous device gets up to ``ahead`` blocks before the host waits for one. Marks do not see work in other
        streams: if they miss much of the wall time, it is divided equally.
        """
        ahead = ahead if self.backend.is_ahead else 0
        self.backend.synchronize()
        start = time.perf_counter()
        marks, samples, done = [self.backend.mark()], list[int](), list[Block]()
        while not enough(done):
            samples.append(self.run_steps(steps))
            marks.append(self.backend.mark())
            place = len(done)
            if len(samples) > place + ahead:
                marks[place + 1].synchronize()
                done.append(Block(steps, samples[place], marks[place].elapsed_time(marks[place + 1]) / 1e3))
        self.backend.synchronize()
        wall_s = time.perf_counter() - start
        seconds = [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]
        if sum(seconds) < _SEEN_BY_MARKS * wall_s:
            seconds = [wall_s / len(seconds)] * len(seconds)
        return [Block(steps, count, block_s) for count, block_s in zip(samples, seconds, strict=True)]


def latency_of_calls(clock: StepClock, blocks: Sequence[Block], limit_s: float) -> Latency | None:
    """The latency of single calls, timed separately; None if ``limit_s`` is too short for the fewest calls."""
    step_s = mean_step_s(blocks)
    calls = min(_MOST_CALLS, max(_FEWEST_CALLS, steps_in(_CALLS_S, step_s)))
    if calls * step_s > max(limit_s, _CALLS_S):
        return None
    times = [clock.run(1).step_ms for _ in range(calls)]
    return Latency(*percentiles_of(times, (0.5, 0.95, 0.99)), calls)


def steps_in(seconds: float, step_s: float) -> int:
    """The number of steps that fill this many seconds, at least one."""
    return max(1, min(_LONGEST_BLOCK_STEPS, round(seconds / step_s)))


def measure(
    clock: StepClock,
    step_s: float,
    measure_s: float,
    *,
    at_least_s: float = 0.0,
    report: Callable[[Block], None] = lambda block: None,
) -> list[Block]:
    """Time blocks until the median's interval is narrower than 0.5 %, for ``at_least_s`` to ``measure_s`` seconds.

    Times at least one block, and at least five if they fit in twice ``measure_s``. An epoch that fits in ``measure_s``
    is one block: its first batches are ready early. ``report`` gets the last block a few times a second.
    """
    steps = clock.steps_of(measure_s / BLOCKS_PER_TRIAL, step_s, longest_s=measure_s)
    limit_s = max(measure_s, at_least_s)
    reported_at = -math.inf

    def enough(so_far: list[Block]) -> bool:
        nonlocal reported_at
        now = time.perf_counter()
        if so_far and now - reported_at >= _REPORT_INTERVAL_S:
            reported_at = now
            report(so_far[-1])
        elapsed_s = sum(block.seconds for block in so_far)  # the same for all ranks of a trial
        if len(so_far) < FEWEST_BLOCKS:
            return bool(so_far) and elapsed_s > 2 * limit_s
        if elapsed_s >= limit_s:
            return True
        due = elapsed_s >= at_least_s and len(so_far) >= 2 * FEWEST_BLOCKS and len(so_far) % _CHECK_EVERY == 0
        return due and median_error([block.samples_per_s for block in so_far]) < _LARGEST_ERROR

    # If two steps ahead would overrun the trial, steps are so long that they hide the wait anyway.
    return clock.blocks(steps, enough, ahead=int(steps > 1 or step_s < measure_s / FEWEST_BLOCKS))


def mean_step_s(blocks: Sequence[Block]) -> float:
    """Seconds per step in these blocks. On a busy machine the warm-up may have ended with a much shorter step."""
    return sum(block.seconds for block in blocks) / sum(block.steps for block in blocks)


def single_steps_ms(clock: StepClock, blocks: Sequence[Block], measure_s: float) -> tuple[float, float, float]:
    """Percentiles of the times of single steps; taken from the blocks if steps are long or each block is one step."""
    step_s = mean_step_s(blocks)
    if _FEWEST_SINGLE_STEPS * step_s <= measure_s and (blocks[0].steps > 1 or len(blocks) < _FEWEST_SINGLE_STEPS):
        wanted = min(_MOST_SINGLE_STEPS, max(_FEWEST_SINGLE_STEPS, steps_in(_SINGLE_STEPS_S, step_s)))
        blocks = clock.blocks(1, lambda done: len(done) >= wanted)
    return percentiles_of([block.step_ms for block in blocks])


def percentiles_of(
    times: Sequence[float], shares: tuple[float, float, float] = (0.05, 0.5, 0.95)
) -> tuple[float, float, float]:
    """Three percentiles of some times: by default the 5th, the 50th and the 95th."""
    low, middle, high = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor(shares, dtype=torch.float64))
    return float(low), float(middle), float(high)


def merge_uneven(blocks: Sequence[Block]) -> list[Block]:
    """The blocks; consecutive blocks are merged if their steps differ much (every fourth may wait for data).

    The median over blocks of one step would show the frequent kind of step and hide the cost of the others.
    """
    merged = list(blocks)
    while len(merged) >= 2 * FEWEST_BLOCKS:
        low, middle, high = percentiles_of([block.step_ms for block in merged])
        if high - low <= _UNEVEN * middle:
            break
        pairs = [merged[index : index + 2] for index in range(0, len(merged) - 1, 2)]
        if len(merged) % 2:
            pairs[-1].append(merged[-1])
        merged = [
            Block(sum(b.steps for b in part), sum(b.samples for b in part), sum(b.seconds for b in part))
            for part in pairs
        ]
    return merged


def batch_samples(batch: Any, fallback: int) -> int:
    """The number of samples in a batch: the number of mappings in a list (detectors), else the first tensor's size.

    Packed sequences and PyTorch Geometric's graphs know their number; their tensors hold the parts of all samples.
    """
    for part in (batch, *(batch if isinstance(batch, tuple | list) else ())):
        if isinstance(part, PackedSequence):
            return int(part.batch_sizes[0])
        if isinstance(graphs := getattr(part, "num_graphs", None), int):
            return graphs
        mappings = isinstance(part, tuple | list) and part and all(isinstance(sample, Mapping) for sample in part)
        # Two mappings may be inputs and targets, or two inputs.
        if mappings and (part is not batch or len(part) == fallback or len(part) > PAIR):
            return len(part)
    tensor = next(tensors_of(batch), None)
    return tensor.shape[0] if tensor is not None and tensor.dim() else fallback


_WINDOW_S = 0.05
_LONGEST_WINDOW_S = 0.4
_FEWEST_WINDOWS = 3
_FEWEST_STEPS = 5
_STEADY = 0.05


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The result of warming up; ``step_s`` is the step time at the end."""

    seconds: float
    steps: int
    step_s: float
    steady: bool


def warm_up(
    clock: StepClock, limit_s: float, earlier: int = 0, earlier_step_s: float = math.inf, *, at_least: int = 0
) -> WarmUp:
    """Run steps until two windows in a row agree within 5 %, or ``limit_s`` has passed since the first step ended.

    The first step may compile for minutes. ``at_least`` more steps always run. The ``earlier`` steps count towards the
    limit, each as the shorter of ``earlier_step_s`` and the first step. If they used it up, no window is run.
    """
    start = time.perf_counter()
    first = clock.run(1)
    usual_s = min(first.seconds, earlier_step_s)
    spent_s, steps, windows = earlier * usual_s, 1, [first.seconds]
    if spent_s > limit_s and not at_least:
        return WarmUp(first.seconds, 1, usual_s, steady=True)
    while True:
        block = clock.run(clock.steps_of(_WINDOW_S, min(windows[-3:]), longest_s=_LONGEST_WINDOW_S))
        steps += block.steps
        spent_s += block.seconds
        windows.append(block.seconds / block.steps)
        agree = len(windows) > _FEWEST_WINDOWS and abs(windows[-1] - windows[-2]) <= _STEADY * windows[-2]
        steady = agree and steps >= max(_FEWEST_STEPS, at_least)
        if steady or spent_s > limit_s:
            return WarmUp(time.perf_counter() - start, steps, min(windows[-2:]), steady)
