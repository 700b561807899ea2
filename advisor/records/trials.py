"""Records of trials: candidates, results, comparisons and recommendations."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from advisor.records.kinds import Cause, Mode, Numerics, Outcome, TrialKind, Value, Verdict, text_of
from advisor.records.secrets import arguments_without_secrets


@dataclass(frozen=True, slots=True)
class Skip:
    """The reason that a recipe proposes nothing, in words that a person can act on."""

    reason: str


# The values of a recipe that are worth trying, or the reason that there are none.
Proposal = Sequence[Value] | Skip


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe and a value to try. ``already_on``: the user has the setting on, and this value switches it off."""

    recipe: str
    key: str
    value: Value
    already_on: bool = False

    @property
    def name(self) -> str:
        """``recipe=value``, unique within a session."""
        return f"{self.recipe}={text_of(self.value)}"

    @property
    def settings(self) -> dict[str, Value]:
        """The one setting that the candidate adds to the user's own."""
        return {self.key: self.value}


UNUSED_PARAMETERS = "parameters got no gradient in a step (DistributedDataParallel)"  # the reason for a failed trial


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a trial that torchrun starts."""

    ranks: int  # the number of processes on this machine, each with its own GPU
    options: tuple[str, ...] = ()  # options for torchrun, passed on unchanged
    machines: int = 1  # the number of machines, with the same number of ranks each
    script: bool = False  # the target is a script for torchrun: it joins the ranks and divides its data itself


@dataclass(frozen=True, slots=True)
class RanksFound:
    """The findings of a trial over several ranks, as rank 0 reports them."""

    global_batch: int
    batch_per_rank: int
    peak_reserved_bytes: tuple[int, ...]  # the peak of each rank
    alone_ms: tuple[float, ...] = ()  # each rank's step time without communication; empty if it was not timed
    exposed_ms: float | None = None  # time of a step's communication that no computation hides; None if unknown
    straggler_share: float | None = None  # the share of a step that the fastest rank waits for the slowest


WORKLOAD_SUFFIX = ".workload"  # the ending of a file in which ``advisor.tune`` saves the workload that it was given


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The user's request: the target and the options that shape the workload."""

    target: str
    directory: str
    mode: Mode | None = None
    device: str = "auto"
    batch_size: int | None = None
    input_shape: tuple[int, ...] | None = None
    config: dict[str, Any] | None = None
    arguments: tuple[str, ...] = ()  # the target's own arguments, which follow its name in sys.argv
    read_as: dict[str, str] = field(default_factory=dict)  # by a file of the user: the file that is run in its place

    @property
    def command(self) -> str:
        """The target as on the command line, without secrets: ``train.py:build -- --lr 0.1``."""
        shown, _ = arguments_without_secrets(self.arguments)
        return " -- ".join(filter(None, (self.target, shlex.join(shown))))


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """NVML's readings while a trial was timed."""

    temperature_c: int | None = None  # the highest reading
    sm_clock_mhz: int | None = None  # the median reading
    power_w: float | None = None  # the mean reading
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One trial to run."""

    trial_id: str
    target: TargetSpec
    settings: dict[str, Value]  # on top of the user's own settings
    measure_s: float  # the seconds to measure: the trial's share of the budget
    warmup_limit_s: float
    timeout_s: float
    log_path: str
    at_least_s: float = 0.0  # seconds to measure even if the interval is narrow earlier
    recipe_folders: tuple[str, ...] = ()
    seed: int = 0  # fixes the model's weights and the batches
    stream_seed: int = 0  # fixes the random streams of the steps (dropout)
    kind: TrialKind = TrialKind.CANDIDATE
    environment: dict[str, str] = field(default_factory=dict)  # variables to set in a fresh interpreter
    export_path: str = ""  # the file that a trial verifies; empty for the plain loop without the file
    steps: int = 0  # steps of a plain loop that returns its losses (0: it is timed), or training steps before a score
    rounded: bool = False  # a loop to verify rounds its parameters to bfloat16 before it trains
    evaluate: str = ""  # the function that scores the model, as module:attr
    times_phases: bool = False  # the trial times the phases of a step after the blocks
    world: World | None = None  # torchrun starts the trial over these ranks; None for one process
    loss_form: str = ""  # the form that an inspection found; empty if there was none yet
    beside: int | None = None  # the id of the process that compiles for the same session at the same time
    leaving: int | None = None  # the id of the previous trial's process, if it may still hold memory


@dataclass(frozen=True, slots=True)
class Exported:
    """A file to verify."""

    path: str
    config: dict[str, Any] | None = None  # the patched config for build(config); None for the session's config
    read_as: dict[str, str] = field(default_factory=dict)  # by a file of the user: the file that is run in its place


@dataclass(frozen=True, slots=True)
class Verification:
    """The speed of a plain loop with an exported file, compared with the same loop without it."""

    path: str
    speedup: float | None = None  # the ratio of samples per second
    plain_step_ms: float | None = None
    tuned_step_ms: float | None = None
    session_speedup: float | None = None  # the speed-up that the session measured
    seconds: float = 0.0  # the duration of the verification
    problem: str = ""  # the reason that the speed is unknown
    difference: float | None = None  # the relative difference of outputs or losses; None if not compared
    compared: str = "outputs"  # or losses
    whole_rounds: bool = False  # whole rounds of a script's loop were timed: the step and the other statements


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of single calls, each of which ends before the next begins: percentiles in ms."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    calls: int


@dataclass(frozen=True, slots=True)
class Block:
    """Back-to-back steps that are timed together, in wall seconds; the device is idle before and after."""

    steps: int
    samples: int
    seconds: float

    @property
    def step_ms(self) -> float:
        """Wall milliseconds per step."""
        return 1e3 * self.seconds / self.steps

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


@dataclass(frozen=True, slots=True)
class BatchForm:
    """How a step takes a batch apart, as Python expressions of ``batch``."""

    kind: str  # tensor; list or mapping (of tensors only); nested (with other parts); object (with a method to())
    inputs: tuple[str, ...] = ()  # the arguments of the model
    target: str = ""  # the arguments of the loss after the output, or code that reads them; empty if unknown


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A statement of a loop after its step, with its share of a round's time (0 to 1)."""

    text: str
    line: int
    share: float
    evaluates: bool  # the statement calls a model without gradients


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """The mean times of whole rounds of a script's loop, and the slowest statements outside the step."""

    rounds: int
    round_ms: float
    step_ms: float
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """The number that the user's evaluation gives for a model; higher is better."""

    value: float | None = None  # None if the evaluation gave no number
    steps: int = 0  # training steps before the evaluation
    baseline: float | None = None  # the score with the user's own settings
    problem: str = ""  # the reason that there is no score, or that it is too low


