"""Guards: disturbances of a measurement from outside. A disturbed trial is marked, with the reason in plain words."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
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
# Falls of a clock that count. Unitless.
_CPU_CLOCK_FALL = 0.20
_SM_CLOCK_FALL = 0.10
_BETWEEN_READINGS_S = 0.2
# A desktop that redraws a clock takes a percent or two.
_COMPUTING_PERCENT = 5
_NEAR_SLOWDOWN_C = 2
# Shortest time over which energy is read. Seconds; the counter is updated about every 100 ms.
_SHORTEST_ENERGY_S = 1.0


class Guards:
    """All that watches a trial from outside while it is timed.

    Made at the trial's start, before it touches CUDA; ``watching`` goes around what is timed. ``watch_gpu`` is False
    for a trial on the CPU, and for one that takes turns with another on the same GPU, whose process is no stranger.
    NVML is opened for it, once in a trial's process; that time is in the trial's wall seconds and in no other figure.
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
        load, clock_mhz = HostLoad(), cpu_mhz()
        with self._gpu.reading(gpu_uuid) if self._gpu and gpu_uuid else nullcontext():
            yield
        of_gpu = self._gpu.disturbance() if self._gpu else ""
        self.disturbed = "; ".join(filter(None, (load.disturbance(), cpu_clock_fell(clock_mhz, cpu_mhz()), of_gpu)))

    def energy_j_per_sample(self, blocks: Sequence[Block]) -> float | None:
        """Energy of the whole GPU per sample timed, in joules.

        It includes idle power and the time between blocks. None without an energy counter, or for less than a second,
        which holds too few updates of the counter.
        """
        samples = sum(block.samples for block in blocks)
        energy_j = self._gpu.energy_j if self._gpu else None
        return energy_j / samples if energy_j is not None and samples else None


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
        self._own: frozenset[int] = frozenset()
        self._readings: list[GpuReading] = []
        self._slowdown_c: int | None = None
        self.energy_j: float | None = None

    @contextmanager
    def reading(self, uuid: str) -> Iterator[None]:
        """Read the GPU of this UUID until the block ends; a GPU that NVML does not know is not read.

        Call it when this process has a CUDA context: NVML lists the process only then.
        """
        gauges: GpuGauges | None = None
        with suppress(NvmlUnavailableError):
            gauges = GpuGauges(uuid, self._nvml)
        if gauges is None:
            yield
            return
        self._own, self._slowdown_c = frozenset(own_pids()), gauges.slowdown_c
        self._read(gauges)
        ended = threading.Event()
        thread = threading.Thread(target=self._read_until, args=(gauges, ended), name="gpu-watch", daemon=True)
        thread.start()
        started, energy_start = time.perf_counter(), gauges.energy_j()
        try:
            yield
            seconds, energy_end = time.perf_counter() - started, gauges.energy_j()
        finally:
            ended.set()
            thread.join()
        self._read(gauges)
        self._own |= own_pids()  # workers that were started meanwhile
        if energy_start is not None and energy_end is not None and seconds >= _SHORTEST_ENERGY_S:
            self.energy_j = energy_end - energy_start

    @property
    def summary(self) -> GpuReadings | None:
        """A summary of the readings; None when there were none."""
        return summarised(self._readings, self._ours()) if self._readings else None

    def disturbance(self) -> str:
        """The disturbances while the GPU was read, in words; empty without any."""
        return disturbance_of_gpu(self._readings, self._ours(), self._slowdown_c)

    def _ours(self) -> frozenset[int]:
        return own_processes(self._readings, self._before, self._own)

    def _read_until(self, gauges: GpuGauges, ended: threading.Event) -> None:
        while not ended.wait(_BETWEEN_READINGS_S):
            self._read(gauges)

    def _read(self, gauges: GpuGauges) -> None:
        if reading := gauges.read():
            self._readings.append(reading)


def own_processes(readings: Sequence[GpuReading], before: frozenset[int], own: frozenset[int]) -> frozenset[int]:
    """NVML's numbers for the processes of a trial; empty where it does not list them.

    ``before`` were listed before the trial touched CUDA, ``own`` are its processes as this host numbers them. Inside a
    container NVML may number them as the host does: then it is the busiest of those that appeared first.
    """
    new = (reading.pids - before for reading in readings if reading.pids is not None)
    appeared = next(filter(None, new), frozenset())  # NVML may list a process a moment after its context is there
    if os.getpid() in appeared:
        return own - before
    busy = _sm_percent_by_process(readings)
    return frozenset(sorted(appeared, key=lambda pid: busy.get(pid, 0))[-1:])


