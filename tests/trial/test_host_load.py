"""Disturbances of a measurement on the host: other processes."""

import time

import psutil
import pytest

from advisor.machine.host import CpuReading
from advisor.trial.measurement.guards import HostLoad


class ScriptedLoad(HostLoad):
    """The host's load with figures for: seconds by the clock, processor seconds of all, and of this trial."""

    def __init__(self, *readings):
        self.left = [CpuReading(*one) for one in readings]
        super().__init__()

    def _read(self):
        return self.left.pop(0)


def test_work_of_others_disturbs_where_it_leaves_too_little():
    cores = psutil.cpu_count()
    full = ScriptedLoad((0, 0, 0), (10, 10 * cores, 10 * (cores - 0.5)))
    assert full.disturbance() == f"other processes used 0.5 of {cores} cores while it was measured"
    assert ScriptedLoad((0, 0, 0), (10, 10 * cores, 9.9 * cores)).disturbance() == ""
    assert ScriptedLoad((0, 0, 0), (10, 5 * cores, 0)).disturbance() == ""


def test_the_cores_of_others_are_told_of_a_time_that_the_kernel_counts():
    now = time.perf_counter()
    assert ScriptedLoad((now, 0, 0), (now + 10, 30, 13)).foreign() == 0.0
    assert ScriptedLoad((now - 9, 0, 0), (now + 1, 30, 13)).foreign() == pytest.approx(1.7)
    assert ScriptedLoad((now - 9, 0, 0), (now + 1, 30, 31)).foreign() == 0.0
