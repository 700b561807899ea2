import math
import time
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stopped_clock import Clock
from torch.nn.utils.rnn import pack_sequence

import advisor.machine.device
import advisor.trial.measurement.clock
from advisor.figures.stats import median_error
from advisor.records import Block
from advisor.trial.measurement.clock import (
    FEWEST_BLOCKS,
    StepClock,
    batch_samples,
    latency_of_calls,
    measure,
    merge_uneven,
    single_steps_ms,
    steps_in,
    warm_up,
)

CPU = torch.device("cpu")


class Sleeping:
    """A step of 4 samples that takes these times in turn, and the last for ever."""

    def __init__(self, time, seconds):
        self.time, self.seconds, self.steps = time, seconds, 0

    def __call__(self, steps):
        for _ in range(steps):
            self.time.now += self.seconds[min(self.steps, len(self.seconds) - 1)]
            self.steps += 1
        return 4 * steps


@pytest.fixture
def clock_of(monkeypatch):
    """A clock, and the step that it times, in a time in which nothing else takes any, on a busy machine too."""
    now = Clock(100.0)
    own = SimpleNamespace(perf_counter=now)
    monkeypatch.setattr(advisor.trial.measurement.clock, "time", own)
    monkeypatch.setattr(advisor.machine.device, "time", own)

    def make(*seconds):
        step = Sleeping(now, seconds)
        return StepClock(CPU, step), step

    return make


def test_blocks_are_reported_as_they_come_but_not_all_of_short_ones(clock_of):
    reported = []
    clock, _ = clock_of(0.1)
    assert reported == measure(clock, 0.1, 2.4, report=reported.append)[::3]


def test_measured_blocks_give_the_percentiles_of_steps(clock_of):
    clock, _ = clock_of(0.002)
    assert single_steps_ms(clock, measure(clock, 0.002, 0.05), 0.05) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(("step_s", "limit_s", "calls"), [(0.0, 1.0, 400), (0.03, 1.0, 20), (0.03, 0.1, None)])
def test_the_latency_of_single_calls(clock_of, step_s, limit_s, calls):
    clock, _ = clock_of(0.001)
    latency = latency_of_calls(clock, [Block(1, 4, step_s or 1e-6)], limit_s)
    assert (latency.calls if latency else None) == calls
    if latency:
        assert (latency.p50_ms, latency.p95_ms, latency.p99_ms) == pytest.approx((1.0, 1.0, 1.0))


@given(st.floats(0.001, 1.0), st.floats(1e-4, 1.0), st.integers(1, 200))
def test_blocks_hold_whole_cycles_of_the_data(seconds, step_s, cycle):
    steps = StepClock(CPU, len, lambda most: cycle).steps_of(seconds, step_s)
    assert steps % cycle == 0
    assert abs(steps - steps_in(seconds, step_s)) <= cycle


def test_blocks_of_a_loader_in_short_epochs_are_alike_though_its_steps_are_not(clock_of):
    """Five batches are there at once, then the workers start anew: blocks of four or six steps would differ."""
    waits = [0.02, 0.0005, 0.0005, 0.0005, 0.0005] * 400
    clock, _ = clock_of(*waits)
    clock.cycle_of = lambda most: 5
    blocks = measure(clock, 0.0045, 0.4)
    assert len(blocks) >= FEWEST_BLOCKS
    assert {block.steps % 5 for block in blocks} == {0}
    assert max(block.step_ms for block in blocks) < 2 * min(block.step_ms for block in blocks)


def test_where_every_fourth_step_waits_a_block_holds_some_of_each():
    merged = merge_uneven([Block(1, 4, ms / 1e3) for ms in [2.0, 2.0, 2.0, 10.0] * 6])
    assert len(merged) >= FEWEST_BLOCKS
    assert [block.step_ms for block in merged] == pytest.approx([4.0] * len(merged))
    assert sum(block.samples for block in merged) == 24 * 4


@pytest.mark.parametrize(
    ("step_s", "seconds", "at_least_s", "within_s"),
    [
        (0.002, 0.3, 0.0, (0.02, 0.29)),  # steady steps take less than they are given
        (0.002, 0.1, 0.5, (0.45, 0.6)),  # but for those that are compared by their energy
        (0.15, 0.01, 0.0, (0.149, 0.151)),  # one step that is very long ends it
    ],
)
def test_how_long_steps_are_measured(clock_of, step_s, seconds, at_least_s, within_s):
    clock, _ = clock_of(step_s)
    blocks = measure(clock, step_s, seconds, at_least_s=at_least_s)
    assert within_s[0] <= sum(block.seconds for block in blocks) <= within_s[1]
    assert all(block.samples == 4 * block.steps for block in blocks)
    assert median(block.step_ms for block in blocks) == pytest.approx(1e3 * step_s)


@dataclass
class Graphs:
    """As PyTorch Geometric's batches."""

    x: torch.Tensor
    num_graphs: int = 2


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(7, 3), 7),
        ({"x": torch.ones(6, 2)}, 6),
        (torch.tensor(1.0), 9),
        ([{"image": torch.ones(3, 8, 8)}] * 4, 4),
        (((torch.ones(3, 8, 8),) * 4, ({"boxes": torch.ones(2, 4)},) * 4), 4),
        ((pack_sequence([torch.ones(3, 2), torch.ones(2, 2)]), torch.ones(2)), 2),
        (Graphs(torch.ones(5, 2)), 2),
    ],
)
def test_the_samples_of_a_batch(batch, samples):
    assert batch_samples(batch, 9) == samples