# The most updates that a gradient scaler may skip in the first steps. Each halves the scale; more find no better one.
MOST_SKIPPED_STEPS = 24


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome and the measurements of a trial. A failed trial has a reason and no blocks."""

    outcome: Outcome
    reason: str = ""
    hint: str = ""
    details: str = ""
    causes: tuple[Cause, ...] = ()  # the causes of a failure; empty if not known
    batch_size: int | None = None
    blocks: tuple[Block, ...] = ()
    event_step_ms: tuple[float, float, float] | None = None  # 5th, 50th and 95th percentile of steps, by CUDA events
    latency: Latency | None = None  # latency of single calls; None in training, and if there was time for too few
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    startup_s: float | None = None
    build_s: float | None = None
    prepare_s: float | None = None  # the time for applying the settings
    warmup_s: float | None = None  # the time from the first step to the steady state
    warmup_steps: int = 0
    measuring_s: float = 0.0  # the time for timing, comparing the first results and, in the baseline, profiling
    wall_s: float | None = None
    losses: tuple[float, ...] = ()  # the losses of the first steps, in training
    outputs: tuple[float, ...] = ()  # the sum and a fixed sample of the model's outputs (training: first step)
    notes: tuple[str, ...] = ()
    disturbed: str = ""  # the disturbance from outside that made the timings unreliable; empty if there was none
    skipped_steps: int = 0  # the number of updates that a gradient scaler skipped in the first steps
    operations: int = 0  # the number of operations with gradients in the forward pass; 0 if not known
    energy_j_per_sample: float | None = None  # energy of the whole GPU during the blocks, with idle draw and pauses
    gpu: GpuReadings | None = None
    log_path: str = ""
    phases: dict[str, float] = field(default_factory=dict)  # ms by phase; the host waits after each phase
    ranks: RanksFound | None = None  # for several ranks: blocks hold the samples of all, peaks are the largest of any
    loss_form: str = ""  # a value of LossForm; empty if not known
    batch_form: BatchForm | None = None
    whole_rounds: RoundTimes | None = None  # the times of a script's loop; only in the baseline
    score: Score | None = None

    @property
    def measured(self) -> bool:
        """Whether the trial produced timings."""
        return self.outcome is Outcome.MEASURED and bool(self.blocks)

    @property
    def probed(self) -> bool:
        """Whether the trial produced losses or outputs. A trial in a higher precision produces nothing else."""
        return self.outcome is Outcome.MEASURED and bool(self.losses or self.outputs)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """The wall time of a session by use, in seconds."""

    measuring_s: float
    warming_up_s: float  # including the first steps and compilation
    session_s: float

    @property
    def outside_s(self) -> float:
        """The other seconds: starting and ending processes, importing, loading the model, applying settings."""
        return max(0.0, self.session_s - self.measuring_s - self.warming_up_s)

    @property
    def outside_share(self) -> float:
        """``outside_s`` as a share of the session."""
        return self.outside_s / self.session_s if self.session_s else 0.0


@dataclass(frozen=True, slots=True)
class NumericsResult:
    """The numerics of a trial, compared with the baseline."""

    measured: Numerics  # the measured class; the declared class if nothing could be compared
    declared: Numerics
    difference: float | None  # relative difference from the baseline: 0 if bit-equal, None if not comparable
    text: str
    from_reference: float | None = None  # relative difference from the same steps in a higher precision, if they ran
    baseline_from_reference: float | None = None  # the same difference for the baseline
    as_baselines: bool = False  # it differs no more than two runs of the baseline: the declared class may be true
    compared: bool = True
    another_draw: float = 0.0  # the largest relative change by other random numbers; 0 if the steps draw none
    score: Score | None = None  # the score, judged by the session's bounds; None if the model was not scored

    @property
    def worse_than_declared(self) -> bool:
        """Whether the trial changed more than the recipe promises."""
        return self.decisive.exceeds(self.declared)

    @property
    def decisive(self) -> Numerics:
        """The class that decides on consent: the measured one or, if the baseline varies as much, the milder one."""
        return min(self.measured, self.declared, key=lambda n: n.severity) if self.as_baselines else self.measured


# Ratios. A change: the whole interval is above CHANGE or below 1/CHANGE. The same: it is between 1/_SAME and _SAME.
CHANGE, _SAME = 1.01, 1.03
_OPEN_RATIO = 1.5  # an interval is useless if its upper end is more than 1.5 times its lower end


@dataclass(frozen=True, slots=True)
class Comparison:
    """A speed-up over the baseline (a ratio of samples per second) with its interval.

    It is a 95 % interval if the settings were measured in turns with the baseline (``paired``), else a 99 % one.
    """

    speedup: float
    ci_low: float
    ci_high: float
    paired: bool = field(default=False, kw_only=True)

    @property
    def is_open(self) -> bool:
        """Whether the interval is too wide to tell anything: the settings may be much faster, or much slower."""
        return self.verdict is Verdict.UNCLEAR and self.ci_high > _OPEN_RATIO * self.ci_low

    @property
    def verdict(self) -> Verdict:
        """Faster or slower if the whole interval is, by 1 %; the same if it is within 3 % of 1; else unclear."""
        if self.ci_low > CHANGE:
            return Verdict.FASTER
        if self.ci_high < 1 / CHANGE:
            return Verdict.SLOWER
        return Verdict.SAME if self.ci_low >= 1 / _SAME and self.ci_high <= _SAME else Verdict.UNCLEAR


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A candidate with its result, compared with the baseline."""

    candidate: Candidate
    settings: dict[str, Value]  # all settings that were applied
    result: TrialResult
    comparison: Comparison | None = None
    numerics: NumericsResult | None = None
    break_even_steps: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    confirmed: bool = False  # measured in turns with the baseline, with a clear result
    contribution: Comparison | None = None  # the speed-up that the candidate adds to other settings

    @property
    def own_effect(self) -> Comparison | None:
        """The candidate's own effect on the speed: alone, or what it adds if it was only measured with others."""
        return self.comparison if self.alone or self.contribution is None else self.contribution

    @property
    def alone(self) -> bool:
        """Whether the candidate was measured by itself, not on top of a stack."""
        return len(self.settings) <= 1

    @property
    def label(self) -> str:
        """The candidate's name; with a remark if it was measured on top of the stack."""
        return self.candidate.name if self.alone else f"{self.candidate.name}, with the combination"

    @property
    def verdict(self) -> Verdict:
        """The candidate's verdict, by its own effect."""
        if self.result.outcome is Outcome.SKIPPED:
            return Verdict.SKIPPED
        return self.own_effect.verdict if self.own_effect else Verdict.FAILED


