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
    """One look at a GPU's gauges; a field that the driver does not tell is None or empty."""

    uuid: str
    utilization_percent: int | None = None
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    idle: bool = False  # nothing ran, which lets the clocks fall
    pids: frozenset[int] | None = None  # the compute processes as NVML numbers them
    sm_percent: dict[int, int] = field(default_factory=dict)  # of each process that ran since the reading before


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
    usable_cores: int  # by the process's CPU affinity and its control group
    memory_total_bytes: int
    memory_available_bytes: int
    cpu_features: tuple[str, ...]
    system: str
    python: str
    load: float = 0.0  # the programs that wanted a core at a time, over the minute before
    foreign_cores: float = 0.0  # used by other programs while the target was built and its baseline measured

    @property
    def free_cores(self) -> int:
        """The cores of the machine that other programs leave, to the nearest whole number."""
        return self.logical_cores - round(self.foreign_cores)

    @property
    def is_crowded(self) -> bool:
        """Whether other programs leave only the one core that runs the step."""
        return self.free_cores <= 1 < self.logical_cores

    @property
    def crowding(self) -> float:
        """The factor by which work on the CPU takes longer than on a quiet machine; 1.0 while cores are free.

        The load is that of all cores of the machine, also those that a container may not use, averaged over a minute.
        Programs that started since then count by the cores that they used.
        """
        shared = 1 + self.foreign_cores / self.logical_cores if self.is_crowded else 1.0
        return max(shared, self.load / self.logical_cores)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine."""

    host: HostInfo
    gpus: tuple[GpuInfo, ...] = ()
    gpu_note: str | None = None  # a sentence where NVML cannot be used
