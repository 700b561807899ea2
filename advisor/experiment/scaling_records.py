"""The results of the search over several GPUs."""

from dataclasses import dataclass, field

from advisor.records import Value


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """The result of settings over several ranks, compared with the one-GPU stack at the same global batch."""

    name: str
    settings: dict[str, Value]  # what was added to the one-GPU stack
    gpus: int
    weak: bool = False
    reason: str = ""  # why the trial failed
    global_batch: int | None = None
    batch_per_gpu: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    speedup: float | None = None  # in samples per second; None if the trial failed
    ci_low: float | None = None  # of the 95 % interval if they took turns with one GPU, else of the 99 % interval
    ci_high: float | None = None
    exposed_ms: float | None = None
    straggler_share: float | None = None
    peak_reserved_bytes: tuple[int, ...] = ()
    rank_ms: tuple[float, ...] = ()
    loss_difference: float | None = None  # the largest relative difference between the first losses and one GPU's
    runs: int = 0

    @property
    def trial(self) -> str:
        """The name of this row's trial."""
        return f"{self.gpus} GPUs: {self.name}" if self.gpus > 1 else "one GPU, with its combination"

    @property
    def efficiency(self) -> float | None:
        """The speed-up divided by the number of GPUs; 1 is perfect scaling."""
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
    device_type: str  # cuda, or cpu: processes that share the cores, to try it out
    carried: dict[str, Value]  # the settings of the one-GPU stack that all rows have
    left_out: dict[str, str] = field(default_factory=dict)  # of that stack: not usable by several ranks, and why
    rows: tuple[ScalingRow, ...] = ()  # all settings that were tried, the one-GPU stack first
    best: str = ""  # the best row at the same global batch; empty if one GPU is as fast
    settings: dict[str, Value] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)  # untried strategies and options, by name, and why
    confirmed: bool = False  # whether the best was timed in turn with one GPU
    evidence: str = ""
    machines: int = 1  # number of machines, each with the same number of GPUs

    @property
    def all_settings(self) -> dict[str, Value]:
        """The settings to train with on several GPUs; empty if one GPU is as fast."""
        return {**self.carried, **self.settings} if self.settings else {}

    def row(self, name: str) -> ScalingRow | None:
        """The row of this name."""
        return next((row for row in self.rows if row.name == name), None)
