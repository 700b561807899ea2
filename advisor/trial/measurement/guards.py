"""Guards: disturbances of a measurement from outside. A disturbed trial is marked, with the reason in plain words."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from pathlib import Path
from statistics import fmean, median

import psutil

from advisor.machine.hardware import POWER_CAP, SLOWDOWNS, GpuGauges, GpuReading, compute_pids, own_pids, process_name
from advisor.machine.host import CoresInUse
from advisor.machine.nvml import NVML, Nvml, NvmlUnavailableError
from advisor.records import Block, GpuReadings

_MEANWHILE = "while it was measured"

# A measurement is disturbed by this much work of others (cores), once this share of all cores is busy.
_FOREIGN_CORES = 0.25
_SATURATED_SHARE = 0.85

_CPU_CLOCK_FALL = 0.20
_CORES_READ = 4

_BETWEEN_READINGS_S = 0.2
# A desktop that redraws a clock takes a percent or two.
_COMPUTING_PERCENT = 5
_SM_CLOCK_FALL = 0.10
_NEAR_SLOWDOWN_C = 2
# Shortest time over which energy is read. Seconds; the counter is updated about every 100 ms.
_SHORTEST_ENERGY_S = 1.0


class Guards:
    """All that watches a trial from outside while it is timed.

    Made at the trial's start, before it touches CUDA; ``watching`` goes around what is timed. ``watch_gpu`` is False
    for a trial on the CPU, and for one that takes turns with another on the same GPU, whose process is no stranger.
    NVML is opened for it, once in a trial's process; that time is in the trial's wall seconds and in no other figure.
    Then ``disturbed`` is what ``TrialResult`` has.
    """

    def __init__(self, *, watch_gpu: bool, nvml: Nvml = NVML) -> None:
        self._gpu = GpuWatch(nvml) if watch_gpu else None
        self.disturbed = ""

    @property
    def gpu(self) -> GpuReadings | None:
        """NVML's readings meanwhile; None when it was not asked or knows nothing of this GPU."""
        return self._gpu.summary if self._gpu else None

    @contextmanager
    def watching(self, gpu_uuid: str | None) -> Iterator[None]:
        """Watch the host, and the GPU of this UUID, until the block ends; then ``disturbed`` says what was the matter.

        Nothing is said of a block that raises.
        """
        load, clock = HostLoad(), CpuClock()
        with self._gpu.reading(gpu_uuid) if self._gpu and gpu_uuid else nullcontext():
            yield
        by_others = (load.disturbance(), self._gpu.by_others() if self._gpu else "")
        slowed = (clock.disturbance(), self._gpu.slowed() if self._gpu else "")
        self.disturbed = "; ".join(filter(None, (*by_others, *slowed)))

    def energy_j_per_sample(self, blocks: Sequence[Block]) -> float | None:
        """Energy of the whole GPU per sample timed, in joules.

        It includes idle power and the time between blocks. None without an energy counter, or for less than a second,
        which holds too few updates of the counter.
        """
        samples = sum(block.samples for block in blocks)
        energy_j = self._gpu.energy_j if self._gpu else None
        return energy_j / samples if energy_j is not None and samples else None


# --- the GPU --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ourselves:
    """NVML's numbers for this trial's processes.

    Inside a container NVML may number processes as the host does. Then none of the numbers is known to be ours
    (``certain`` is empty), and one of those that appeared when this trial began to compute is it (``candidates``).
    Where both are empty, NVML does not list this trial at all, or not apart from others.
    """

    certain: frozenset[int]
    candidates: frozenset[int]

    @classmethod
    def among(cls, pids: frozenset[int], before: frozenset[int], own: frozenset[int]) -> Ourselves:
        """Found in the numbers listed now, by those listed before CUDA was touched and those that this host gives us.

        A number that was listed before is another process's, even when the container gives it to us as well.
        """
        new = pids - before
        if os.getpid() in new:
            return cls(certain=own - before, candidates=frozenset())
        return cls(certain=frozenset(), candidates=new)

    @property
    def listed(self) -> bool:
        """Whether NVML lists us, so that it would list others too."""
        return bool(self.certain or self.candidates)

    def others(self, pids: frozenset[int]) -> int:
        """The number of these that are not this trial."""
        return len(pids - self.certain) - bool(pids & self.candidates)

    def busy_others(self, sm_percent: dict[int, int]) -> dict[int, int]:
        """The processes that computed, without this trial: where it is not known which is the trial, the busiest is."""
        busy = {pid: percent for pid, percent in sm_percent.items() if percent >= _COMPUTING_PERCENT}
        candidates = sorted(self.candidates & busy.keys(), key=busy.__getitem__)
        return {pid: percent for pid, percent in busy.items() if pid not in self.certain | set(candidates[-1:])}


