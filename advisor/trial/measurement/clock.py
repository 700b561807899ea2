"""The clock: a warm-up until steps are steady, then blocks of back-to-back steps.

Nothing but steps is in a block: not even a function of ours around each. The spread of single steps comes from a block
of its own with an event at each step boundary: on an H200 those events made a replayed graph of 0.33 ms 4 % slower.

On CUDA blocks follow one another without waiting: an event at each boundary tells when the device got there. In a
loop the host is ahead of the device, and a device that was waited for idles until the first kernels of the next step
are launched: on H200s 0.3 to 1.4 ms a block, 1 % of a GPT-2's step of 84 ms. Where workers are slow and then have many
batches at once, waiting would also add at each boundary what a loop does meanwhile, such as starting the next epoch.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from advisor.figures.samples import percentile, relative_half_width, relative_range
from advisor.machine.device import Mark, backend_of
from advisor.records import Block, Latency
from advisor.step.batch import PAIR, tensors_of

BLOCKS_PER_TRIAL = 24
FEWEST_BLOCKS = 5
PRECISION = 0.01
_CHECK_EVERY = 5
_LONGEST_BLOCK_STEPS = 2000
_SINGLE_STEPS_S = 0.2
_FEWEST_SINGLE_STEPS = 5
_MOST_SINGLE_STEPS = 400
# Blocks are too short if their step times range wider than this. Relative to the median.
_UNEVEN = 0.1
# The calls whose latency is reported: as many as fit in this time, in seconds, within these counts.
_CALLS_S = 0.5
_FEWEST_CALLS = 20
_MOST_CALLS = 400
# Shortest time between two progress messages while a trial is measured. Seconds; to write one takes about 0.03 ms.
_REPORT_INTERVAL_S = 0.25
# Least share of a measurement's time that the events between blocks see. Unitless; the rest is the last wait.
_SEEN_BY_EVENTS = 0.8
# The host stays one block ahead of the device: of three events it waits for the second.
_EVENTS_BEHIND = 2

# Returns the steps of a cycle in the data (1 without one), given the most steps that it may have.
CycleOf = Callable[[int], int]


class StepClock:
    """Times blocks of steps; ``run_steps(n)`` runs ``n`` steps and returns the samples in them.

    ``step_ms`` collects the times of single steps: by the device's events, or by the host's clock on the CPU.
    """

    def __init__(self, device: torch.device, run_steps: Callable[[int], int]) -> None:
        self.device = device
        self.backend = backend_of(device)
        self.run_steps = run_steps
        self.step_ms: list[float] = []

    def synchronize(self) -> None:
        """Wait for the device; nothing on the CPU."""
        self.backend.synchronize()

    def run(self, steps: int) -> Block:
        """Time a block of exactly ``steps`` steps."""
        self.synchronize()
        start = time.perf_counter()
        samples = self.run_steps(steps)
        self.synchronize()
        return Block(steps, samples, time.perf_counter() - start)

    def back_to_back(self, steps: int, enough: Callable[[list[Block]], bool]) -> list[Block]:
        """Time synchronised blocks of a number of steps until there are enough."""
        blocks: list[Block] = []
        while not enough(blocks):
            blocks.append(self.run(steps))
        return blocks

    def flowing(self, steps: int, enough: Callable[[list[Block]], bool]) -> list[Block]:
        """Time blocks of a number of steps until there are enough, without synchronising between them."""
        self.synchronize()
        start = time.perf_counter()
        events, samples, blocks = [self.backend.mark()], list[int](), list[Block]()
        while not enough(blocks):
            samples.append(self.run_steps(steps))
            events.append(self.backend.mark())
            if len(events) > _EVENTS_BEHIND:  # the device is given what comes next before the host waits for it
                place = len(blocks)
                events[place + 1].synchronize()
                blocks.append(Block(steps, samples[place], events[place].elapsed_time(events[place + 1]) / 1e3))
        seconds = self._seconds_between(events, start)
        return [Block(steps, count, block_s) for count, block_s in zip(samples, seconds, strict=True)]

    def time_single_steps(self, steps: int) -> None:
        """Run steps with an event at each step boundary, for the spread of single steps: apart from the timed blocks.

        On the CPU each is timed as a block.
        """
        if not self.backend.is_ahead:
            self.step_ms += [self.run(1).step_ms for _ in range(steps)]
            return
        self.synchronize()
        start = time.perf_counter()
        events = [self.backend.mark()]
        for _ in range(steps):
            self.run_steps(1)
            events.append(self.backend.mark())
        self.step_ms += [1e3 * seconds for seconds in self._seconds_between(events, start)]

    def _seconds_between(self, events: Sequence[Mark], start: float) -> list[float]:
        """The seconds between events, once the device has passed the last; ``start`` is the wall's time of the first.

        Events do not see work that steps leave behind in other streams. Where much of the wall's time is missing, all
        of it is divided in equal parts.
        """
        self.synchronize()
        wall_s = time.perf_counter() - start
        seconds = [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]
        if sum(seconds) >= _SEEN_BY_EVENTS * wall_s:
            return seconds
        return [wall_s / len(seconds)] * len(seconds)

    def percentiles(self) -> tuple[float, float, float] | None:
        """The 5th, 50th and 95th percentile of single steps, ms."""
        times = self.step_ms
        return (percentile(times, 0.05), percentile(times, 0.5), percentile(times, 0.95)) if times else None


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """The seconds of a call on a device that waits for it, until all of it is done."""
    backend = backend_of(device)
    backend.synchronize()
    start = time.perf_counter()
    call()
    backend.synchronize()
    return time.perf_counter() - start


def latency_of_calls(clock: StepClock, step_s: float, limit_s: float) -> Latency | None:
    """The latency of single calls, in a pass of its own; None where the fewest do not fit in ``limit_s``."""
    calls = min(_MOST_CALLS, max(_FEWEST_CALLS, steps_in(_CALLS_S, step_s)))
    if calls * step_s > max(limit_s, _CALLS_S):
        return None
    times = [clock.run(1).step_ms for _ in range(calls)]
    return Latency(percentile(times, 0.5), percentile(times, 0.95), percentile(times, 0.99), calls)


def steps_in(seconds: float, step_s: float) -> int:
    """The number of steps that fill this many seconds, at least one."""
    return max(1, min(_LONGEST_BLOCK_STEPS, round(seconds / step_s)))


def block_steps(seconds: float, step_s: float, cycle_of: CycleOf, *, longest_s: float = 0.0) -> int:
    """The number of steps in a block of about this duration: whole cycles of the data.

    ``cycle_of`` returns the steps in a cycle, given how many fit in ``longest_s``, the longest a block may be.
    """
    steps = steps_in(seconds, step_s)
    cycle = cycle_of(max(steps, steps_in(longest_s, step_s)))
    return cycle * max(1, round(steps / cycle))


def measure(
    clock: StepClock,
    step_s: float,
    measure_s: float,
    *,
    at_least_s: float = 0.0,
    cycle_of: CycleOf | None = None,
    watching: AbstractContextManager[None] | None = None,
    report: Callable[[Block], None] = lambda block: None,
) -> list[Block]:
    """Time blocks until the median's interval is narrower than 1 %, for ``at_least_s`` to ``measure_s`` seconds.

    At least five blocks are timed while they fit in twice ``measure_s``; at least one always. Single steps are timed
    after them. ``cycle_of`` is given where batches come from a loader; blocks then hold whole cycles. ``watching`` is
    entered around the blocks alone. ``report`` is given the last block, a few times a second, between two blocks.
    """
    longest_s = 2 * measure_s / FEWEST_BLOCKS
    steps = block_steps(measure_s / BLOCKS_PER_TRIAL, step_s, cycle_of or (lambda most: 1), longest_s=longest_s)
    # Steps that are so long that two of them ahead would overrun the trial hide the wait anyway.
    flows = steps > 1 or (cycle_of is None and step_s < measure_s / FEWEST_BLOCKS)
    timed = clock.flowing if flows and clock.backend.is_ahead else clock.back_to_back
    limit_s = max(measure_s, at_least_s)
    reported, reported_at = 0, -math.inf

    def enough(so_far: list[Block]) -> bool:
        nonlocal reported, reported_at
        now = time.perf_counter()
        if len(so_far) > reported and now - reported_at >= _REPORT_INTERVAL_S:
            reported, reported_at = len(so_far), now
            report(so_far[-1])
        return _enough(so_far, now - start, at_least_s, limit_s)

    with watching or nullcontext():
        start = time.perf_counter()
        blocks = timed(steps, enough)
    _time_single_steps(clock, blocks, measure_s)
    return merge_uneven(blocks)


def mean_step_s(blocks: Sequence[Block]) -> float:
    """Seconds of a step in these blocks. At the end of the warm-up it may have been a hundredth, on a busy machine."""
    return sum(block.seconds for block in blocks) / sum(block.steps for block in blocks)


def _time_single_steps(clock: StepClock, blocks: Sequence[Block], measure_s: float) -> None:
    """Time single steps, or take them from the blocks: where steps are too long for more, or these are single steps."""
    step_s = mean_step_s(blocks)
    single = not clock.backend.is_ahead and blocks[0].steps == 1 and len(blocks) >= _FEWEST_SINGLE_STEPS
    if _FEWEST_SINGLE_STEPS * step_s > measure_s or single:
        clock.step_ms += [block.step_ms for block in blocks]
    else:
        wanted = steps_in(_SINGLE_STEPS_S, step_s)
        clock.time_single_steps(min(_MOST_SINGLE_STEPS, max(_FEWEST_SINGLE_STEPS, wanted)))


def merge_uneven(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, or consecutive ones merged into fewer where steps differ from one another.

    A loop whose every fourth step waits for data has no typical step: the median over blocks of one step would name
    the frequent kind, and hide what the others cost. Longer blocks hold some of each.
    """
    merged = list(blocks)
    while len(merged) >= 2 * FEWEST_BLOCKS and relative_range([block.step_ms for block in merged]) > _UNEVEN:
        pairs = [merged[index : index + 2] for index in range(0, len(merged) - 1, 2)]
        if len(merged) % 2:
            pairs[-1].append(merged[-1])
        merged = [
            Block(sum(b.steps for b in part), sum(b.samples for b in part), sum(b.seconds for b in part))
            for part in pairs
        ]
    return merged


