"""Disturbances of a measurement on the host: other processes, and a processor whose clock falls."""

import subprocess
import sys
import time

import psutil
import pytest

from advisor.machine.host import CpuReading
from advisor.trial.measurement.guards import HostLoad, cpu_clock_fell, cpu_mhz


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
    before = cpu_mhz(kernel_of(tmp_path, 3600))
    assert cpu_clock_fell(before, cpu_mhz(kernel_of(tmp_path, mhz))) == said


def test_a_machine_that_does_not_tell_its_clock(tmp_path):
    assert cpu_mhz(tmp_path) is None
    assert cpu_clock_fell(None, None) == cpu_clock_fell(3600.0, None) == ""
