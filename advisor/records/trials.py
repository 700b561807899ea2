"""Candidates, their results, and the recommendations."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from advisor.records.kinds import Cause, Mode, Numerics, Outcome, TrialKind, Value, Verdict, text_of
from advisor.records.secrets import arguments_without_secrets


@dataclass(frozen=True, slots=True)
class Skip:
    """The reason for proposing nothing, in words that a person can act on."""

    reason: str


# The values of a recipe that are worth trying, or why there are none.
Proposal = Sequence[Value] | Skip


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe and a value to try. ``already_on`` marks a value that switches off what the user already has."""

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


UNUSED_PARAMETERS = "parameters got no gradient in a step (DistributedDataParallel)"  # the reason of a failed trial


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a trial that runs on torchrun."""

    ranks: int  # their number on this machine, a GPU for each
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


WORKLOAD_SUFFIX = ".workload"  # ends the name of a file with the workload that ``advisor.tune`` was called with


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
    arguments: tuple[str, ...] = ()  # the target's own, which follow its name in sys.argv
    read_as: dict[str, str] = field(default_factory=dict)  # the file that is run in place of one of the user's

    @property
    def command(self) -> str:
        """The target as it stands on the command line, without secrets: ``train.py:build -- --lr 0.1``."""
        shown, _ = arguments_without_secrets(self.arguments)
        return " -- ".join(filter(None, (self.target, shlex.join(shown))))


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """NVML's readings while a trial was timed."""

    temperature_c: int | None = None  # the highest
    sm_clock_mhz: int | None = None  # the median
    power_w: float | None = None  # the mean
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One trial to run."""

    trial_id: str
    target: TargetSpec
    settings: dict[str, Value]  # over the user's own
    measure_s: float  # its share of the budget
    warmup_limit_s: float
    timeout_s: float
    log_path: str
    at_least_s: float = 0.0  # measured also when the interval is narrow earlier
    recipe_folders: tuple[str, ...] = ()
    seed: int = 0  # fixes the model's weights and the batches
    stream_seed: int = 0  # fixes the random streams of the steps (dropout)
    kind: TrialKind = TrialKind.CANDIDATE
    environment: dict[str, str] = field(default_factory=dict)  # variables to set in a fresh interpreter
    export_path: str = ""  # the file that a trial verifies; empty for the loop that it is compared with
    steps: int = 0  # a plain loop runs so many and returns their losses; 0: it is timed. Also those before a score
    rounded: bool = False  # the parameters of a loop to verify are rounded to bfloat16 before it trains
    evaluate: str = ""  # the function that scores the model, as module:attr
    times_phases: bool = False  # it times the parts of a step once the blocks are timed
    world: World | None = None  # it runs on torchrun, over these ranks
    loss_form: str = ""  # as the inspection found it; empty where none has been
    beside: int | None = None  # the id of the process that compiles meanwhile for the same session
    leaving: int | None = None  # that of the trial before, where it may still hold its memory


@dataclass(frozen=True, slots=True)
class Exported:
    """A file to verify."""

    path: str
    config: dict[str, Any] | None = None  # the patched one that build(config) gets, None for the session's
    read_as: dict[str, str] = field(default_factory=dict)  # the user's files, and those that are run in their place


@dataclass(frozen=True, slots=True)
class Verification:
    """The speed of an exported file in a plain loop, beside the same loop without it."""

    path: str
    speedup: float | None = None  # the ratio of samples per second
    plain_step_ms: float | None = None
    tuned_step_ms: float | None = None
    session_speedup: float | None = None  # as the session measured it
    seconds: float = 0.0  # that verifying took
    problem: str = ""  # why the speed is unknown
    difference: float | None = None  # the relative one of what is compared, None where nothing is
    compared: str = "outputs"  # or losses
    whole_rounds: bool = False  # rounds of a script's own loop were timed: the step, and all else that it does


@dataclass(frozen=True, slots=True)
class Latency:
    """Single calls, each waited for before the next begins: percentiles in ms, and the number of calls."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    calls: int


