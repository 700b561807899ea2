"""The machine: GPUs as NVML describes them, the host as psutil and the kernel do. The only user of NVML.

NVML is opened on first use and kept open: a reading of the gauges then takes tens of microseconds. What a driver
does not report is None; a machine where NVML cannot be used is described without GPUs, with a sentence that says why.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from advisor.records import GpuInfo, GpuProcess, GpuSample, Hardware, HostInfo

CPU_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimdbf16",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)

_ON_THE_CPU = "so the session runs on the CPU."
_OUTSIDE = "a process outside this container"

# What a driver answers to a question that this GPU, this driver or this user cannot have answered. The last two come
# from the binding: success with an empty list, and a list that grew between the asking for its size and for itself.
_UNANSWERED = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NO_DATA",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_NOT_FOUND",
    "NVML_ERROR_NOT_READY",
    "NVML_SUCCESS",
    "NVML_ERROR_INSUFFICIENT_SIZE",
)

_OPENING_FAILED = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "There is no NVIDIA driver on this machine (libnvidia-ml.so was not found)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "The NVIDIA driver is installed but its kernel module is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "The NVIDIA driver was updated but not reloaded (a reboot mends that)",
    "NVML_ERROR_NO_PERMISSION": "This user may not talk to the NVIDIA driver",
}

# Idle clocks are not throttled, so NVML's "GPU idle" has no word here.
_THROTTLE_WORDS = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "HwThermalSlowdown": "hardware thermal slowdown",
    "HwPowerBrakeSlowdown": "hardware power brake",
    "SwThermalSlowdown": "software thermal slowdown",
    "SyncBoost": "sync boost",
    "ApplicationsClocksSetting": "application clocks set",
    "DisplayClockSetting": "display clocks set",
}

POWER_CAP = _THROTTLE_WORDS["SwPowerCap"]
# The reasons that no step earns by itself: heat, and power that the board is not given.
SLOWDOWNS = frozenset(
    _THROTTLE_WORDS[name] for name in ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown")
)

_RECENT_US = 2_000_000

# CUDA keeps this open in every process that computes; NVML does not.
_CUDA_DEVICE_FILE = "/dev/nvidia-uvm"


# --- NVML -----------------------------------------------------------------------------------------------------


class NvmlUnavailableError(Exception):
    """NVML cannot be used here; the message is a plain sentence that says why and what follows from it."""


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU that NVML has found."""

    index: int
    uuid: str
    handle: Any


class Nvml:
    """NVML, opened on first use and kept open; each process opens its own. May be used from any thread.

    ``load`` returns the module ``pynvml`` or one of its shape.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._library: Any = None
        self._devices: tuple[_Device, ...] = ()
        self._unanswered: frozenset[int] = frozenset()
        self._failure: str | None = None

    @property
    def devices(self) -> tuple[_Device, ...]:
        """The GPUs. Raises NvmlUnavailableError when NVML cannot be used or finds none."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._failure, self._devices = os.getpid(), None, ()
                self._open()
        if self._failure:
            raise NvmlUnavailableError(self._failure)
        return self._devices

    @property
    def error(self) -> type[Exception]:
        """The exception that NVML's calls raise."""
        error: type[Exception] = self._library.NVMLError
        return error

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer to one NVML call, by name; None when it cannot be had here. Raises ``error`` for a broken GPU."""
        call = getattr(self._library, name, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._library.NVMLError as error:
            if error.value in self._unanswered:
                return None
            raise

    def constant(self, name: str) -> int:
        """One of NVML's constants; 0 when this version of its binding lacks it."""
        return int(getattr(self._library, name, 0))

    def _open(self) -> None:
        try:
            self._library = library = self._load()
        except ImportError:
            self._failure = f"The package nvidia-ml-py is not installed, {_ON_THE_CPU}"
            return
        self._unanswered = frozenset(getattr(library, name) for name in _UNANSWERED if hasattr(library, name))
        try:
            library.nvmlInit()
            self._devices = tuple(self._found())
        except library.NVMLError as error:
            self._failure = f"{_why_closed(library, error)}, {_ON_THE_CPU}"
        else:
            if not self._devices:
                self._failure = f"The NVIDIA driver sees no GPU, {_ON_THE_CPU}"

    def _found(self) -> Iterator[_Device]:
        for index in range(self._library.nvmlDeviceGetCount()):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            uuid = None if handle is None else self.ask("nvmlDeviceGetUUID", handle)
            if uuid is not None:
                yield _Device(index, _text(uuid), handle)


