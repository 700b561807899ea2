"""Frozen records: everything that crosses a process, a module or a file boundary.

Units are in the names: ``_s`` seconds, ``_ms`` milliseconds, ``_bytes`` bytes. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Value = bool | int | float | str


class Mode(StrEnum):
    """Which loop is being tuned."""

    TRAIN = "train"
    INFER = "infer"


class Numerics(StrEnum):
    """How a setting changes what the model computes."""

    EXACT = "exact"
    CLOSE = "close"
    CHANGED = "changed"

    @property
    def severity(self) -> int:
        """0 for exact, 1 for close, 2 for changed."""
        return list(Numerics).index(self)


class Outcome(StrEnum):
    """How a trial ended."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    NON_FINITE = "non_finite"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Verdict(StrEnum):
    """What a trial says about its candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no measurable difference"
    FAILED = "failed"
    SKIPPED = "skipped"


class Bottleneck(StrEnum):
    """What the step is bound by."""

    INPUT = "input"
    LAUNCH = "host launches"
    MEMORY = "memory bandwidth"
    COMPUTE = "compute"
    COPY = "host-to-device copies"
    COMMUNICATION = "communication"


class Phase(StrEnum):
    """The parts of a step, in the order in which a step runs them."""

    DATA_WAIT = "data wait"
    HOST_TO_DEVICE = "host-to-device"
    ZERO_GRAD = "zero_grad"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Objective(StrEnum):
    """What the ranking and the stack optimise."""

    THROUGHPUT = "throughput"
    MEMORY = "memory"
    LATENCY = "latency"
    ENERGY = "energy"


# --- hardware -------------------------------------------------------------------------------------------------


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
    cuda_driver_version: str | None = None
    compute_capability: tuple[int, int] | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    ecc_enabled: bool | None = None
    mig_enabled: bool | None = None
    throttle_reasons: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of a GPU's gauges."""

    uuid: str
    utilization_percent: int | None
    memory_used_bytes: int
    memory_total_bytes: int
    temperature_c: int | None
    power_w: float | None
    sm_clock_mhz: int | None


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The host as psutil and the kernel describe it. ``usable_cores`` honours the process's CPU affinity."""

    cpu: str
    physical_cores: int
    logical_cores: int
    usable_cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    cpu_features: tuple[str, ...]
    numa_nodes: int
    system: str
    python: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine. ``gpu_note`` is a plain sentence when NVML cannot be used."""

    host: HostInfo
    gpus: tuple[GpuInfo, ...] = ()
    gpu_note: str | None = None

    def gpu_by_uuid(self, uuid: str | None) -> GpuInfo | None:
        """The GPU with this UUID (with or without the ``GPU-`` prefix that CUDA leaves out)."""
        if uuid is None:
            return None
        wanted = uuid.removeprefix("GPU-").lower()
        return next((gpu for gpu in self.gpus if gpu.uuid.removeprefix("GPU-").lower() == wanted), None)


# --- what is known of the workload ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A DataLoader as the user built it. ``length`` is in batches, None for an iterable dataset.

    ``pickle_problem`` says what of a loader with workers cannot be pickled, empty for nothing. ``movable_transforms``
    are the transforms at the end of the dataset's that could run on whole batches on the device; where there is none,
    ``transforms_problem`` says why.
    """

    batch_size: int | None
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    length: int | None
    iterable_dataset: bool
    custom_batch_sampler: bool
    drop_last: bool
    pickle_problem: str = ""
    movable_transforms: tuple[str, ...] = ()
    transforms_problem: str = ""


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer: its class and the implementations that its class offers. ``builtin``: a class of torch.optim."""

    name: str
    implementation: str
    implementations: tuple[str, ...]
    capturable: bool
    tensors: int
    state_bytes: int = 0
    builtin: bool = True


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What inspecting the loaded workload in the trial process found.

    ``families`` counts modules by kind: conv1d, conv2d, conv3d, linear, embedding, batch_norm, layer_norm, dropout,
    attention, recurrent, and forked for TorchScript that runs parts of itself beside one another. ``current`` holds the
    value of every known setting as the user has it.
    ``input_dims`` has the number of dimensions of each input tensor. ``linear_shapes`` has inputs, outputs and count
    for each size of linear layer. ``repeated_blocks`` has class and count; ``varying_shapes`` is whether the first
    batches differ in shape. ``fusable_chains`` counts chains of pointwise operations and ``inplace_activations`` the
    activations that could write over their input; where there is none because the model cannot be traced, the problem
    says why. ``clip_norm`` is the norm that the user clips gradients to, None without clipping.
    ``biased_conv_norm_pairs`` counts convolutions whose bias a norm cancels, ``conv_norm_pairs`` batch norms that could
    be folded (looked for in inference only); where neither could be looked for, ``norm_pairs_problem`` says why.
    ``paddable_outputs`` has, for a multiple, how many layers could be padded to it, and the outputs of the widest.
    """

    mode: Mode
    device: str
    device_name: str
    device_uuid: str | None
    capability: tuple[int, int] | None
    device_memory_bytes: int
    model: str
    parameters: int
    trainable_parameters: int
    parameter_bytes: int
    parameter_tensors: int
    parameter_dtypes: tuple[str, ...]
    families: dict[str, int]
    batch_size: int | None
    batch_text: str
    input_dims: tuple[int, ...]
    resizable_batch: bool
    data_kind: str
    loss: str
    optimizer: OptimizerFacts | None
    loader: LoaderFacts | None
    threads: int
    usable_cores: int
    current: dict[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    linear_shapes: tuple[tuple[int, int, int], ...] = ()
    repeated_blocks: tuple[tuple[str, int], ...] = ()
    varying_shapes: bool = False
    fusable_chains: int = 0
    fusing_problem: str = ""
    inplace_activations: int = 0
    tracing_problem: str = ""
    clip_norm: float | None = None
    biased_conv_norm_pairs: int = 0
    conv_norm_pairs: int = 0
    norm_pairs_problem: str = ""
    paddable_outputs: tuple[tuple[int, int, int], ...] = ()

    @property
    def device_type(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.device.partition(":")[0]

    def has(self, *families: str) -> bool:
        """Whether the model has a module of one of these families."""
        return any(self.families.get(family, 0) for family in families)


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of the profile: calls and times per step.

    ``host_ms`` and ``device_ms`` are its own, the totals include what it calls. ``shapes`` are its inputs' shapes in a
    table grouped by them.
    """

    name: str
    calls: float
    host_ms: float
    device_ms: float
    host_total_ms: float = 0.0
    device_total_ms: float = 0.0
    shapes: str = ""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine can do at most, measured on it: the roof that a step is compared with.

    ``matmul_flops_per_s`` is by type: float32, tf32, bfloat16, float16. ``copy_bytes_per_s`` counts bytes read and
    written. ``host_to_device_bytes_per_s`` is for pageable and pinned memory. What does not apply, or found no room
    beside the model, is left out or None. ``measured_on`` is the date.
    """

    matmul_flops_per_s: dict[str, float]
    copy_bytes_per_s: float | None = None
    host_to_device_bytes_per_s: dict[str, float] = field(default_factory=dict)
    call_overhead_s: float | None = None
    measured_on: str = ""


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """What several clocks say of the same step, ms.

    ``naive_ms`` is a host clock around a step without any synchronisation, ``synchronized_ms`` one that waits for the
    device after each step, ``events_ms`` the device's own events, ``block_ms`` the headline: back-to-back steps with
    one synchronisation at the end. ``events_ms`` is None on the CPU.
    """

    naive_ms: float
    synchronized_ms: float
    block_ms: float
    events_ms: float | None = None


@dataclass(frozen=True, slots=True)
class HabitRow:
    """One way of a habit, measured beside the others in the instrumented pass.

    ``habit`` is the recipe's id, ``way`` one of its values. ``phase_ms`` is the part of the step that the habit decides
    (clearing the gradients), ``step_ms`` the whole step in this way: of training, or of validation for
    ``eval_no_grad``. ``memory_bytes`` is what the step needs at its peak above what was allocated before it. None is
    what was not measured.
    """

    habit: str
    way: str
    phase_ms: float | None = None
    step_ms: float | None = None
    memory_bytes: int | None = None

    @property
    def share(self) -> float | None:
        """The share of the step that the habit's phase takes, 0 to 1."""
        return self.phase_ms / self.step_ms if self.phase_ms is not None and self.step_ms else None


@dataclass(frozen=True, slots=True)
class SyncPlace:
    """A line of the step that makes the host wait for the device.

    ``text`` is the line as it stands in the file; where no line of Python is to blame, ``file`` is empty and ``text``
    says what waits. ``blocked_ms`` is how long the host stands there in a step; None where that cannot be timed apart,
    as inside the backward pass.
    """

    file: str
    line: int
    text: str
    calls_per_step: float
    blocked_ms: float | None

    @property
    def place(self) -> str:
        """``file:line``, or what waits."""
        return f"{self.file}:{self.line}" if self.file else self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """The instrumented pass: ms per phase of a step, the top operators, and how far the step is from the roof.

    ``phases`` is measured with a synchronisation at each boundary, so its sum can exceed ``step_ms``;
    ``device_phases`` is the time of the kernels and copies that each launched, by the profiler. ``calls_per_step``
    counts operator calls, without those that operators make themselves, and ``call_overhead_s`` is what one costs on no
    data to speak of. ``by_shape`` is the operator table grouped by input shapes. ``tensor_core_share`` is the share of
    the kernels' time in those whose names say that they use tensor cores. ``host_to_device_bytes`` are copied to the
    device in each step, ``moved_bytes_per_step`` is what its operators read and write when each of their tensors is
    counted once. ``trace_path`` is a Chrome trace of the profiled steps, gzipped. ``habits`` prices ways of doing the
    same thing; ``sync_places`` is None where nobody looked (there is no device that the host could wait for).
    ``host_made_tensors`` are those that the model and the loss make on the host in a step and copy to the device.
    ``called`` names what a step's operators compute, as ``WorkloadFacts.families`` does for modules, and
    ``batched_product``.
    """

    step_ms: float
    phases: dict[str, float]
    operators: tuple[OperatorRow, ...] = ()
    device_busy_share: float | None = None
    kernels_per_step: float | None = None
    flops_per_step: int | None = None
    ceiling_flops_per_s: float | None = None
    ceiling_dtype: str | None = None
    copy_bytes_per_s: float | None = None
    calls_per_step: float | None = None
    call_overhead_s: float | None = None
    bottleneck: Bottleneck | None = None
    evidence: str = ""
    by_shape: tuple[OperatorRow, ...] = ()
    device_phases: dict[str, float] = field(default_factory=dict)
    tensor_core_share: float | None = None
    host_to_device_bytes: int | None = None
    moved_bytes_per_step: int | None = None
    ceilings: Ceilings | None = None
    clock: ClockCheck | None = None
    trace_path: str = ""
    habits: tuple[HabitRow, ...] = ()
    sync_places: tuple[SyncPlace, ...] | None = None
    host_made_tensors: int | None = None
    called: tuple[str, ...] = ()

    def share(self, *phases: str) -> float:
        """The share of the instrumented step that these phases take, 0 to 1."""
        total = sum(self.phases.values())
        return sum(self.phases.get(phase, 0.0) for phase in phases) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A habit that reading the user's source found.

    ``recipe`` is the id of the recipe that prices it, ``text`` the line as it stands in the file, ``what`` says what it
    does, and ``advice`` what to write instead. ``value`` is the one of the recipe's values, as text, that does what the
    line does; empty where the line lacks what a value would bring.
    """

    recipe: str
    file: str
    line: int
    text: str
    what: str
    advice: str
    value: str = ""

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a recipe may look at when it proposes candidates. The peaks are the baseline's."""

    hardware: Hardware
    workload: WorkloadFacts
    profile: Profile | None = None
    versions: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None

    def computes(self, *families: str) -> bool:
        """Whether a step computes one of these kinds of things: by a module of the model, or by calling a function."""
        called = self.profile.called if self.profile else ()
        return self.workload.has(*families) or any(family in called for family in families)

    @property
    def on_cuda(self) -> bool:
        """Whether the session measures on a CUDA device."""
        return self.workload.device_type == "cuda"

    def current(self, key: str, default: Value) -> Value:
        """The user's present value of a setting."""
        return self.workload.current.get(key, default)


# --- candidates and trials ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Skip:
    """Why a recipe proposes nothing, in words that a person can act on."""

    reason: str


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


def text_of(value: Value) -> str:
    """A setting's value as YAML spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What the user asked to measure: the target and the options that shape the workload."""

    target: str
    directory: str
    mode: Mode | None = None
    device: str = "auto"
    batch_size: int | None = None
    input_shape: tuple[int, ...] | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """What NVML said of the GPU while a trial was timed: the highest temperature, the median clock, the mean power.

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

    ``interactive`` makes the trial warm up and then wait for the parent's word before each block. ``seed`` fixes the
    model's weights and the batches, ``stream_seed`` the random streams of the steps (dropout). ``environment`` are
    variables that must be set before the interpreter starts: such a trial gets a fresh one. ``reference`` probes the
    numerics in a higher precision and measures nothing.
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
    inspect: bool = False
    profile: bool = False
    interactive: bool = False
    reference: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """Back-to-back steps timed together by the wall clock, synchronised only at the end."""

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
class TrialResult:
    """How a trial ended and what it measured; a trial that failed has an outcome, a reason and no blocks.

    ``event_step_ms`` holds the 5th, 50th and 95th percentile of single steps by the device's events.
    ``prepare_s`` is applying the settings; ``warmup_s`` is everything from the first step to the steady state;
    ``measuring_s`` is timing, and for the baseline profiling.
    ``losses`` are the first training losses. ``outputs`` are the sum and a fixed sample of the model's outputs, in
    training those of the first step. ``weights`` are the squared norm of the parameters before the first of these
    steps and after each; norms of another number of ``parameters`` are not compared.
    ``disturbed`` says what from outside made the timings unreliable; empty when nothing did. ``skipped_steps`` counts
    the updates that a gradient scaler skipped in the probe. ``energy_j_per_sample`` is what the whole GPU took while
    the blocks were timed, its idle draw and the host's pauses included.
    """

    outcome: Outcome
    reason: str = ""
    hint: str = ""
    details: str = ""
    batch_size: int | None = None
    blocks: tuple[Block, ...] = ()
    event_step_ms: tuple[float, float, float] | None = None
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
    energy_j_per_sample: float | None = None
    gpu: GpuReadings | None = None
    log_path: str = ""

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
    """Where the wall time of a session went, in seconds: ``warming_up_s`` holds first steps and compilation too."""

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
    the baseline differ about as much: then nothing speaks against the class that the recipe declares.
    """

    measured: Numerics
    declared: Numerics
    difference: float | None
    text: str
    from_reference: float | None = None
    baseline_from_reference: float | None = None
    as_baselines: bool = False

    @property
    def worse_than_declared(self) -> bool:
        """Whether the trial changed more than the recipe promises."""
        return self.decisive.severity > self.declared.severity

    @property
    def decisive(self) -> Numerics:
        """The class that decides what may be used without consent: as measured, unless the baseline varies as much."""
        return min(self.measured, self.declared, key=lambda n: n.severity) if self.as_baselines else self.measured


@dataclass(frozen=True, slots=True)
class Comparison:
    """A speed-up over the baseline, always the ratio of samples per second, with its 95 % interval."""

    speedup: float
    ci_low: float
    ci_high: float
    noise_floor: float
    paired: bool = False

    @property
    def verdict(self) -> Verdict:
        """Faster or slower only when the whole interval clears the noise floor."""
        if self.ci_low > 1 + self.noise_floor:
            return Verdict.FASTER
        if self.ci_high < 1 / (1 + self.noise_floor):
            return Verdict.SLOWER
        return Verdict.NO_DIFFERENCE


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A candidate with its result, compared with the baseline. ``settings`` is all that was applied.

    ``confirmed`` when it was measured again, in turn with the baseline, because it lay within reach of the noise.
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
        """The candidate's verdict."""
        if self.result.outcome is Outcome.SKIPPED:
            return Verdict.SKIPPED
        return self.comparison.verdict if self.comparison else Verdict.FAILED


@dataclass(frozen=True, slots=True)
class StackRecord:
    """Several settings applied together, measured against the baseline. ``confirmed`` when alternately, A B B A.

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
        """Whether these settings are still to be measured together: the person rejected others of a stack."""
        return self.result.outcome is Outcome.SKIPPED

    @property
    def verdict(self) -> Verdict:
        """What measuring the settings together said; skipped while that is still to come."""
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

    ``noise_floor``, ``memory_floor`` and ``energy_floor`` are the relative differences in speed, in peak memory and in
    energy that identical runs showed; the last two are 0 where there was one run only.
    """

    result: TrialResult
    step_ms: float
    samples_per_s: float
    noise_floor: float
    cpu_step_ms: float | None = None
    memory_floor: float = 0.0
    energy_floor: float = 0.0


# --- what a trial process sends to its parent -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The child runs; ``startup_s`` passed since the parent asked for it and before any user code."""

    startup_s: float


@dataclass(frozen=True, slots=True)
class Activity:
    """What the trial is doing now: loading, preparing, compiling, warming up, measuring, profiling."""

    text: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """The workload's facts and the versions of what it runs on."""

    workload: WorkloadFacts
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Profiled:
    """The instrumented pass is done."""

    profile: Profile


@dataclass(frozen=True, slots=True)
class Ready:
    """An interactive trial has warmed up and waits for :class:`MeasureBlock`."""


@dataclass(frozen=True, slots=True)
class BlockDone:
    """A block has been timed."""

    block: Block


@dataclass(frozen=True, slots=True)
class TargetFailure:
    """The target could not be loaded, or cannot be measured: the user's to mend."""

    message: str
    hint: str
    details: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The trial's last message."""

    result: TrialResult


@dataclass(frozen=True, slots=True)
class BuilderReady:
    """The builder has built the target. ``problem``: why no trial can be forked from it; empty when they can."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class Forked:
    """The builder has forked a trial."""

    pid: int


@dataclass(frozen=True, slots=True)
class ForkEnded:
    """The trial that the builder forked is over; a negative exit code is the signal that ended it."""

    exitcode: int | None


TrialMessage = Started | Activity | Inspected | Profiled | Ready | BlockDone | TargetFailure | Finished


@dataclass(frozen=True, slots=True)
class MeasureBlock:
    """Parent to child: time one block of about this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Parent to child: finish and report."""


TrialCommand = MeasureBlock | Stop


# --- the result of a session ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A ranked candidate: at most one value per recipe, the best. ``in_stack`` when the final stack has it."""

    rank: int
    record: TrialRecord
    title: str
    why: str
    needs_consent: bool
    in_stack: bool
