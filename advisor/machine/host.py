"""The host: its processor and memory, the part that this process may use, and its load."""

import math
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from advisor.records import HostInfo, HostSample

CPU_FEATURES = "avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8 asimdbf16 bf16 i8mm sve sve2"
# Shortest time over which the used cores are measured. Seconds; the kernel counts in hundredths of one.
_SHORTEST_WATCH_S = 1.0


def host_info(root: Path = Path("/")) -> HostInfo:
    """The processor and the memory, and the part of them that this process may use."""
    logical = psutil.cpu_count() or os.cpu_count() or 1
    cpu_lines = text_of_file(root / "proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(\S.*)$", cpu_lines, re.M)  # ARM's processors do not have this line
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpu_lines, re.M)
    present = set(flags[1].split()) if flags else set()
    total, available = _memory_limits(root)
    return HostInfo(
        cpu=" ".join(name[1].split()) if name else platform.machine(),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=usable_cores(root),
        memory_total_bytes=total,
        memory_available_bytes=available,
        cpu_features=tuple(feature for feature in CPU_FEATURES.split() if feature in present),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load=os.getloadavg()[0],
    )


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that this process may keep busy: its CPU affinity and its control group's quota, rounded up."""
    affinity = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _cgroup_folders("cpu", root) if (quota := _cpu_quota(folder))]
    return min([affinity, *map(math.ceil, quotas)])


def _memory_limits(root: Path) -> tuple[int, int]:
    """Bytes of memory in total and available, within the limits of the machine and its control groups."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for folder in _cgroup_folders("memory", root):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is None or limit >= memory.total:
            continue
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
        total = min(total, limit)
        # The kernel frees file cache before the control group runs out of memory.
        cache = re.search(r"^(?:total_)?inactive_file (\d+)$", text_of_file(folder / "memory.stat"), re.M)
        available = min(available, max(0, limit - used + (int(cache[1]) if cache else 0)))
    return total, available


def _cpu_quota(folder: Path) -> float | None:
    """The cores that a control group may use, or None without a limit: cpu.max in version 2, cfs_quota in 1."""
    version_1 = (text_of_file(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    quota, period = text_of_file(folder / "cpu.max").split() or version_1
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group (version 2 or 1) and those above it.

    Inside a container, the path that the kernel names is often not visible. Then the mount's root is the group's own.
    """
    mounts = root / "sys/fs/cgroup"
    for line in text_of_file(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in (mounts / controller, mounts / controllers) if controllers else (mounts, mounts / "unified"):
            group = mount / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _number(*paths: Path) -> int | None:
    words = (text_of_file(path).strip() for path in paths)
    return next((int(word) for word in words if word.isdigit()), None)


def text_of_file(path: Path) -> str:
    """A text file of the kernel's, or an empty string if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sample_host() -> HostSample:
    """Return one reading, taken over 0.2 s: without that time, psutil returns 0 at the first call of a thread."""
    memory = psutil.virtual_memory()
    return HostSample(psutil.cpu_percent(0.2), memory.total - memory.available, memory.total)


class CoresInUse:
    """Measures the use of the host's processors since its creation. A hypervisor's time counts as work of others."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._start = self._read()

    def foreign(self) -> float:
        """The cores that other programs (not this process or its children) used; 0 if the watch has just begun."""
        elapsed_s, busy_s, own_s = (now - start for now, start in zip(self._read(), self._start, strict=True))
        return max(0.0, (busy_s - own_s) / elapsed_s) if elapsed_s >= _SHORTEST_WATCH_S else 0.0

    def _read(self) -> tuple[float, float, float]:
        """Seconds by the clock, and processor seconds of all programs, and of this program with its children."""
        times = psutil.cpu_times()
        # Guest time is part of user time already.
        busy_s = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        own_s = 0.0
        # Live descendants are a DataLoader's workers, or the fork server and its trials.
        for one in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                own_s += sum(one.cpu_times()[:4])  # the last two are those of its own finished children
        return time.perf_counter(), busy_s, own_s
