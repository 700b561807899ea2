"""What disturbs a measurement: real threads and processes; NVML is a small stand-in."""

import itertools
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from fake_nvml import UUID, FakeNvml, nvml, nvml_of, process
from trial_processes import until

from advisor.machine.hardware import POWER_CAP, SLOWDOWNS
from advisor.records import Block, GpuReading, GpuReadings
from advisor.trial.measurement import guards
from advisor.trial.measurement.guards import Guards, disturbance_of_gpu, own_processes

ME = os.getpid()
STRANGER = 4_100_001  # numbers of a host, which are none in this namespace
HERE, BEFORE = frozenset({ME}), frozenset({STRANGER})


def reading(**changes):
    """A GPU in full swing with this trial on it alone."""
    usual = GpuReading(UUID, temperature_c=60, power_w=500.0, sm_clock_mhz=1980, pids=HERE, sm_percent={ME: 98})
    return replace(usual, **changes)


def of_us(*listings, before=frozenset(), own=frozenset({ME}), beside=frozenset(), **changes):
    readings = [reading(pids=frozenset(pids), sm_percent={}) for pids in listings]
    return own_processes([*readings[:-1], replace(readings[-1], **changes)], before, own, beside)


def test_a_trial_knows_itself_and_its_children_by_number():
    own = frozenset({ME, 12, 13})
    assert of_us({ME, 13, STRANGER}, before=BEFORE, own=own) == own


def test_a_trial_that_the_host_numbers_is_the_one_that_appeared():
    assert of_us({STRANGER}, {STRANGER, STRANGER + 1}, before=BEFORE) == {STRANGER + 1}
    assert of_us({STRANGER + 1}, {STRANGER + 1, STRANGER + 2}) == {STRANGER + 1}


def test_what_compiles_beside_a_trial_is_no_stranger():
    beside = frozenset({77})
    ours = of_us({77, ME}, before=beside, beside=beside)
    assert ours == {77, ME}
    assert disturbance_of_gpu([reading(pids=frozenset({77, ME}), sm_percent={ME: 60, 77: 38})] * 3, ours, 90) == ""
    assert not of_us({STRANGER}, {STRANGER, STRANGER + 1}, before=BEFORE, beside=beside)


@pytest.mark.parametrize("pids", [frozenset(), BEFORE])
def test_a_trial_that_nvml_does_not_list_cannot_count_others(pids):
    ours = of_us(pids, before=BEFORE)
    assert not ours
    unlisted = [reading(pids=pids, sm_percent=dict.fromkeys(pids, 99))] * 3
    assert disturbance_of_gpu(unlisted, ours, 90) == ""


BOTH = frozenset({ME, STRANGER})
IDLE, RISING, CAPPED = {"sm_clock_mhz": 345, "idle": True}, {"sm_clock_mhz": 900}, {"throttle_reasons": (POWER_CAP,)}
# What changes from reading to reading, and the disturbance in words.
DISTURBANCES = {
    "another process that computes": (
        [{"pids": BOTH}, *[{"pids": BOTH, "sm_percent": {ME: 60, STRANGER: 38}}] * 2],
        f"another process (pid {STRANGER}, a process outside this container) "
        "used up to 38 % of the GPU while it was measured",
    ),
    "one that holds memory only": ([{"pids": BOTH, "sm_percent": {ME: 98, STRANGER: 2}}] * 3, ""),
    "one that comes": ([{}, *[{"pids": BOTH}] * 2], "another process came to the GPU while it was measured"),
    **{
        reason: ([{}, {"throttle_reasons": (POWER_CAP, reason)}, {}], f"the GPU slowed itself down ({reason})")
        for reason in sorted(SLOWDOWNS)
    },
    "a power cap": ([{}, {"sm_clock_mhz": 1200, **CAPPED}, {"sm_clock_mhz": 1300}], ""),
    "a clock that falls": (
        [{}, {"sm_clock_mhz": 1790}, {"sm_clock_mhz": 1410}],
        "the GPU's SM clock fell from 1980 to 1410 MHz without a power cap",
    ),
    "a GPU that waits": ([{}, IDLE, RISING, {}], ""),
    "a clock that stays low after that": (
        [{}, IDLE, RISING, RISING],
        "the GPU's SM clock fell from 1980 to 900 MHz without a power cap",
    ),
    "heat": ([{}, {"temperature_c": 88}], "the GPU was at 88 °C, and slows itself down at 90 °C"),
}