NVML = Nvml()


def _why_closed(library: Any, error: Any) -> str:
    known = {getattr(library, name, None): words for name, words in _OPENING_FAILED.items()}
    return known.get(error.value, f"NVML cannot be used ({error})")


def _text(answer: str | bytes) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


# --- what is asked of the machine -----------------------------------------------------------------------------


def inspect_hardware(nvml: Nvml = NVML, root: Path = Path("/")) -> Hardware:
    """The host and its GPUs. Never raises: without GPUs ``gpu_note`` says why there are none."""
    gpus: list[GpuInfo] = []
    notes: list[str] = []
    try:
        for device in nvml.devices:
            try:
                gpus.append(_gpu(nvml, device, root))
            except nvml.error as error:
                notes.append(f"GPU {device.index} does not answer its driver ({error}), so it is left out.")
    except NvmlUnavailableError as error:
        notes.append(str(error))
    return Hardware(_host(root), tuple(gpus), " ".join(notes) or None)


def sample_gpus(nvml: Nvml = NVML) -> tuple[GpuSample, ...]:
    """One reading of every GPU's gauges; empty where NVML cannot be used. A GPU that does not answer is left out."""
    samples = []
    with suppress(NvmlUnavailableError):
        for device in nvml.devices:
            with suppress(nvml.error):
                samples.append(_sample(nvml, device))
    return tuple(samples)


def device_used_bytes(uuid: str, nvml: Nvml = NVML) -> int | None:
    """Memory in use on the GPU, or the MIG instance, with this UUID, as NVML counts it: all processes together.

    The prefix ``GPU-`` or ``MIG-``, which CUDA leaves out, may be missing. None when NVML does not know it.
    """
    with suppress(NvmlUnavailableError):
        for device in nvml.devices:
            with suppress(nvml.error):
                handle = _handle_of(nvml, device, uuid)
                if handle is not None:
                    return _memory(nvml, handle)[0]
    return None


def counts_energy(uuid: str, nvml: Nvml = NVML) -> bool:
    """Whether a GPU or MIG instance, by its UUID, has an energy counter that can be read."""
    try:
        return GpuGauges(uuid, nvml).energy_j() is not None
    except NvmlUnavailableError:
        return False


