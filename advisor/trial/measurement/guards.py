"""Guards: disturbances of a measurement from outside. A disturbed trial is marked, with the reason in plain words."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from advisor.machine import hardware
from advisor.records import Block, GpuReading, GpuReadings

_MEANWHILE = "while it was measured"
_SM_CLOCK_FALL = 0.10  # smallest fall of the clock that counts; unitless
_BETWEEN_READINGS_S = 0.2
# A desktop that redraws a clock uses one or two percent.
_COMPUTING_PERCENT = 5
_NEAR_SLOWDOWN_C = 2
# Shortest time for a reading of energy. Seconds; the counter is updated about every 100 ms.
_SHORTEST_ENERGY_S = 1.0


class Guards:
    """Watches a trial for disturbances from outside while it is timed.

    Create it at the trial's start, before CUDA is used, and time inside ``watching``. ``watch_gpu`` is False for a
    trial on the CPU and for a trial that takes turns with another on the same GPU, whose process is not foreign.
    ``beside`` is the process of the same session that compiles meanwhile.

    A process that holds memory but does nothing is not a disturbance. Nor is the power cap, which a heavy step reaches.
    """

    def __init__(self, *, watch_gpu: bool, beside: int | None = None, nvml: hardware.Nvml = hardware.NVML) -> None:
        self._nvml = nvml if watch_gpu else None
        self._before = hardware.compute_pids(nvml) if watch_gpu else frozenset[int]()
        self._beside = frozenset(() if beside is None else (beside,))
        self._readings: list[GpuReading] = []
        self._energy_j: float | None = None
        self.disturbed = ""

    @property
    def gpu(self) -> GpuReadings | None:
        """NVML's readings during the timing; None if it was not asked or does not know this GPU."""
        if not self._readings:
            return None
        clocks, watts = _known(self._readings, "sm_clock_mhz"), _known(self._readings, "power_w")
        return GpuReadings(
            temperature_c=max(_known(self._readings, "temperature_c"), default=None),
            sm_clock_mhz=round(median(clocks)) if clocks else None,
            power_w=fmean(watts) if watts else None,
            throttle_reasons=_throttle_reasons(self._readings),
        )

    @contextmanager
    def watching(self, gpu_uuid: str | None) -> Iterator[None]:
        """Watch the GPU of this UUID until the block ends; then ``disturbed`` describes any disturbance.

        Call it when this process has a CUDA context, since NVML lists the process only then.
        """
        gauges = None
        with suppress(hardware.NvmlUnavailableError):
            gauges = hardware.GpuGauges(gpu_uuid, self._nvml) if self._nvml and gpu_uuid else None
        if gauges is None:
            yield
            return
        own = hardware.own_pids()
        self._readings.append(gauges.read())
        ended = threading.Event()

        def read_on() -> None:
            while not ended.wait(_BETWEEN_READINGS_S):
                self._readings.append(gauges.read())

        thread = threading.Thread(target=read_on, name="gpu-watch", daemon=True)
        thread.start()
        started, energy_start = time.perf_counter(), gauges.energy_j()
        try:
            yield
            seconds, energy_end = time.perf_counter() - started, gauges.energy_j()
        finally:
            ended.set()
            thread.join()
        self._readings.append(gauges.read())
        own |= hardware.own_pids()  # includes workers that were started meanwhile
        if energy_start is not None and energy_end is not None and seconds >= _SHORTEST_ENERGY_S:
            self._energy_j = energy_end - energy_start
        ours = own_processes(self._readings, self._before, frozenset(own), self._beside)
        self.disturbed = disturbance_of_gpu(self._readings, ours, gauges.slowdown_c)

    def energy_j_per_sample(self, blocks: Sequence[Block]) -> float | None:
        """Joules of the whole GPU (with idle power) per timed sample; None without a counter or for under a second."""
        samples = sum(block.samples for block in blocks)
        return self._energy_j / samples if self._energy_j is not None and samples else None


def own_processes(
    readings: Sequence[GpuReading], before: frozenset[int], own: frozenset[int], beside: frozenset[int] = frozenset()
) -> frozenset[int]:
    """NVML's numbers for the processes of a trial and the process ``beside`` it; empty if NVML does not list them.

    ``before`` were listed before the trial used CUDA; ``own`` are its processes as this process numbers them. In a
    container, NVML may use the host's numbers: then the trial's processes are the ones that appeared first.
    """
    new = (pids - before for pids in _known(readings, "pids"))
    appeared = next(filter(None, new), frozenset[int]())  # NVML may list a process a moment after its context is there
    if os.getpid() in appeared:
        return (own - before) | beside
    return frozenset() if beside else appeared


def disturbance_of_gpu(readings: Sequence[GpuReading], ours: frozenset[int], slowdown_c: int | None) -> str:
    """The disturbances in these readings: phrases joined by semicolons, or an empty string."""
    phrases = [_others(readings, ours)] if ours and readings else []
    if reasons := [reason for reason in _throttle_reasons(readings) if reason in hardware.SLOWDOWNS]:
        phrases.append(f"the GPU slowed itself down ({', '.join(reasons)})")
    highest_mhz = max(_known(readings, "sm_clock_mhz"), default=0)
    fallen = [
        after.sm_clock_mhz
        for before, after in pairwise(readings)
        if after.sm_clock_mhz is not None
        and after.sm_clock_mhz < (1 - _SM_CLOCK_FALL) * highest_mhz
        # After a drop from the trial's own power use or pauses, the clock may still be low in the next reading.
        and not any(reading.idle or hardware.POWER_CAP in reading.throttle_reasons for reading in (before, after))
    ]
    if fallen:
        phrases.append(f"the GPU's SM clock fell from {highest_mhz} to {min(fallen)} MHz without a power cap")
    degrees = max(_known(readings, "temperature_c"), default=0)
    if slowdown_c is not None and degrees >= slowdown_c - _NEAR_SLOWDOWN_C:
        phrases.append(f"the GPU was at {degrees} °C, and slows itself down at {slowdown_c} °C")
    return "; ".join(filter(None, phrases))


def _others(readings: Sequence[GpuReading], ours: frozenset[int]) -> str:
    """The first sign of work by other processes, in words; empty if there is none."""
    listings = [pids - ours for pids in _known(readings, "pids")]
    strangers = frozenset[int]().union(*listings)  # the driver may also report processes that only draw
    # The first reading reports use before it, which counts only if no later reading reports any.
    told = [reading.sm_percent for reading in readings[1:] if reading.sm_percent] or [readings[0].sm_percent]
    percent, pid = max(((use, pid) for busy in told for pid, use in busy.items() if pid in strangers), default=(0, 0))
    if percent >= _COMPUTING_PERCENT:
        return (
            f"another process (pid {pid}, {hardware.process_name(pid)}) used up to {percent} % of the GPU {_MEANWHILE}"
        )
    came = any(after - before for before, after in pairwise(listings))
    return f"another process came to the GPU {_MEANWHILE}" if came else ""


def _throttle_reasons(readings: Sequence[GpuReading]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for reading in readings for reason in reading.throttle_reasons))


def _known(readings: Sequence[GpuReading], name: str) -> list[Any]:
    """The known values of a field in the readings."""
    return [value for reading in readings if (value := getattr(reading, name)) is not None]