@dataclass(frozen=True, slots=True)
class Block:
    """Back-to-back steps timed together: wall seconds between two moments at which the device had done all before."""

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
    """A batch as a step takes it apart, in Python that names it ``batch``."""

    kind: str  # tensor; list or mapping, of tensors only; nested, with other parts; object, with a method to
    inputs: tuple[str, ...] = ()  # the arguments of the model
    target: str = ""  # arguments of the loss behind the output, or code that reads it; empty where unknown


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A statement of a loop behind its step, with its share of a round (0 to 1)."""

    text: str
    line: int
    share: float
    evaluates: bool  # it calls a model without gradients


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Whole rounds of a script's loop, as they are written: means of so many, and what takes most beside the step."""

    rounds: int
    round_ms: float
    step_ms: float
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """The number that the user's evaluation gives for a model; higher is better."""

    value: float | None = None  # None where it gave none
    steps: int = 0  # of training before
    baseline: float | None = None  # that of the user's own settings
    problem: str = ""  # why there is none, or why it is not enough


# Updates that a gradient scaler may skip in the first steps: at half of its scale each time, none that fits is lower.
MOST_SKIPPED_STEPS = 24


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome and the measurements of a trial; a trial that failed has an outcome, a reason and no blocks."""

    outcome: Outcome
    reason: str = ""
    hint: str = ""
    details: str = ""
    causes: tuple[Cause, ...] = ()  # what a failed trial failed in; none where that is not known
    batch_size: int | None = None
    blocks: tuple[Block, ...] = ()
    event_step_ms: tuple[float, float, float] | None = None  # 5th, 50th and 95th percentile, by events
    latency: Latency | None = None  # of single calls; None in training, and where too few fit into the time
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    startup_s: float | None = None
    build_s: float | None = None
    prepare_s: float | None = None  # applying the settings
    warmup_s: float | None = None  # everything from the first step to the steady state
    warmup_steps: int = 0
    measuring_s: float = 0.0  # timing, looking at the first results, and for the baseline profiling
    wall_s: float | None = None
    losses: tuple[float, ...] = ()  # the first ones, in training
    outputs: tuple[float, ...] = ()  # the sum and a fixed sample of the model's; in training those of the first step
    notes: tuple[str, ...] = ()
    disturbed: str = ""  # what from outside made the timings unreliable; empty when nothing did
    skipped_steps: int = 0  # updates that a gradient scaler skipped in the first steps
    operations: int = 0  # of the model's forward pass that gradients flow through, 0 where not known
    energy_j_per_sample: float | None = None  # of the whole GPU over the blocks, idle draw and pauses included
    gpu: GpuReadings | None = None
    log_path: str = ""
    phases: dict[str, float] = field(default_factory=dict)  # ms per part of a step, each waited for
    ranks: RanksFound | None = None  # of several: blocks hold the samples of all, peaks are the largest of any
    loss_form: str = ""  # a value of LossForm; empty where it is not known
    batch_form: BatchForm | None = None
    whole_rounds: RoundTimes | None = None  # of a script's loop, in the baseline
    score: Score | None = None

    @property
    def measured(self) -> bool:
        """Whether the trial produced timings."""
        return self.outcome is Outcome.MEASURED and bool(self.blocks)

    @property
    def probed(self) -> bool:
        """Whether the trial produced losses or outputs, which is all that a trial in a higher precision does."""
        return self.outcome is Outcome.MEASURED and bool(self.losses or self.outputs)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """The wall time of a session by use, in seconds."""

    measuring_s: float
    warming_up_s: float  # first steps and compilation too
    session_s: float

    @property
    def outside_s(self) -> float:
        """Starting processes, importing, loading the model, applying settings, waiting for processes to end."""
        return max(0.0, self.session_s - self.measuring_s - self.warming_up_s)

    @property
    def outside_share(self) -> float:
        """``outside_s`` as a share of the session."""
        return self.outside_s / self.session_s if self.session_s else 0.0


@dataclass(frozen=True, slots=True)
class NumericsResult:
    """Measured numerics against the baseline."""

    measured: Numerics  # what the recipe declares, where nothing could be compared
    declared: Numerics
    difference: float | None  # relative: 0 when bit-equal, None if not comparable
    text: str
    from_reference: float | None = None  # relative, from the same steps in a higher precision; None without one
    baseline_from_reference: float | None = None  # the same of the baseline's
    as_baselines: bool = False  # as two runs of the baseline differ: nothing speaks against the class declared
    compared: bool = True
    another_draw: float = 0.0  # relative: the most that other random numbers change, where the steps draw some
    score: Score | None = None  # judged by the session's bounds; None where none was taken

    @property
    def worse_than_declared(self) -> bool:
        """Whether the trial changed more than the recipe promises."""
        return self.decisive.exceeds(self.declared)

    @property
    def decisive(self) -> Numerics:
        """The class that decides on consent: as measured, unless the baseline varies as much."""
        return min(self.measured, self.declared, key=lambda n: n.severity) if self.as_baselines else self.measured


# The whole interval of a change lies above this or below its inverse; that of none within the other. Ratios.
CHANGE, _SAME = 1.01, 1.03
_OPEN_RATIO = 1.5  # an interval whose upper end is more than so many times its lower end tells nothing


@dataclass(frozen=True, slots=True)
class Comparison:
    """A speed-up over the baseline, always the ratio of samples per second, with its interval.

    The interval is of 95 % where the settings took turns with the baseline (``paired``), of 99 % elsewhere.
    """

    speedup: float
    ci_low: float
    ci_high: float
    paired: bool = field(default=False, kw_only=True)

    @property
    def is_open(self) -> bool:
        """Whether the interval is too wide to tell anything: it may be much faster, or much slower."""
        return self.verdict is Verdict.UNCLEAR and self.ci_high > _OPEN_RATIO * self.ci_low

    @property
    def verdict(self) -> Verdict:
        """Faster or slower when the whole interval is, by 1 %; the same when it lies within 3 % of 1; else unclear."""
        if self.ci_low > CHANGE:
            return Verdict.FASTER
        if self.ci_high < 1 / CHANGE:
            return Verdict.SLOWER
        return Verdict.SAME if self.ci_low >= 1 / _SAME and self.ci_high <= _SAME else Verdict.UNCLEAR


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A candidate with its result, compared with the baseline."""

    candidate: Candidate
    settings: dict[str, Value]  # all that was applied
    result: TrialResult
    comparison: Comparison | None = None
    numerics: NumericsResult | None = None
    break_even_steps: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    confirmed: bool = False  # turns with the baseline settled it
    contribution: Comparison | None = None  # how many times as fast other settings are with it as without it

    @property
    def own_effect(self) -> Comparison | None:
        """The candidate's own effect on the speed: alone over the baseline, else its contribution to the others."""
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
    confirmed: bool = False  # turns, A B B A, settled it
    # The baseline's as timed beside the stack. The speed-up is the ratio to those: the first may differ by a drift.
    baseline_step_ms: float | None = None
    baseline_samples_per_s: float | None = None
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        """Whether these settings have yet to be measured together, because the person rejected others of a stack."""
        return self.result.outcome is Outcome.SKIPPED

    @property
    def verdict(self) -> Verdict:
        """The verdict on the settings together; skipped while that is still to come."""
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
    """The user's own settings, measured. Differences are relative, and 0 where there was one run only."""

    result: TrialResult
    step_ms: float
    samples_per_s: float
    half_width: float = 0.0  # of the 95 % interval of its speed, as a share: of one run, what other machines showed
    memory_floor: float = 0.0  # the difference in peak memory that identical runs showed
    energy_floor: float = 0.0  # the same in energy
    runs: int = 2  # how many there were
    apart: float = 0.0  # the slowest took longer by this share than the fastest


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A ranked candidate: at most one value per recipe, the best. ``in_stack`` when the final stack has it."""

    rank: int
    record: TrialRecord
    title: str
    why: str
    needs_consent: bool
    in_stack: bool

    @property
    def recipe(self) -> str:
        """The id of its recipe."""
        return self.record.candidate.recipe
