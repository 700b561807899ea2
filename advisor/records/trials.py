"""Candidates, their results, and the recommendations."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from advisor.records.kinds import Mode, Numerics, Outcome, TrialKind, Value, Verdict, text_of
from advisor.records.parallel import RanksFound, World
from advisor.records.secrets import arguments_without_secrets


@dataclass(frozen=True, slots=True)
class Skip:
    """The reason for proposing nothing, in words that a person can act on.

    ``needed``: what the person has cannot be left out either; elsewhere it is measured off.
    """

    reason: str
    needed: bool = False


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


# The end of the name of a file with the workload that ``advisor.tune`` was called with.
WORKLOAD_SUFFIX = ".workload"


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The user's request: the target and the options that shape the workload.

    ``arguments`` are the target's own, which follow its name in ``sys.argv``. ``sized_for``: the device whose size
    decides made-up batches, where it is another one than ``device``.
    """

    target: str
    directory: str
    mode: Mode | None = None
    device: str = "auto"
    batch_size: int | None = None
    input_shape: tuple[int, ...] | None = None
    config: dict[str, Any] | None = None
    arguments: tuple[str, ...] = ()
    sized_for: str = ""

    @property
    def command(self) -> str:
        """The target as it stands on the command line, without secrets: ``train.py:build -- --lr 0.1``."""
        shown, _ = arguments_without_secrets(self.arguments)
        return " -- ".join(filter(None, (self.target, shlex.join(shown))))


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """NVML's readings while a trial was timed: the highest temperature, the median clock, the mean power.

    ``samples`` counts the readings. ``foreign_processes`` is the most others that held a compute context at a time,
    idle ones too; None where NVML does not list processes, so that nobody knows.
    """

    samples: int
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_lowest_mhz: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    foreign_processes: int | None = 0


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One trial to run. ``settings`` are applied over the user's own; ``measure_s`` is its share of the budget;
    ``at_least_s`` is measured also when the interval is narrow earlier.

    ``seed`` fixes the model's weights and the batches, ``stream_seed`` the random streams of the steps (dropout).
    ``environment`` are variables that must be set before the interpreter starts: such a trial gets a fresh one.
    ``export_path``: the exported file that a trial verifies; empty for the loop that it is compared with.
    ``loss_form``: the form of the loss that the inspection found; empty where none has been.
    ``times_phases``: it times the parts of a step once the blocks are timed. ``world``: it runs on torchrun, over
    these ranks.
    """

    trial_id: str
    target: TargetSpec
    settings: dict[str, Value]
    measure_s: float
    warmup_limit_s: float
    timeout_s: float
    log_path: str
    at_least_s: float = 0.0
    recipe_folders: tuple[str, ...] = ()
    seed: int = 0
    stream_seed: int = 0
    kind: TrialKind = TrialKind.CANDIDATE
    environment: dict[str, str] = field(default_factory=dict)
    export_path: str = ""
    times_phases: bool = False
    world: World | None = None
    loss_form: str = ""


@dataclass(frozen=True, slots=True)
class Exported:
    """A file to verify. ``config``: the patched config that ``build(config)`` gets, None for that of the session."""

    path: str
    config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The speed of an exported file in a plain loop, beside the same loop without it. ``problem``: why it is unknown.

    ``speedup`` is the ratio of samples per second; ``session_speedup`` is what the session measured. ``seconds``:
    what verifying took. ``difference``: the relative difference of the outputs, None in training.
    """

    path: str
    speedup: float | None = None
    plain_step_ms: float | None = None
    tuned_step_ms: float | None = None
    session_speedup: float | None = None
    seconds: float = 0.0
    problem: str = ""
    difference: float | None = None


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
    """A batch as a step takes it apart, in Python that names it ``batch``.

    ``kind``: ``tensor``; ``list`` or ``mapping``, whose parts are all tensors; ``nested``, with other parts too; or
    ``object``, with a method ``to``. ``inputs``: the arguments of the model. ``target``: those of the loss that follow
    the output, or the model where it calls that; of a loss that the model computes, the code that reads it from
    ``output``, and empty where that is not known.
    """

    kind: str
    inputs: tuple[str, ...] = ()
    target: str = ""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome and the measurements of a trial; a trial that failed has an outcome, a reason and no blocks.

    ``event_step_ms`` holds the 5th, 50th and 95th percentile of single steps by the device's events.
    ``latency`` is that of single calls; None in training, and where a call takes too long to make enough of them.
    ``prepare_s`` is applying the settings; ``warmup_s`` is everything from the first step to the steady state;
    ``measuring_s`` is timing, looking at the data and at what the first steps computed, and for the baseline profiling.
    ``losses`` are the first training losses. ``outputs`` are the sum and a fixed sample of the model's outputs, in
    training those of the first step. ``weights`` are the squared norm of the parameters before the first of these
    steps and after each; norms of another number of ``parameters`` are not compared.
    ``disturbed`` says what from outside made the timings unreliable; empty when nothing did. ``skipped_steps`` counts
    the updates that a gradient scaler skipped in the probe.
    ``gradients_at_times`` counts the trained parameters that had a gradient after some steps of the probe and none
    after others; ``operations`` those of the model's forward pass that gradients flow through, 0 where they are not
    known. ``energy_j_per_sample`` is what the whole GPU took while the blocks were timed, its idle draw and the host's
    pauses included. ``phases`` are ms per part of a step, each waited for; empty where nobody asked for them.
    ``device``: the GPU that the trial ran on, where that is not the session's own. ``ranks``: the findings of a trial
    over several ranks, whose blocks hold the samples of all, and whose peaks are the largest of any rank.
    ``loss_form``: the form of the loss, a value of ``LossForm``; empty where it is not known, and ``batch_form`` None.
    """

    outcome: Outcome
    reason: str = ""
    hint: str = ""
    details: str = ""
    batch_size: int | None = None
    blocks: tuple[Block, ...] = ()
    event_step_ms: tuple[float, float, float] | None = None
    latency: Latency | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    startup_s: float | None = None
    build_s: float | None = None
    prepare_s: float | None = None
    warmup_s: float | None = None
    warmup_steps: int = 0
    measuring_s: float = 0.0
    wall_s: float | None = None
    losses: tuple[float, ...] = ()
    outputs: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    parameters: int = 0
    notes: tuple[str, ...] = ()
    disturbed: str = ""
    skipped_steps: int = 0
    gradients_at_times: int = 0
    operations: int = 0
    energy_j_per_sample: float | None = None
    gpu: GpuReadings | None = None
    log_path: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    device: str = ""
    ranks: RanksFound | None = None
    loss_form: str = ""
    batch_form: BatchForm | None = None

    @property
    def measured(self) -> bool:
        """Whether the trial produced timings."""
        return self.outcome is Outcome.MEASURED and bool(self.blocks)

    @property
    def probed(self) -> bool:
        """Whether the trial produced losses or outputs; one in a higher precision produces nothing else."""
        return self.outcome is Outcome.MEASURED and bool(self.losses or self.outputs)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """The wall time of a session by use, in seconds: ``warming_up_s`` holds first steps and compilation too."""

    measuring_s: float
    warming_up_s: float
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
    """Measured numerics against the baseline. ``difference`` is relative (0 when bit-equal), None if not comparable.

    ``from_reference`` is the relative difference from the same steps in a higher precision, and
    ``baseline_from_reference`` the baseline's; None where there is no such reference. ``as_baselines`` when two runs of
    the baseline differ about as much: then nothing speaks against the class that the recipe declares. ``compared`` is
    False where nothing could be: then ``measured`` is what the recipe declares.
    """

    measured: Numerics
    declared: Numerics
    difference: float | None
    text: str
    from_reference: float | None = None
    baseline_from_reference: float | None = None
    as_baselines: bool = False
    compared: bool = True

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
# An interval whose upper end is more than this many times its lower end tells nothing. Unitless.
_OPEN_RATIO = 1.5


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
    def seems_faster(self) -> bool:
        """Whether the estimate alone, without its interval, is that of something faster."""
        return self.speedup > CHANGE

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
    """A candidate with its result, compared with the baseline. ``settings`` is all that was applied.

    ``confirmed`` when turns with the baseline settled it. ``contribution`` says, of a candidate that was
    measured together with others, how many times as fast they are with it as without it; it may be known beside
    what the candidate does alone.
    """

    candidate: Candidate
    settings: dict[str, Value]
    result: TrialResult
    comparison: Comparison | None = None
    numerics: NumericsResult | None = None
    break_even_steps: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    confirmed: bool = False
    contribution: Comparison | None = None

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
        """The candidate's name, with the words that it was measured on top of the stack when it was."""
        return self.candidate.name if self.alone else f"{self.candidate.name}, with the stack"

    @property
    def verdict(self) -> Verdict:
        """The candidate's verdict, by its own effect."""
        if self.result.outcome is Outcome.SKIPPED:
            return Verdict.SKIPPED
        return self.own_effect.verdict if self.own_effect else Verdict.FAILED


