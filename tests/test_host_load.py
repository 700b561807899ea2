"""Disturbances of a measurement on the host: other processes, and a processor whose clock falls."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from advisor.experiment.caveats import busiest_programs
from advisor.machine.host import CpuReading
from advisor.trial.measurement import guards
from advisor.trial.measurement.guards import CpuClock, HostLoad


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


SPIN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
SERVES = (
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])\nprint(flush=True)\nsys.stdin.read()"
)


def test_the_work_of_this_process_and_its_children_is_its_own():
    load = HostLoad()
    before = load._own_s()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert load._own_s() - before >= 0.29


def test_the_work_of_what_a_live_child_had_done_is_its_own():
    load = HostLoad()
    before = load._own_s()
    command, pipe = [sys.executable, "-c", SERVES], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as server:
        server.stdout.readline()
        assert load._own_s() - before >= 0.29


def test_the_cores_of_others_are_told_of_a_time_that_the_kernel_counts():
    now = time.perf_counter()
    assert ScriptedLoad((now, 0, 0), (now + 10, 30, 13)).foreign() == 0.0
    assert ScriptedLoad((now - 9, 0, 0), (now + 1, 30, 13)).foreign() == pytest.approx(1.7)
    assert ScriptedLoad((now - 9, 0, 0), (now + 1, 30, 31)).foreign() == 0.0


def test_the_programs_that_keep_cores_busy_are_named_and_this_one_is_not():
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN.replace('0.3', '2')!r}])"
    subprocess.run([sys.executable, "-c", start], check=True)  # its child is nobody's here
    named = busiest_programs()
    assert any(name.startswith("python") for name in named)
    assert len(named) <= 3


def kernel_of(root, mhz):
    """A kernel that tells this clock of every core."""
    for core in range(psutil.cpu_count()):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scaling_cur_freq").write_text(f"{mhz * 1000}\n")
    return root


@pytest.mark.parametrize(
    ("mhz", "said"),
    [
        (3600, ""),
        (3000, ""),
        (4800, ""),
        (2100, "the processor's clock fell from 3600 to 2100 MHz while it was measured"),
    ],
)
def test_the_processors_clock(tmp_path, mhz, said):
    clock = CpuClock(kernel_of(tmp_path, 3600))
    kernel_of(tmp_path, mhz)
    assert clock.disturbance() == said


def test_idle_cores_may_slow_down(tmp_path):
    clock = CpuClock(kernel_of(tmp_path, 3600))
    fast = guards._cores_to_read().pop()
    kernel_of(tmp_path, 800)
    (tmp_path / f"sys/devices/system/cpu/cpu{fast}/cpufreq/scaling_cur_freq").write_text("3600000\n")
    if fast in guards._cores_to_read():  # unless the system has moved this thread meanwhile
        assert clock.disturbance() == ""


def test_a_machine_that_does_not_tell_its_clock(tmp_path):
    assert CpuClock(tmp_path).disturbance() == ""


def test_few_cores_are_read_of_many(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(100, 300)))
    cores = guards._cores_to_read() - {psutil.Process().cpu_num()}
    assert 3 <= len(cores) <= 5
    assert max(cores) - min(cores) >= 100