class GpuWatch:
    """Reads a GPU's gauges in a thread while something is timed on it. Made before this process touches CUDA.

    A disturbance is another process that computes meanwhile, or that comes; a slowdown for heat or for power
    that the board is not given; a clock that falls without a power cap as its reason; a GPU about to slow down. A
    process that holds memory and does nothing is none, nor is the power cap, which a heavy step earns.

    Whether others compute is known only where the driver tells it by process, which it does not for MIG instances.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._before = compute_pids(nvml)
        self._gauges: GpuGauges | None = None
        self._readings: list[GpuReading] = []
        self._own: frozenset[int] = frozenset()
        self.energy_j: float | None = None

    @contextmanager
    def reading(self, uuid: str) -> Iterator[None]:
        """Read the GPU of this UUID until the block ends; a GPU that NVML does not know is not read.

        Call it when this process has a CUDA context: NVML lists the process only then.
        """
        self._gauges = gauges = _gauges(uuid, self._nvml)
        if gauges is None:
            yield
            return
        self._own = frozenset(own_pids())
        self._read(gauges)
        ended = threading.Event()
        thread = threading.Thread(target=self._keep_reading, args=(gauges, ended), name="gpu-watch", daemon=True)
        thread.start()
        started, energy_start = time.perf_counter(), gauges.energy_j()
        try:
            yield
            seconds, energy_end = time.perf_counter() - started, gauges.energy_j()
        finally:
            ended.set()
            thread.join()
        self._read(gauges)
        # A worker that was started meanwhile is ours too.
        self._own |= own_pids()
        if energy_start is not None and energy_end is not None and seconds >= _SHORTEST_ENERGY_S:
            self.energy_j = energy_end - energy_start

    @property
    def summary(self) -> GpuReadings | None:
        """A summary of the readings; None when there were none."""
        return summarised(self._readings, self._ourselves()) if self._readings else None

    def by_others(self) -> str:
        """The work of other processes on the GPU while it was read, in words; empty without any."""
        return others_on_gpu(self._readings, self._ourselves())

    def slowed(self) -> str:
        """The slowdowns of the GPU while it was read, in words; empty without any."""
        return slowdown_of_gpu(self._readings, self._gauges.slowdown_c if self._gauges else None)

    def _ourselves(self) -> Ourselves:
        listings = [reading.pids for reading in self._readings if reading.pids is not None]
        # NVML may list a process a moment after its context is there.
        listed = next((pids for pids in listings if pids - self._before), frozenset())
        return Ourselves.among(listed, self._before, self._own)

    def _keep_reading(self, gauges: GpuGauges, ended: threading.Event) -> None:
        while not ended.wait(_BETWEEN_READINGS_S):
            self._read(gauges)

    def _read(self, gauges: GpuGauges) -> None:
        reading = gauges.read()
        if reading is not None:
            self._readings.append(reading)


def _gauges(uuid: str, nvml: Nvml) -> GpuGauges | None:
    try:
        return GpuGauges(uuid, nvml)
    except NvmlUnavailableError:
        return None


def summarised(readings: Sequence[GpuReading], ourselves: Ourselves) -> GpuReadings:
    """Readings in short, for the result."""
    clocks = _sm_clocks(readings)
    watts = [reading.power_w for reading in readings if reading.power_w is not None]
    degrees = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
    others = [ourselves.others(reading.pids) for reading in readings if reading.pids is not None]
    return GpuReadings(
        samples=len(readings),
        temperature_c=max(degrees, default=None),
        sm_clock_mhz=round(median(clocks)) if clocks else None,
        sm_clock_lowest_mhz=min(clocks, default=None),
        power_w=fmean(watts) if watts else None,
        throttle_reasons=_throttle_reasons(readings),
        foreign_processes=max(others, default=0) if ourselves.listed else None,
    )


def others_on_gpu(readings: Sequence[GpuReading], ourselves: Ourselves) -> str:
    """The work of other processes in these readings, in words: the first sign of it; empty without any."""
    return _computed_beside(readings, ourselves) or _came_or_went(readings, ourselves)


def slowdown_of_gpu(readings: Sequence[GpuReading], slowdown_c: int | None) -> str:
    """The slowdowns of the GPU in these readings: phrases joined by semicolons, or an empty string."""
    phrases = (_slowed_down(readings), _clock_fell(readings), _near_slowdown(readings, slowdown_c))
    return "; ".join(filter(None, phrases))


def _computed_beside(readings: Sequence[GpuReading], ourselves: Ourselves) -> str:
    """The first reading's utilisation is from before; it counts only where the driver gave none since."""
    told = [reading for reading in readings[1:] if reading.sm_percent] or readings[:1]
    listed = frozenset[int]().union(*(reading.pids or () for reading in readings))
    peaks: dict[int, int] = {}
    for reading in told:
        for pid, percent in reading.sm_percent.items():
            # Drivers may number processes in this list otherwise than in the other, and list here what draws only.
            if pid in listed:
                peaks[pid] = max(percent, peaks.get(pid, 0))
    others = ourselves.busy_others(peaks) if ourselves.listed else {}
    if not others:
        return ""
    pid = max(others, key=others.__getitem__)
    return f"another process (pid {pid}, {process_name(pid)}) used up to {others[pid]} % of the GPU {_MEANWHILE}"


