"""Trials over several ranks: the request to torchrun, and the results of such a trial."""

from dataclasses import dataclass, field

from advisor.records.kinds import Value

# The reason of a trial whose model DistributedDataParallel cannot train unless it looks for them.
UNUSED_PARAMETERS = "parameters got no gradient in a step (DistributedDataParallel)"


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a trial that runs on torchrun."""

    ranks: int  # their number on this machine, a GPU for each
    weak: bool = False  # each rank gets one GPU's batch (weak scaling); else the global batch is divided
    options: tuple[str, ...] = ()  # given to torchrun as they are
    machines: int = 1  # that take part, with as many ranks each
    script: bool = False  # the target is a script for torchrun: it joins the ranks, and divides its data, itself


@dataclass(frozen=True, slots=True)
class RanksFound:
    """The findings of a trial over several ranks, by the first of them."""

    global_batch: int
    batch_per_rank: int
    peak_reserved_bytes: tuple[int, ...]  # of each rank
    alone_ms: tuple[float, ...] = ()  # each rank's step without communication; empty where there is none such
    exposed_ms: float | None = None  # communication in a step that no computation hides; None where unknown
    straggler_share: float | None = None  # of the step, for which the fastest rank waits for the slowest


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A rank's first message to the process that launched it."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """Settings over several ranks, beside the one-GPU stack at the same global batch.

    ``settings`` are what was added to the one-GPU stack. ``speedup`` is the ratio of samples per second, with its
    95 % interval; None where the trial failed or was passed over.
    """

    name: str
    settings: dict[str, Value]
    gpus: int
    weak: bool = False
    reason: str = ""  # why the trial failed
    global_batch: int | None = None
    batch_per_gpu: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    speedup: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    exposed_ms: float | None = None
    straggler_share: float | None = None
    peak_reserved_bytes: tuple[int, ...] = ()
    rank_ms: tuple[float, ...] = ()
    loss_difference: float | None = None  # the largest relative one of the first losses
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
    """The measurements of the workload on several GPUs."""

    gpus: int
    device_type: str  # cuda, or cpu: processes on the same cores, for trying it out
    carried: dict[str, Value]  # the one-GPU stack as all rows have it
    left_out: dict[str, str] = field(default_factory=dict)  # of it, what does not go with several ranks, and why
    rows: tuple[ScalingRow, ...] = ()  # all that was tried, the one-GPU stack first
    best: str = ""  # the row that won at the same global batch; empty where one GPU is as fast
    settings: dict[str, Value] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)  # strategies and options, by name, and why
    confirmed: bool = False  # the best was timed in turn with one GPU
    evidence: str = ""
    machines: int = 1  # that have as many of the GPUs each

    @property
    def all_settings(self) -> dict[str, Value]:
        """The settings to train with on several GPUs; empty where one GPU is as fast."""
        return {**self.carried, **self.settings} if self.settings else {}

    def row(self, name: str) -> ScalingRow | None:
        """The row of this name."""
        return next((row for row in self.rows if row.name == name), None)
