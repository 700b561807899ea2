"""Trials over several ranks: the request to torchrun, and the results of such a trial."""

from dataclasses import dataclass, field

from advisor.records.hardware import AllReduceSweep
from advisor.records.kinds import Value

# The reason of a trial whose model DistributedDataParallel cannot train unless it looks for them.
UNUSED_PARAMETERS = "parameters got no gradient in a step (DistributedDataParallel)"


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a trial that runs on torchrun. ``ranks`` is their number on this machine.

    ``devices``: the GPUs that they use; more than ``ranks`` with DataParallel, which is one process. ``weak``: each
    rank gets the whole batch of one GPU, so the global batch grows with their number (weak scaling); otherwise the
    global batch stays and is divided among them. ``options`` are given to torchrun as they are; ``machines`` take part,
    with as many ranks each. ``looks_closer``: the trial also times ranks without communication, and profiles a few
    steps. ``times_all_reduce``: and all-reduce by message size.
    """

    ranks: int
    devices: int = 0
    weak: bool = False
    options: tuple[str, ...] = ()
    machines: int = 1
    looks_closer: bool = True
    times_all_reduce: bool = False


@dataclass(frozen=True, slots=True)
class RankFound:
    """One rank's part of a trial. ``alone_ms``: its step without communication; None where there is none such."""

    rank: int
    device: str
    step_ms: float
    alone_ms: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RanksFound:
    """The findings of a trial over several ranks, told by rank 0.

    ``exposed_ms``: communication in a step that no computation hides; None where it could not be told.
    ``exposed_by`` names the method: ``profiler`` (NCCL kernels that run beside no other kernel), or ``difference``
    (the step less the same step without communication). ``straggler_share``: the share of the step for which the
    fastest rank waits for the slowest, 0 to 1.
    """

    world: World
    strategy: str
    global_batch: int | None
    batch_per_rank: int | None
    ranks: tuple[RankFound, ...]
    exposed_ms: float | None = None
    exposed_by: str = ""
    straggler_share: float | None = None
    all_reduce: AllReduceSweep | None = None


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A rank's first message to the process that launched it."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """Settings over several ranks, beside the one-GPU stack at the same global batch.

    ``settings`` are what was added to the one-GPU stack. ``speedup`` is the ratio of samples per second, with its
    95 % interval; None where the trial failed, which ``reason`` tells, or was passed over. ``efficiency`` is the
    speed-up over the number of GPUs. ``loss_difference`` is the largest relative difference of the first losses.
    """

    name: str
    settings: dict[str, Value]
    gpus: int
    weak: bool = False
    reason: str = ""
    global_batch: int | None = None
    batch_per_gpu: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    speedup: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    verdict: str = ""
    exposed_ms: float | None = None
    exposed_by: str = ""
    straggler_share: float | None = None
    peak_reserved_bytes: tuple[int, ...] = ()
    rank_ms: tuple[float, ...] = ()
    loss_difference: float | None = None
    runs: int = 0

    @property
    def trial(self) -> str:
        """The name of its trial."""
        return f"{self.gpus} GPUs: {self.name}" if self.gpus > 1 else "one GPU, with its stack"

    @property
    def efficiency(self) -> float | None:
        """The speed-up as a share of the number of GPUs, 1 for perfect scaling."""
        return self.speedup / self.gpus if self.speedup is not None else None

    @property
    def exposed_share(self) -> float | None:
        """Exposed communication as a share of the step, 0 to 1."""
        if self.exposed_ms is None or not self.step_ms:
            return None
        return min(1.0, self.exposed_ms / self.step_ms)


@dataclass(frozen=True, slots=True)
class ScalingRecord:
    """The measurements of the workload on several GPUs.

    ``carried`` is the one-GPU stack as all rows have it, and ``left_out`` what of it does not go with several ranks,
    with the reasons. ``rows``: all that was tried, the one-GPU stack first. ``best`` names the row of the settings
    that won at the same global batch; empty where one GPU is as fast. ``passed_over``: strategies and options that
    were not tried, by name, with the reasons. ``confirmed``: the best was timed in turn with one GPU. ``device_type``
    is ``cuda`` or ``cpu`` (processes on the same cores, for trying it out). ``machines`` have as many of the GPUs each.
    """

    gpus: int
    device_type: str
    backend: str
    carried: dict[str, Value]
    left_out: dict[str, str] = field(default_factory=dict)
    rows: tuple[ScalingRow, ...] = ()
    best: str = ""
    settings: dict[str, Value] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)
    confirmed: bool = False
    evidence: str = ""
    machines: int = 1

    @property
    def all_settings(self) -> dict[str, Value]:
        """The settings to train with on several GPUs; empty where one GPU is as fast."""
        return {**self.carried, **self.settings} if self.settings else {}

    def row(self, name: str) -> ScalingRow | None:
        """The row of this name."""
        return next((row for row in self.rows if row.name == name), None)