def _came_or_went(readings: Sequence[GpuReading], ourselves: Ourselves) -> str:
    """A process that leaves disturbs nothing by that: it counts where the driver tells nobody's computing."""
    listed = [reading.pids - ourselves.certain for reading in readings if reading.pids is not None]
    after_us = list(dropwhile(lambda pids: not pids & ourselves.candidates, listed)) or listed
    if any(after - before for before, after in pairwise(after_us)):
        return f"another process came to the GPU {_MEANWHILE}"
    told = any(reading.sm_percent for reading in readings)
    if not told and any(before - after for before, after in pairwise(listed)):
        return f"another process left the GPU {_MEANWHILE}"
    return ""


def _slowed_down(readings: Sequence[GpuReading]) -> str:
    reasons = [reason for reason in _throttle_reasons(readings) if reason in SLOWDOWNS]
    return f"the GPU slowed itself down ({', '.join(reasons)})" if reasons else ""


def _throttle_reasons(readings: Sequence[GpuReading]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for reading in readings for reason in reading.throttle_reasons))


def _clock_fell(readings: Sequence[GpuReading]) -> str:
    """A clock that is low with a reason of the trial's own, its power or its pauses, is not yet up in the next one."""
    clocks = _sm_clocks(readings)
    fallen = [
        after.sm_clock_mhz
        for before, after in pairwise(readings)
        if after.sm_clock_mhz is not None
        and after.sm_clock_mhz < (1 - _SM_CLOCK_FALL) * max(clocks)
        and not any(reading.idle or POWER_CAP in reading.throttle_reasons for reading in (before, after))
    ]
    return f"the GPU's SM clock fell from {max(clocks)} to {min(fallen)} MHz without a power cap" if fallen else ""


def _sm_clocks(readings: Sequence[GpuReading]) -> list[int]:
    return [reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None]


def _near_slowdown(readings: Sequence[GpuReading], slowdown_c: int | None) -> str:
    degrees = max((reading.temperature_c for reading in readings if reading.temperature_c is not None), default=None)
    if slowdown_c is None or degrees is None or degrees < slowdown_c - _NEAR_SLOWDOWN_C:
        return ""
    return f"the GPU was at {degrees} °C, and slows itself down at {slowdown_c} °C"


# --- the host -------------------------------------------------------------------------------------------------


class CpuClock:
    """Watches the clock of the host's processors from its creation on, where the kernel tells it.

    Of a few cores, the one that this thread runs on among them, the fastest counts: idle cores slow down by themselves.
    Many cores are not read, for on some kernels each read takes milliseconds. Virtual machines mostly tell nothing.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._start_mhz = self._read_mhz()

    def disturbance(self) -> str:
        """The fall of the clock since the start, when it is large; else an empty string."""
        now_mhz = self._read_mhz()
        if self._start_mhz is None or now_mhz is None or now_mhz >= (1 - _CPU_CLOCK_FALL) * self._start_mhz:
            return ""
        return f"the processor's clock fell from {self._start_mhz:.0f} to {now_mhz:.0f} MHz {_MEANWHILE}"

    def _read_mhz(self) -> float | None:
        clocks = [mhz for core in _cores_to_read() if (mhz := self._core_mhz(core)) is not None]
        return max(clocks, default=None)

    def _core_mhz(self, core: int) -> float | None:
        path = self._root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
        try:
            return int(path.read_text(encoding="ascii")) / 1000
        except (OSError, ValueError):
            return None


def _cores_to_read() -> set[int]:
    """This thread's core, and others of those that this process may use, spread over all of them."""
    usable = sorted(os.sched_getaffinity(0))
    return {psutil.Process().cpu_num(), *usable[:: 1 + len(usable) // _CORES_READ]}


class HostLoad(CoresInUse):
    """Tells whether other programs left a measurement too little of the processors."""

    def disturbance(self) -> str:
        """A phrase on the CPU time of other processes since the start, if they left too little; else empty."""
        cores = psutil.cpu_count() or 1
        busy, foreign = self.average()
        if foreign < _FOREIGN_CORES or busy < _SATURATED_SHARE * cores:
            return ""
        return f"other processes used {foreign:.1f} of {cores} cores {_MEANWHILE}"
