"""The machine: its GPUs and its host."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU."""

    pid: int
    name: str
    used_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as NVML describes it; a field that the driver does not report is None."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    driver_version: str
    compute_capability: tuple[int, int] | None = None
    power_limit_w: float | None = None
    mig_enabled: bool | None = None
    throttle_reasons: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU's gauges; a field that the driver does not report is None or empty."""

    uuid: str
    utilization_percent: int | None = None
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    idle: bool = False  # nothing ran, so the clocks may have fallen
    pids: frozenset[int] | None = None  # the ids of compute processes, as NVML numbers them
    sm_percent: dict[int, int] = field(default_factory=dict)  # by process id, for processes that ran since the last one


@dataclass(frozen=True, slots=True)
class HostSample:
    """One reading of the host's load."""

    cpu_percent: float
    memory_used_bytes: int
    memory_total_bytes: int


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The host as psutil and the kernel describe it."""

    cpu: str
    physical_cores: int
    logical_cores: int
    usable_cores: int  # the cores that the process's CPU affinity and its control group allow
    memory_total_bytes: int
    memory_available_bytes: int
    cpu_features: tuple[str, ...]
    system: str
    python: str
    load: float = 0.0  # how many programs wanted a core at a time, on average over the minute before
    foreign_cores: float = 0.0  # cores used by other programs while the target was built and its baseline measured

    @property
    def free_cores(self) -> int:
        """The cores of the machine that other programs leave free, to the nearest whole number."""
        return self.logical_cores - round(self.foreign_cores)

    @property
    def is_crowded(self) -> bool:
        """Whether other programs leave no core free but the one that runs the step."""
        return self.free_cores <= 1 < self.logical_cores

    @property
    def crowding(self) -> float:
        """The factor by which work on the CPU takes longer than on a quiet machine; 1.0 while cores are free.

        The load is a minute's average over all cores of the machine, also those that a container may not use.
        Programs that started since then count by the cores that they used.
        """
        shared = 1 + self.foreign_cores / self.logical_cores if self.is_crowded else 1.0
        return max(shared, self.load / self.logical_cores)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine: its host and its GPUs."""

    host: HostInfo
    gpus: tuple[GpuInfo, ...] = ()
    gpu_note: str | None = None  # a sentence that says why NVML cannot be used; None if it can
