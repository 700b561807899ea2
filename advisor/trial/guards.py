"""Guards: what disturbed a measurement from outside. A disturbed trial is marked, with the reason in plain words."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import psutil

# Below this many cores' worth of work by others, or with cores to spare, a measurement is left in peace.
_FOREIGN_CORES = 0.25
_SATURATED_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    busy_s: float
    own_s: float


class HostLoad:
    """Watches the host's processors from its creation on. Time stolen by a hypervisor counts as others' work."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._start = self._read()

    def disturbance(self) -> str:
        """What other processes took since the start, when that left too little for the trial; else an empty string."""
        now = self._read()
        elapsed_s = now.at_s - self._start.at_s
        cores = psutil.cpu_count() or 1
        busy = (now.busy_s - self._start.busy_s) / elapsed_s
        foreign = busy - (now.own_s - self._start.own_s) / elapsed_s
        if foreign < _FOREIGN_CORES or busy < _SATURATED_SHARE * cores:
            return ""
        return f"other processes used {foreign:.1f} of {cores} cores while it was measured"

    def _read(self) -> _Reading:
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        # Guest time is part of user time already.
        guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return _Reading(time.perf_counter(), sum(times) - idle_s - guests_s, self._own_s())

    def _own_s(self) -> float:
        """Processor seconds of this process, its finished children, and its live ones (DataLoader workers)."""
        usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        for child in self._process.children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total