def batch_samples(batch: Any, fallback: int) -> int:
    """The number of samples in a batch: of mappings in a list, as detectors take them; else of its first tensor.

    Packed sequences and PyTorch Geometric's graphs say how many they are; their tensors hold the parts of all.
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


def _enough(blocks: list[Block], elapsed_s: float, at_least_s: float, measure_s: float) -> bool:
    if len(blocks) < FEWEST_BLOCKS:
        return bool(blocks) and elapsed_s > 2 * measure_s
    if elapsed_s >= measure_s:
        return True
    due = elapsed_s >= at_least_s and len(blocks) >= 2 * FEWEST_BLOCKS and len(blocks) % _CHECK_EVERY == 0
    return due and relative_half_width([block.samples_per_s for block in blocks]) < PRECISION / 4


_WINDOW_S = 0.05
_LONGEST_WINDOW_S = 0.4
_FEWEST_WINDOWS = 3
_FEWEST_STEPS = 5
_STEADY = 0.05


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The way to the steady state; ``step_s`` is the step time at the end."""

    seconds: float
    steps: int
    step_s: float
    steady: bool


def warm_up(
    clock: StepClock,
    *,
    limit_s: float,
    at_least: int = 0,
    earlier: int = 0,
    earlier_step_s: float = math.inf,
    cycle_of: CycleOf = lambda most: 1,
) -> WarmUp:
    """Run steps until two windows in a row agree within 5 %, or ``limit_s`` has passed since the first step ended.

    The limit does not include the first step, which may compile for minutes. ``at_least`` further steps always run.
    The ``earlier`` steps count towards the limit, at ``earlier_step_s`` each or as long as this first one where that is
    less: one that compiled is no measure of them. Where they took all of it, a single step is enough. Windows hold
    whole cycles of the data, by ``cycle_of``.
    """
    start = time.perf_counter()
    first = clock.run(1)
    usual_s = min(first.seconds, earlier_step_s)
    before_s = earlier * usual_s if earlier else 0.0
    if before_s > limit_s and not at_least:
        return WarmUp(first.seconds, 1, usual_s, steady=True)
    since = time.perf_counter() - before_s
    steps, windows = 1, [first.seconds]
    while True:
        block = clock.run(block_steps(_WINDOW_S, min(windows[-3:]), cycle_of, longest_s=_LONGEST_WINDOW_S))
        steps += block.steps
        windows.append(block.seconds / block.steps)
        agree = len(windows) > _FEWEST_WINDOWS and abs(windows[-1] - windows[-2]) <= _STEADY * windows[-2]
        steady = agree and steps >= max(_FEWEST_STEPS, at_least)
        if steady or time.perf_counter() - since > limit_s:
            return WarmUp(time.perf_counter() - start, steps, min(windows[-2:]), steady)