def compute_pids(nvml: Nvml = NVML) -> frozenset[int]:
    """The processes that compute on any GPU or MIG instance, as NVML numbers them; empty where it cannot be used."""
    pids: set[int] = set()
    with suppress(NvmlUnavailableError):
        for device in nvml.devices:
            with suppress(nvml.error):
                for _, handle in _handles(nvml, device):
                    pids |= _pids(nvml, handle) or frozenset()
    return frozenset(pids)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU while something is timed on it; a field that the driver does not tell is None or empty.

    ``pids`` are the compute processes as NVML numbers them. ``sm_percent`` is how busy each of the processes that did
    anything since the reading before kept the SMs. ``idle`` says that nothing ran, which lets the clocks fall.
    """

    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    idle: bool = False
    pids: frozenset[int] | None = None
    sm_percent: dict[int, int] = field(default_factory=dict)


class GpuGauges:
    """A GPU, or a MIG instance, by its UUID with or without the prefix: its handles are looked up once.

    A MIG instance has processes of its own; clock, temperature and power are those of the whole GPU. Raises
    NvmlUnavailableError when NVML cannot be used or does not know it.
    """

    def __init__(self, uuid: str, nvml: Nvml = NVML) -> None:
        self._nvml = nvml
        self._gpu, self._instance = _find(nvml, uuid)
        self._seen_us = 0
        self.slowdown_c = self._slowdown_c()

    def read(self) -> GpuReading | None:
        """A reading; None when the GPU does not answer. One thread at a time."""
        nvml, gpu = self._nvml, self._gpu
        try:
            bits = _throttle_bits(nvml, gpu)
            return GpuReading(
                sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", gpu, nvml.constant("NVML_CLOCK_SM")),
                temperature_c=_temperature(nvml, gpu),
                power_w=_watts(nvml.ask("nvmlDeviceGetPowerUsage", gpu)),
                throttle_reasons=_throttle_words(nvml, bits),
                idle=bool(bits & _throttle_bit(nvml, "GpuIdle")),
                pids=_pids(nvml, self._instance),
                sm_percent=self._sm_percent(),
            )
        except nvml.error:
            return None

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded; updated about every 100 ms. None where there is no such counter.

        A MIG instance has none: the counter is that of the whole GPU.
        """
        if self._instance is not self._gpu:
            return None
        with suppress(self._nvml.error):
            millijoules = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", self._gpu)
            return None if millijoules is None else millijoules / 1000
        return None

    def _sm_percent(self) -> dict[int, int]:
        """The highest utilisation in the driver's samples since the last call, by process."""
        samples = self._nvml.ask("nvmlDeviceGetProcessUtilization", self._instance, self._seen_us) or ()
        newest_us = max((sample.timeStamp for sample in samples), default=self._seen_us)
        # The first call is answered with the last sample of each process, however old it is.
        since_us = max(self._seen_us, newest_us - _RECENT_US)
        self._seen_us = newest_us
        busy: dict[int, int] = {}
        for sample in samples:
            # What is no percentage is the sample of a process that has ended.
            if sample.timeStamp > since_us and sample.smUtil <= 100:
                busy[sample.pid] = max(busy.get(sample.pid, 0), sample.smUtil)
        return busy

    def _slowdown_c(self) -> int | None:
        """Where the GPU starts to slow itself down: its margin says it from Ada on, a threshold before."""
        nvml, gpu = self._nvml, self._gpu
        with suppress(nvml.error):
            margin, now = nvml.ask("nvmlDeviceGetMarginTemperature", gpu), _temperature(nvml, gpu)
            if margin is not None and now is not None:
                return int(now + margin)
            limit = nvml.constant("NVML_TEMPERATURE_THRESHOLD_SLOWDOWN")
            threshold = nvml.ask("nvmlDeviceGetTemperatureThreshold", gpu, limit)
            return None if threshold is None else int(threshold)
        return None