@dataclass(frozen=True, slots=True)
class StackRecord:
    """Several settings applied together, measured against the baseline. ``confirmed`` when turns, A B B A, settled it.

    ``baseline_step_ms`` and ``baseline_samples_per_s`` are the baseline's as timed beside the stack: the speed-up is
    the ratio to those, which on a machine that drifts are not the session's first.
    """

    settings: dict[str, Value]
    result: TrialResult
    comparison: Comparison | None = None
    numerics: NumericsResult | None = None
    break_even_steps: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    confirmed: bool = False
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
class ParetoPoint:
    """Settings that were measured, by speed and memory. The baseline has neither settings nor a comparison."""

    name: str
    settings: dict[str, Value]
    comparison: Comparison | None
    peak_reserved_bytes: int

    @property
    def speedup(self) -> float:
        """Samples per second over the baseline's."""
        return self.comparison.speedup if self.comparison else 1.0


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """The user's own settings, measured. ``cpu_step_ms`` is the same step on the CPU, when a GPU session tried that.

    ``half_width`` is half the width of the 95 % interval of its speed, as a share: of one run, what other machines
    showed. ``memory_floor`` and ``energy_floor`` are the relative differences in peak memory and in energy that
    identical runs showed; 0 where there was one run only. ``runs`` is how many there were. ``apart``: the slowest took
    longer by this share than the fastest.
    """

    result: TrialResult
    step_ms: float
    samples_per_s: float
    cpu_step_ms: float | None = None
    half_width: float = field(default=0.0, kw_only=True)
    memory_floor: float = 0.0
    energy_floor: float = 0.0
    runs: int = 2
    apart: float = 0.0


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
