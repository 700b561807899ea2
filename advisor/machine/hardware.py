"""The machine: its host, its GPUs as NVML describes them, and the versions that decide speeds.

A figure that a driver does not report is None. A reading of the gauges takes tens of microseconds.
"""

import importlib
import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from advisor.machine.host import host_info
from advisor.records import GpuInfo, GpuProcess, GpuReading, Hardware

# The reasons for a clock below its maximum, by NVML's bits. nvml.h, "nvmlClocksEventReasons".
_IDLE = 0x1  # idle is not throttling, so it has no words
_THROTTLE_WORDS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x20: "software thermal slowdown",
    0x10: "sync boost",
    0x2: "application clocks set",
    0x100: "display clocks set",
}
# Arguments of NVML's calls, by the numbers of nvml.h; the second memory record leaves the reserve out.
_GPU_SENSOR, _SLOWDOWN_THRESHOLD, _SM_CLOCK, _MEMORY_2 = 0, 1, 1, 0x2000028
POWER_CAP = _THROTTLE_WORDS[0x4]
# The reasons that no step causes by itself: heat, and power that the board does not get.
SLOWDOWNS = frozenset(_THROTTLE_WORDS[bit] for bit in (0x8, 0x20, 0x40, 0x80))
_RECENT_US = 2_000_000
_ON_THE_CPU = "so the session runs on the CPU."


class NvmlUnavailableError(Exception):
    """NVML cannot be used here. The message is a plain sentence with the reason and the consequence."""


class Nvml:
    """NVML, opened at first use and kept open; each process opens its own. May be used from any thread.

    ``load`` returns the module ``pynvml`` or a replacement with the same functions.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._library: Any = None
        self._gpus: dict[str, Any] = {}
        self._failure = ""

    @property
    def gpus(self) -> dict[str, Any]:
        """The handles of the GPUs by UUID. Raises NvmlUnavailableError if NVML cannot be used or finds no GPU."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._failure = os.getpid(), self._open()
        if self._failure:
            raise NvmlUnavailableError(self._failure)
        return self._gpus

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer to one NVML call, by its name; None if this GPU, driver, binding or user gets no answer."""
        call = getattr(self._library, name, None)
        try:
            return call(*arguments) if call else None
        except self._library.NVMLError:
            return None

    def _open(self) -> str:
        """Find the GPUs. Return the reason if there are none, else an empty text."""
        self._library = library = self._load()
        try:
            library.nvmlInit()
            numbers = range(library.nvmlDeviceGetCount())
        except library.NVMLError as error:
            no_driver = error.value == library.NVML_ERROR_LIBRARY_NOT_FOUND
            what = "There is no NVIDIA driver on this machine" if no_driver else "NVML cannot be used"
            return f"{what} ({error}), {_ON_THE_CPU}"
        handles = filter(None, (self.ask("nvmlDeviceGetHandleByIndex", number) for number in numbers))
        self._gpus = {uuid: one for one in handles if (uuid := self.ask("nvmlDeviceGetUUID", one))}
        return "" if self._gpus else f"The NVIDIA driver sees no GPU, {_ON_THE_CPU}"


NVML = Nvml()


def inspect_hardware(nvml: Nvml = NVML) -> Hardware:
    """The host and its GPUs. Never raises: if there are no GPUs, ``gpu_note`` says why."""
    host = host_info()
    try:
        return Hardware(host, tuple(_gpu(nvml, uuid, handle) for uuid, handle in nvml.gpus.items()))
    except NvmlUnavailableError as error:
        return Hardware(host, gpu_note=str(error))


def sample_gpus(nvml: Nvml = NVML) -> tuple[GpuReading, ...]:
    """One reading of every GPU's gauges; empty if NVML cannot be used."""
    with suppress(NvmlUnavailableError):
        return tuple(GpuGauges(uuid, nvml).read() for uuid in nvml.gpus)
    return ()


def counts_energy(uuid: str) -> bool:
    """Whether the GPU with this UUID has an energy counter that can be read."""
    with suppress(NvmlUnavailableError):
        return GpuGauges(uuid, NVML).energy_j() is not None
    return False


def compute_pids(nvml: Nvml = NVML) -> frozenset[int]:
    """The processes that compute on any GPU, as NVML numbers them; empty if NVML cannot be used."""
    with suppress(NvmlUnavailableError):
        return frozenset().union(*(_pids(nvml, handle) or () for handle in nvml.gpus.values()))
    return frozenset()