def _gpu(nvml: Nvml, device: _Device, root: Path) -> GpuInfo:
    handle = device.handle
    used, total = _memory(nvml, handle)
    sm, memory = nvml.constant("NVML_CLOCK_SM"), nvml.constant("NVML_CLOCK_MEM")
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return GpuInfo(
        index=device.index,
        uuid=device.uuid,
        name=_text(nvml.ask("nvmlDeviceGetName", handle) or "unnamed GPU"),
        memory_total_bytes=total,
        memory_used_bytes=used,
        driver_version=_text(nvml.ask("nvmlSystemGetDriverVersion") or "unknown"),
        cuda_driver_version=_cuda_version(nvml.ask("nvmlSystemGetCudaDriverVersion_v2")),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
        sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, sm),
        sm_clock_max_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", handle, sm),
        memory_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, memory),
        memory_clock_max_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", handle, memory),
        temperature_c=_temperature(nvml, handle),
        power_w=_watts(nvml.ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_w=_watts(nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        pcie_generation=nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_generation_max=nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        ecc_enabled=_enabled(nvml.ask("nvmlDeviceGetEccMode", handle)),
        mig_enabled=_enabled(nvml.ask("nvmlDeviceGetMigMode", handle)),
        throttle_reasons=_throttle_reasons(nvml, handle),
        processes=_other_processes(nvml, handle, root),
    )


def _sample(nvml: Nvml, device: _Device) -> GpuSample:
    used, total = _memory(nvml, device.handle)
    rates = nvml.ask("nvmlDeviceGetUtilizationRates", device.handle)
    return GpuSample(
        uuid=device.uuid,
        utilization_percent=None if rates is None else int(rates.gpu),
        memory_used_bytes=used,
        memory_total_bytes=total,
        temperature_c=_temperature(nvml, device.handle),
        power_w=_watts(nvml.ask("nvmlDeviceGetPowerUsage", device.handle)),
        sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", device.handle, nvml.constant("NVML_CLOCK_SM")),
    )


def _memory(nvml: Nvml, handle: Any) -> tuple[int, int]:
    """Bytes used and in all; zeros on GPUs that share the host's memory. The second version leaves out the reserve."""
    info = nvml.ask("nvmlDeviceGetMemoryInfo", handle, nvml.constant("nvmlMemory_v2"))
    if info is None:
        info = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    return (0, 0) if info is None else (int(info.used), int(info.total))


def _handle_of(nvml: Nvml, device: _Device, uuid: str) -> Any:
    """The handle of the device, or of its MIG instance, if it has this UUID."""
    return next((handle for found, handle in _handles(nvml, device) if _same(found, uuid)), None)


def _handles(nvml: Nvml, device: _Device) -> Iterator[tuple[str, Any]]:
    """UUID and handle of a GPU and of its MIG instances."""
    yield device.uuid, device.handle
    if not _enabled(nvml.ask("nvmlDeviceGetMigMode", device.handle)):
        return
    for index in range(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", device.handle) or 0):
        instance = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, index)
        if instance is not None:
            yield _text(nvml.ask("nvmlDeviceGetUUID", instance) or ""), instance


def _find(nvml: Nvml, uuid: str) -> tuple[Any, Any]:
    """The handle of the GPU, and that of the MIG instance on it if the UUID is an instance's, else the GPU's again."""
    for device in nvml.devices:
        with suppress(nvml.error):
            handle = _handle_of(nvml, device, uuid)
            if handle is not None:
                return device.handle, handle
    raise NvmlUnavailableError(f"NVML knows no GPU {uuid}.")


def _pids(nvml: Nvml, handle: Any) -> frozenset[int] | None:
    running = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    return None if running is None else frozenset(process.pid for process in running)


def _same(uuid: str, other: str) -> bool:
    return _bare(uuid) == _bare(other)


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def _temperature(nvml: Nvml, handle: Any) -> int | None:
    degrees: int | None = nvml.ask("nvmlDeviceGetTemperature", handle, nvml.constant("NVML_TEMPERATURE_GPU"))
    return degrees


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _enabled(modes: Any) -> bool | None:
    """Whether the first of NVML's pair (current mode, pending mode) is on."""
    return None if modes is None else bool(modes[0])


def _cuda_version(number: int | None) -> str | None:
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _throttle_reasons(nvml: Nvml, handle: Any) -> tuple[str, ...]:
    return _throttle_words(nvml, _throttle_bits(nvml, handle))


def _throttle_bits(nvml: Nvml, handle: Any) -> int:
    bits = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # drivers before 535 know the call by its old name only
        bits = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return bits or 0


def _throttle_words(nvml: Nvml, bits: int) -> tuple[str, ...]:
    return tuple(words for name, words in _THROTTLE_WORDS.items() if bits & _throttle_bit(nvml, name))


def _throttle_bit(nvml: Nvml, name: str) -> int:
    return nvml.constant(f"nvmlClocksEventReason{name}") or nvml.constant(f"nvmlClocksThrottleReason{name}")


def _other_processes(nvml: Nvml, handle: Any, root: Path) -> tuple[GpuProcess, ...]:
    """The compute processes on a GPU that are not this process or its descendants.

    Inside a container most drivers number them as the host does. A number that is also that of a process in the
    container, even of this one, names it only if it computes: its open files show it.
    """
    running = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
    if not running:
        return ()
    own = own_pids()
    return tuple(
        GpuProcess(process.pid, process_name(process.pid, root), process.usedGpuMemory)
        for process in running
        if process.pid not in own or _holds_no_cuda(process.pid, root)
    )


def own_pids() -> set[int]:
    """This process and its descendants, as this process's namespace numbers them."""
    this = psutil.Process()
    return {this.pid, *(child.pid for child in this.children(recursive=True))}


def process_name(pid: int, root: Path = Path("/")) -> str:
    """The name of a compute process by the number that NVML gave, or a phrase where it cannot be known."""
    try:
        name = psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return _OUTSIDE
    except psutil.AccessDenied:
        return "a process of another user"
    return _OUTSIDE if _holds_no_cuda(pid, root) else name


def _holds_no_cuda(pid: int, root: Path) -> bool:
    """Whether a process of this number certainly does not compute on a GPU; False where its files may not be seen."""
    try:
        return _CUDA_DEVICE_FILE not in [_link(file) for file in (root / f"proc/{pid}/fd").iterdir()]
    except OSError:
        return False


# --- the host -------------------------------------------------------------------------------------------------


def _host(root: Path = Path("/")) -> HostInfo:
    logical = psutil.cpu_count() or os.cpu_count() or 1
    cpu_lines = _read(root / "proc/cpuinfo")
    total, available = _memory_limits(root)
    return HostInfo(
        cpu=_cpu_name(cpu_lines),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=usable_cores(root),
        memory_total_bytes=total,
        memory_available_bytes=available,
        cpu_features=_cpu_features(cpu_lines),
        numa_nodes=max(1, sum(1 for _ in (root / "sys/devices/system/node").glob("node[0-9]*"))),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that this process may keep busy: its CPU affinity and its control group's quota, rounded up."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _cgroup_folders("cpu", root) if (quota := _cpu_quota(folder)) is not None]
    return max(1, min([affinity, *map(math.ceil, quotas)]))


def _cpu_name(cpuinfo: str) -> str:
    for key in ("model name", "Model", "Hardware", "cpu model", "cpu"):
        match = re.search(rf"^{key}\s*:\s*(\S.*)$", cpuinfo, re.M)
        if match:
            return " ".join(match[1].split())
    return platform.processor() or platform.machine() or "unknown CPU"


def _cpu_features(cpuinfo: str) -> tuple[str, ...]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.M)
    present = set(match[1].split()) if match else set()
    return tuple(feature for feature in CPU_FEATURES if feature in present)


def _memory_limits(root: Path) -> tuple[int, int]:
    """Bytes of memory in all and available, as the machine and its control groups allow."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for folder in _cgroup_folders("memory", root):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is None or limit >= memory.total:
            continue
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
        total = min(total, limit)
        available = min(available, max(0, limit - used + _reclaimable(folder)))
    return total, available


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache that the kernel gives back before the control group runs out."""
    match = re.search(r"^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"), re.M)
    return int(match[1]) if match else 0


def _cpu_quota(folder: Path) -> float | None:
    """Cores that a control group may use, or None when it has no limit: cpu.max in version 2, cfs_quota in 1."""
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group and of those above it, for versions 2 and 1.

    Inside a container the path that the kernel names is often not visible; the mount's root is then the group's own.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in (mounts / controller, mounts / controllers) if controllers else (mounts, mounts / "unified"):
            group = mount / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _number(*paths: Path) -> int | None:
    """The number in the first of these files that holds one."""
    words = (_read(path).strip() for path in paths)
    return next((int(word) for word in words if word.isdigit()), None)


def _link(path: Path) -> str:
    """Where a link leads; an empty string for one that is gone by now. Raises OSError for one that may not be seen."""
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def _read(path: Path) -> str:
    """A text file of the kernel's, or an empty string where it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
