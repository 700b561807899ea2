"""The results of the search over several GPUs."""

from dataclasses import dataclass, field

from advisor.records import Value


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """Settings over several ranks, beside the one-GPU stack at the same global batch."""

    name: str
    settings: dict[str, Value]  # what was added to the one-GPU stack
    gpus: int
    weak: bool = False
    reason: str = ""  # why the trial failed
    global_batch: int | None = None
    batch_per_gpu: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    speedup: float | None = None  # in samples per second; None where the trial failed
    ci_low: float | None = None  # of 95 % where they took turns with one GPU, else of 99 %
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
        return f"{self.gpus} GPUs: {self.name}" if self.gpus > 1 else "one GPU, with its combination"

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