def summarised(readings: Sequence[GpuReading], ours: frozenset[int]) -> GpuReadings:
    """Readings in short, for the result. ``ours`` are the trial's processes; empty where NVML does not list them."""
    clocks = _sm_clocks(readings)
    watts = [reading.power_w for reading in readings if reading.power_w is not None]
    degrees = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
    others = [len(reading.pids - ours) for reading in readings if reading.pids is not None]
    return GpuReadings(
        samples=len(readings),
        temperature_c=max(degrees, default=None),
        sm_clock_mhz=round(median(clocks)) if clocks else None,
        sm_clock_lowest_mhz=min(clocks, default=None),
        power_w=fmean(watts) if watts else None,
        throttle_reasons=_throttle_reasons(readings),
        foreign_processes=max(others, default=0) if ours else None,
    )


def disturbance_of_gpu(readings: Sequence[GpuReading], ours: frozenset[int], slowdown_c: int | None) -> str:
    """The disturbances in these readings: phrases joined by semicolons, or an empty string."""
    phrases = [_others(readings, ours)] if ours else []
    if reasons := [reason for reason in _throttle_reasons(readings) if reason in SLOWDOWNS]:
        phrases.append(f"the GPU slowed itself down ({', '.join(reasons)})")
    highest_mhz = max(_sm_clocks(readings), default=0)
    fallen = [
        after.sm_clock_mhz
        for before, after in pairwise(readings)
        if after.sm_clock_mhz is not None
        and after.sm_clock_mhz < (1 - _SM_CLOCK_FALL) * highest_mhz
        # A clock that is low for the trial's own power or pauses is not yet up in the next reading.
        and not any(reading.idle or POWER_CAP in reading.throttle_reasons for reading in (before, after))
    ]
    if fallen:
        phrases.append(f"the GPU's SM clock fell from {highest_mhz} to {min(fallen)} MHz without a power cap")
    degrees = max((reading.temperature_c for reading in readings if reading.temperature_c is not None), default=0)
    if slowdown_c is not None and degrees >= slowdown_c - _NEAR_SLOWDOWN_C:
        phrases.append(f"the GPU was at {degrees} °C, and slows itself down at {slowdown_c} °C")
    return "; ".join(filter(None, phrases))


def _others(readings: Sequence[GpuReading], ours: frozenset[int]) -> str:
    """The work of other processes in words: the first sign of it; empty without any."""
    listings = [reading.pids - ours for reading in readings if reading.pids is not None]
    strangers = frozenset[int]().union(*listings)  # the driver may tell the use of processes that only draw as well
    busy = {pid: percent for pid, percent in _sm_percent_by_process(readings).items() if pid in strangers}
    pid = max(busy, key=busy.__getitem__, default=0)
    if pid and busy[pid] >= _COMPUTING_PERCENT:
        return f"another process (pid {pid}, {process_name(pid)}) used up to {busy[pid]} % of the GPU {_MEANWHILE}"
    came = any(after - before for before, after in pairwise(listings))
    return f"another process came to the GPU {_MEANWHILE}" if came else ""


def _sm_percent_by_process(readings: Sequence[GpuReading]) -> dict[int, int]:
    """The highest use of the SMs by process. The first reading's is from before, and counts only without a later."""
    peaks: dict[int, int] = {}
    for reading in [reading for reading in readings[1:] if reading.sm_percent] or readings[:1]:
        for pid, percent in reading.sm_percent.items():
            peaks[pid] = max(percent, peaks.get(pid, 0))
    return peaks


def _throttle_reasons(readings: Sequence[GpuReading]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for reading in readings for reason in reading.throttle_reasons))


def _sm_clocks(readings: Sequence[GpuReading]) -> list[int]:
    return [reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None]


def cpu_mhz(root: Path = Path("/")) -> float | None:
    """The clock of the core that this thread runs on; None where the kernel does not tell, as in most virtual machines.

    Not by psutil, which reads all cores: on some kernels each takes milliseconds.
    """
    file = root / f"sys/devices/system/cpu/cpu{psutil.Process().cpu_num()}/cpufreq/scaling_cur_freq"
    try:
        return int(file.read_text(encoding="ascii")) / 1000
    except (OSError, ValueError):
        return None


def cpu_clock_fell(before_mhz: float | None, now_mhz: float | None) -> str:
    """A phrase on the fall of the processor's clock, when it is large; else empty."""
    if before_mhz is None or now_mhz is None or now_mhz >= (1 - _CPU_CLOCK_FALL) * before_mhz:
        return ""
    return f"the processor's clock fell from {before_mhz:.0f} to {now_mhz:.0f} MHz {_MEANWHILE}"


class HostLoad(CoresInUse):
    """Tells whether other programs left a measurement too little of the processors."""

    def disturbance(self) -> str:
        """A phrase on the CPU time of other processes since the start, if they left too little; else empty."""
        cores = psutil.cpu_count() or 1
        busy, foreign = self.average()
        if foreign < _FOREIGN_CORES or busy < _SATURATED_SHARE * cores:
            return ""
        return f"other processes used {foreign:.1f} of {cores} cores {_MEANWHILE}"