@pytest.mark.parametrize(("changes", "words"), DISTURBANCES.values(), ids=DISTURBANCES)
def test_what_counts_as_a_disturbance(changes, words):
    assert disturbance_of_gpu([reading(**change) for change in changes], HERE, 90) == words


def test_readings_in_short():
    readings = [
        reading(sm_clock_mhz=1980, temperature_c=50, power_w=400.0),
        reading(sm_clock_mhz=1900, temperature_c=61, power_w=500.0, throttle_reasons=(POWER_CAP,)),
        reading(sm_clock_mhz=1600, temperature_c=60, power_w=600.0),
    ]
    watch = Guards(watch_gpu=False)
    watch._readings = readings
    assert watch.gpu == GpuReadings(61, 1900, 500.0, (POWER_CAP,))
    watch._readings = [GpuReading(UUID)]
    assert watch.gpu == GpuReadings()


@pytest.fixture
def library():
    """A GPU that works on this trial's steps once the trial has begun to compute."""
    fake = FakeNvml()
    fake.bits, fake.celsius = 4, 60
    return fake


def started(library, *others, number=ME):
    """A watch made before the trial computes, with these processes on the GPU then; ``number`` is NVML's for us."""
    library.processes = [process(pid) for pid in others]
    watch = Guards(watch_gpu=True, nvml=nvml_of(library))
    library.processes = [*library.processes, process(number)]
    return watch


def watch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gpu-watch"]


def test_a_watch_reads_in_a_thread_that_ends_with_it(library):
    watch = started(library)
    with watch.watching(UUID):
        assert len(watch_threads()) == 1
        assert until(lambda: len(watch._readings) >= 3)
    assert watch_threads() == []
    assert len(watch._readings) >= 4
    assert watch.gpu == GpuReadings(60, 1755, 76.5, (POWER_CAP,))
    assert watch.disturbed == ""


# NVML may number this process as the host does, which is not how this process numbers itself.
@pytest.mark.parametrize("number", [ME, STRANGER + 7], ids=["as here", "as on the host"])
def test_a_process_that_appears_midway(library, number):
    watch = started(library, number=number)
    with watch.watching(UUID):
        library.processes = [*library.processes, process(STRANGER)]
        assert until(lambda: any(STRANGER in reading.pids for reading in watch._readings))
        library.processes = library.processes[:-1]
    assert watch.disturbed == "another process came to the GPU while it was measured"


def test_a_worker_of_ours_that_begins_to_compute_is_no_stranger(library):
    watch = started(library)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with watch.watching(UUID):
            library.processes = [*library.processes, process(child.pid)]
            readings = len(watch._readings)
            assert until(lambda: len(watch._readings) > readings)
        assert watch.disturbed == ""
        child.communicate(b"\n")


def test_a_machine_without_nvml_is_not_watched():
    watch = Guards(watch_gpu=True, nvml=nvml(refused={"nvmlInit": FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND}))
    with watch.watching(UUID):
        assert watch_threads() == []
    assert (watch.gpu, watch.disturbed, watch.energy_j_per_sample(BLOCKS)) == (None, "", None)


BLOCKS = [Block(steps=2, samples=8, seconds=0.5), Block(steps=1, samples=4, seconds=0.25)]


@pytest.fixture
def guarded(library):
    """Guards over the fake, after watching for at least this long."""

    def run(seconds=0.0):
        library.millijoules = itertools.count(7_000_000, 30_000).__next__  # moves by 30 J each time that it is read
        watching = Guards(watch_gpu=True, nvml=nvml_of(library))
        with watching.watching(UUID):
            time.sleep(seconds)
        return watching

    return run


def test_what_disturbed_the_gpu_is_said_of_the_trial(guarded, library):
    library.bits = library.nvmlClocksThrottleReasonHwThermalSlowdown
    assert guarded().disturbed.startswith("the GPU slowed itself down")


def test_energy_is_the_counters_difference_over_the_samples_of_a_second_or_more(guarded, monkeypatch):
    assert guards._SHORTEST_ENERGY_S == 1.0
    assert guarded().energy_j_per_sample(BLOCKS) is None
    monkeypatch.setattr(guards, "_SHORTEST_ENERGY_S", 0.05)
    watched = guarded(0.06)
    assert watched.energy_j_per_sample(BLOCKS) == pytest.approx(30.0 / 12)
    assert watched.energy_j_per_sample([]) is None