def test_warming_up_ends_when_the_step_time_is_steady(clock_of):
    clock, step = clock_of(0.2, 0.05, 0.02, 0.005)
    warm = warm_up(clock, limit_s=20.0)
    assert warm.steady
    assert warm.steps == step.steps >= 5
    assert warm.seconds == pytest.approx(0.27 + 0.005 * (warm.steps - 3))
    assert warm.step_s == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("times", "options", "steps", "steady"),
    [
        ([0.002 + 0.001 * index for index in range(1000)], {"limit_s": 0.2}, range(19, 28), False),  # it never settles
        ([0.001], {"limit_s": 20.0, "at_least": 150}, range(150, 400), True),  # what workers have ready is consumed
        ([0.05], {"limit_s": 0.01, "earlier": 1}, range(1, 2), True),  # the probe ran one before
        ([0.1], {"limit_s": 2.0, "earlier": 5, "earlier_step_s": 6.0}, range(5, 20), True),  # the earlier ones compiled
    ],
)
def test_how_long_a_step_is_warmed_up(clock_of, times, options, steps, steady):
    clock, step = clock_of(*times)
    warm = warm_up(clock, **options)
    assert warm.steps == step.steps
    assert warm.steps in steps
    assert warm.steady is steady


@pytest.mark.parametrize(("earlier", "least_s", "most_s"), [(0, 2.1, 2.6), (10, 1.1, 1.6), (30, 0.0, 0.11)])
def test_the_steps_before_it_count_towards_the_limit_of_warming_up(clock_of, earlier, least_s, most_s):
    """Beside other programs steps of half a second were warmed up for as long again as the five before."""
    clock, _ = clock_of(*(0.1 * 1.1**place for place in range(40)))
    assert least_s <= warm_up(clock, limit_s=2.0, earlier=earlier, earlier_step_s=0.12).seconds <= most_s


def test_precision_is_that_of_a_median_of_normal_values():
    shares = []
    for count in range(101, 1001, 50):
        values = [100 + NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
        shares.append(median_error(values) / (math.sqrt(math.pi / 2 / count) / 100))
    assert fmean(shares) == pytest.approx(1.0, abs=0.06)


# --- a GPU whose work the host queues in bursts, as workers that finish together let it -----------------------------

STEPS_PER_EPOCH, WAIT_S, MEASURE_S = 8, 0.04, 1.0


class Bursts:
    """The host waits at the start of an epoch; then it queues all steps at once, and the GPU takes its time for them.

    The GPU works while the host waits, so that an epoch takes as long as the longer of the two.
    """

    def __init__(self, device):
        self.matrix = torch.rand(4096, 4096, device=device)
        self.step = 0

    def __call__(self, steps):
        for _ in range(steps):
            if self.step % STEPS_PER_EPOCH == 0:
                time.sleep(WAIT_S)
            torch.mm(self.matrix, self.matrix)
            self.step += 1
        return steps


@pytest.mark.gpu
def test_blocks_that_flow_into_one_another_take_what_the_loop_takes():
    device = torch.device("cuda")
    clock = StepClock(device, Bursts(device), lambda most: STEPS_PER_EPOCH)
    clock.run(2 * STEPS_PER_EPOCH)
    loop_s = clock.run(40 * STEPS_PER_EPOCH).seconds / 40
    waiting = [clock.run(STEPS_PER_EPOCH) for _ in range(24)]
    flowing = measure(clock, WAIT_S / STEPS_PER_EPOCH, MEASURE_S)
    assert len(flowing) >= FEWEST_BLOCKS
    assert {block.steps % STEPS_PER_EPOCH for block in flowing} == {0}
    epoch_s, drained_s = (STEPS_PER_EPOCH * median(b.step_ms for b in blocks) / 1e3 for blocks in (flowing, waiting))
    assert epoch_s == pytest.approx(loop_s, rel=0.03)
    assert drained_s > epoch_s  # each block waits for what the GPU could have done meanwhile


def products(stream=None):
    """A clock of steps that are one large matrix product each, in this stream."""
    device = torch.device("cuda")
    matrix = torch.rand(4096, 4096, device=device)

    def run_steps(steps):
        with torch.cuda.stream(stream):
            for _ in range(steps):
                torch.mm(matrix, matrix)
        return steps

    return StepClock(device, run_steps)


@pytest.mark.gpu
def test_blocks_of_a_gpu_that_is_busy_all_the_time_are_the_same_in_both_ways():
    clock = products()
    step_s = clock.run(50).seconds / 50
    waiting, flowing = [clock.run(40) for _ in range(10)], measure(clock, step_s, 0.4)
    ratio = median(block.step_ms for block in flowing) / median(block.step_ms for block in waiting)
    assert ratio == pytest.approx(1.0, rel=0.02)


@pytest.mark.gpu
def test_work_in_a_stream_of_the_steps_own_is_timed_too():
    """Marks in the current stream do not see it."""
    clock = products(torch.cuda.Stream())
    step_s = clock.run(100).seconds / 100
    assert median(block.step_ms for block in measure(clock, step_s, 0.4)) == pytest.approx(1e3 * step_s, rel=0.1)


@pytest.mark.gpu
def test_a_step_that_begins_with_small_kernels_takes_in_a_trial_what_it_takes_in_a_loop():
    """The host launches them while the device still computes the step before, unless the clock waits in between."""
    device = torch.device("cuda")
    matrix, small = torch.rand(8192, 8192, device=device), torch.rand(64, device=device)

    def run_steps(steps):
        for _ in range(steps):
            for _ in range(200):
                small.add_(1.0)
            for _ in range(3):
                torch.mm(matrix, matrix)
        return steps

    clock = StepClock(device, run_steps)
    clock.run(20)
    loop = clock.run(60)
    blocks = measure(clock, loop.seconds / 60, 24 * loop.seconds / 60)
    assert median(block.step_ms for block in blocks) == pytest.approx(loop.step_ms, rel=0.01)