class GpuGauges:
    """A GPU by its UUID. Raises NvmlUnavailableError if NVML cannot be used or does not know it (a part, MIG)."""

    def __init__(self, uuid: str, nvml: Nvml = NVML) -> None:
        known = {known.removeprefix("GPU-"): handle for known, handle in nvml.gpus.items()}
        if (bare := uuid.removeprefix("GPU-")) not in known:
            raise NvmlUnavailableError(f"NVML knows no GPU {uuid}.")
        self._nvml, self._uuid, self._gpu = nvml, uuid, known[bare]
        self._seen_us = 0

    @property
    def slowdown_c(self) -> int | None:
        """The temperature at which the GPU slows itself down: from its margin (Ada and later), or its threshold."""
        margin, now = self._nvml.ask("nvmlDeviceGetMarginTemperature", self._gpu), self._temperature_c()
        if margin is not None and now is not None:
            return int(now + margin)
        found: int | None = self._nvml.ask("nvmlDeviceGetTemperatureThreshold", self._gpu, _SLOWDOWN_THRESHOLD)
        return found

    def read(self) -> GpuReading:
        """A reading of the gauges and the processes. Only one thread at a time may call it."""
        nvml, gpu = self._nvml, self._gpu
        used, total = _memory(nvml, gpu)
        rates = nvml.ask("nvmlDeviceGetUtilizationRates", gpu)
        bits = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu) or 0
        return GpuReading(
            uuid=self._uuid,
            utilization_percent=None if rates is None else int(rates.gpu),
            memory_used_bytes=used,
            memory_total_bytes=total,
            temperature_c=self._temperature_c(),
            power_w=_watts(nvml.ask("nvmlDeviceGetPowerUsage", gpu)),
            sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", gpu, _SM_CLOCK),
            throttle_reasons=_throttle_words(bits),
            idle=bool(bits & _IDLE),
            pids=_pids(nvml, gpu),
            sm_percent=self._sm_percent(),
        )

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded, updated about every 100 ms; None if there is no such counter."""
        millijoules = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", self._gpu)
        return None if millijoules is None else millijoules / 1000

    def _temperature_c(self) -> int | None:
        found: int | None = self._nvml.ask("nvmlDeviceGetTemperature", self._gpu, _GPU_SENSOR)
        return found

    def _sm_percent(self) -> dict[int, int]:
        """The highest utilisation of each process in the driver's samples since the last call."""
        samples = self._nvml.ask("nvmlDeviceGetProcessUtilization", self._gpu, self._seen_us) or ()
        newest_us = max((sample.timeStamp for sample in samples), default=self._seen_us)
        # The first call returns the last sample of each process, even if it is old.
        since_us = max(self._seen_us, newest_us - _RECENT_US)
        self._seen_us = newest_us
        busy: dict[int, int] = {}
        for sample in samples:
            # A value above 100 belongs to a process that has ended.
            if sample.timeStamp > since_us and sample.smUtil <= 100:
                busy[sample.pid] = max(busy.get(sample.pid, 0), sample.smUtil)
        return busy


def _gpu(nvml: Nvml, uuid: str, handle: Any) -> GpuInfo:
    used, total = _memory(nvml, handle)
    modes = nvml.ask("nvmlDeviceGetMigMode", handle)  # at present, and after the next start
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    running, own = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or (), own_pids()
    others = [process for process in running if process.pid not in own]
    return GpuInfo(
        index=int(nvml.ask("nvmlDeviceGetIndex", handle) or 0),
        uuid=uuid,
        name=nvml.ask("nvmlDeviceGetName", handle) or "unnamed GPU",
        memory_total_bytes=total,
        memory_used_bytes=used,
        driver_version=nvml.ask("nvmlSystemGetDriverVersion") or "unknown",
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
        power_limit_w=_watts(nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        mig_enabled=None if modes is None else bool(modes[0]),
        throttle_reasons=_throttle_words(nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", handle) or 0),
        processes=tuple(GpuProcess(one.pid, process_name(one.pid), one.usedGpuMemory) for one in others),
    )


def _memory(nvml: Nvml, handle: Any) -> tuple[int, int]:
    """Bytes used and in total; zeros on GPUs that share the host's memory."""
    info = nvml.ask("nvmlDeviceGetMemoryInfo", handle, _MEMORY_2)
    return (0, 0) if info is None else (int(info.used), int(info.total))


def _pids(nvml: Nvml, handle: Any) -> frozenset[int] | None:
    running = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    return None if running is None else frozenset(process.pid for process in running)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _throttle_words(bits: int) -> tuple[str, ...]:
    return tuple(words for bit, words in _THROTTLE_WORDS.items() if bits & bit)


def own_pids() -> set[int]:
    """This process and its descendants, as this process's namespace numbers them."""
    this = psutil.Process()
    return {this.pid, *(child.pid for child in this.children(recursive=True))}


def process_name(pid: int) -> str:
    """The name of a compute process by its number in NVML, or a phrase if the name is not known."""
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return "a process outside this container"
    except psutil.AccessDenied:
        return "a process of another user"


def visible_gpus(hardware: Hardware) -> tuple[GpuInfo, ...]:
    """The GPUs that this process may use, in CUDA's order. NVML has the same order if all GPUs are of one model."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return hardware.gpus
    visible: list[GpuInfo] = []
    for name in map(str.strip, chosen.split(",")):  # a number, or the beginning of one UUID
        by_uuid = name.startswith("GPU-")
        meant = [gpu for gpu in hardware.gpus if (gpu.uuid.startswith(name) if by_uuid else str(gpu.index) == name)]
        if len(meant) != 1:
            break  # CUDA ignores all names after the first unknown one
        visible += meant
    return tuple(visible)


def versions_line() -> str:
    """Python, PyTorch and the GPU's driver in one line."""
    from importlib.metadata import version  # late: it takes as long to load as all recipes

    drivers = {gpu.driver_version for gpu in inspect_hardware().gpus}
    driver = f"driver {', '.join(sorted(drivers))}" if drivers else "no GPU"
    return f"Python {platform.python_version()}, torch {version('torch')}, {driver}"
