"""The clock on a GPU whose work the host queues in bursts, as workers that finish together let it."""

from __future__ import annotations

import time
from statistics import median

import pytest
import torch

from advisor.trial.clock import FEWEST_BLOCKS, StepClock, measure

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
    clock = StepClock(device, bursts)
    clock.run(2 * STEPS_PER_EPOCH)
    loop_s = clock.run(40 * STEPS_PER_EPOCH).seconds / 40
    waiting = measure(clock, WAIT_S / STEPS_PER_EPOCH, MEASURE_S)
    flowing = measure(clock, WAIT_S / STEPS_PER_EPOCH, MEASURE_S, cycle_of=lambda most: STEPS_PER_EPOCH)
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
    waiting, flowing = measure(clock, step_s, 0.4), measure(clock, step_s, 0.4, cycle_of=lambda most: 4)
    ratio = median(block.step_ms for block in flowing) / median(block.step_ms for block in waiting)
    assert ratio == pytest.approx(1.0, rel=0.02)
