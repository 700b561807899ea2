"""The clock on a GPU whose work the host queues in bursts, as workers that finish together let it."""

import time
from statistics import median

import pytest
import torch

from advisor.trial.measurement.clock import FEWEST_BLOCKS, StepClock, measure

pytestmark = pytest.mark.gpu

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


def test_blocks_that_flow_into_one_another_take_what_the_loop_takes():
    device = torch.device("cuda")
    bursts = Bursts(device)
    clock = StepClock(device, bursts, lambda most: STEPS_PER_EPOCH)
    clock.run(2 * STEPS_PER_EPOCH)
    loop_s = clock.run(40 * STEPS_PER_EPOCH).seconds / 40
    waiting = [clock.run(STEPS_PER_EPOCH) for _ in range(24)]
    flowing = measure(clock, WAIT_S / STEPS_PER_EPOCH, MEASURE_S)
    assert len(flowing) >= FEWEST_BLOCKS
    assert {block.steps % STEPS_PER_EPOCH for block in flowing} == {0}
    epoch_s, drained_s = (STEPS_PER_EPOCH * median(b.step_ms for b in blocks) / 1e3 for blocks in (flowing, waiting))
    assert epoch_s == pytest.approx(loop_s, rel=0.03)
    assert drained_s > epoch_s  # each block waits for what the GPU could have done meanwhile


def test_blocks_of_a_gpu_that_is_busy_all_the_time_are_the_same_in_both_ways():
    device = torch.device("cuda")
    matrix = torch.rand(4096, 4096, device=device)

    def run_steps(steps):
        for _ in range(steps):
            torch.mm(matrix, matrix)
        return steps

    clock = StepClock(device, run_steps)
    step_s = clock.run(50).seconds / 50
    waiting, flowing = [clock.run(40) for _ in range(10)], measure(clock, step_s, 0.4)
    ratio = median(block.step_ms for block in flowing) / median(block.step_ms for block in waiting)
    assert ratio == pytest.approx(1.0, rel=0.02)


def test_work_in_a_stream_of_the_steps_own_is_timed_too():
    """Marks in the current stream do not see it."""
    device, stream = torch.device("cuda"), torch.cuda.Stream()
    matrix = torch.rand(4096, 4096, device=device)

    def run_steps(steps):
        with torch.cuda.stream(stream):
            for _ in range(steps):
                torch.mm(matrix, matrix)
        return steps

    clock = StepClock(device, run_steps)
    step_s = clock.run(100).seconds / 100
    step_ms = median(block.step_ms for block in measure(clock, step_s, 0.4))
    assert step_ms == pytest.approx(1e3 * step_s, rel=0.1)


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