@dataclass(frozen=True, slots=True)
class StackRecord:
    """Several settings applied together, measured against the baseline."""

    settings: dict[str, Value]
    result: TrialResult
    comparison: Comparison | None = None
    numerics: NumericsResult | None = None
    break_even_steps: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    confirmed: bool = False  # measured in turns with the baseline (A B B A), with a clear result
    # The baseline's figures from those turns. The speed-up is relative to them, since the machine may drift.
    baseline_step_ms: float | None = None
    baseline_samples_per_s: float | None = None
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        """Whether these settings must still be measured together, because the person rejected one of the stack."""
        return self.result.outcome is Outcome.SKIPPED

    @property
    def verdict(self) -> Verdict:
        """The verdict on the settings together; skipped until they are measured."""
        if self.pending:
            return Verdict.SKIPPED
        return self.comparison.verdict if self.comparison else Verdict.FAILED


@dataclass(frozen=True, slots=True)
class Combination:
    """Settings that were measured together, with their speed and memory."""

    settings: dict[str, Value]
    comparison: Comparison | None
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """The measurements with the user's own settings. Differences are relative, and 0 if there was only one run."""

    result: TrialResult
    step_ms: float
    samples_per_s: float
    half_width: float = 0.0  # half the 95 % interval of the speed, as a share; after one run, other machines' value
    memory_floor: float = 0.0  # the difference in peak memory between identical runs
    energy_floor: float = 0.0  # the difference in energy between identical runs
    runs: int = 2  # the number of runs
    apart: float = 0.0  # the share by which the slowest run took longer than the fastest


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A ranked candidate, with the best value of its recipe. ``in_stack``: the final stack contains it."""

    rank: int
    record: TrialRecord
    title: str
    why: str
    needs_consent: bool
    in_stack: bool

    @property
    def recipe(self) -> str:
        """The id of the candidate's recipe."""
        return self.record.candidate.recipe
