"""The facts of a workload: its parts, the profile of its time, and the findings in its source."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.records.hardware import Hardware
from advisor.records.kinds import Bottleneck, Mode, Value

# The compute capability from which NVIDIA's tensor cores take a type. CUDA C++ Programming Guide, "Compute
# Capabilities"; tf32 is the form in which they take float32.
NVIDIA_SINCE: Mapping[str, tuple[int, int]] = {"float16": (7, 0), "bfloat16": (8, 0), "tf32": (8, 0), "float8": (8, 9)}
# The same for AMD's, by the beginning of the architecture's name. ROCm documentation, "Data types and precision
# support"; PyTorch maps its float8 and tf32 settings to them on the MI300 only. Untested.
AMD_TYPES: Mapping[str, tuple[str, ...]] = {
    "gfx908": ("float16", "bfloat16"),
    "gfx90a": ("float16", "bfloat16"),
    "gfx94": ("float16", "bfloat16", "tf32", "float8"),
    "gfx11": ("float16", "bfloat16"),
    "gfx12": ("float16", "bfloat16"),
}


def nvidia_types(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """The types of an NVIDIA GPU's tensor cores."""
    return tuple(name for name, since in NVIDIA_SINCE.items() if (capability or (0, 0)) >= since)


def amd_types(architecture: str) -> tuple[str, ...]:
    """The types of an AMD GPU's matrix cores, by the name of its architecture such as ``gfx942:sramecc+``."""
    return next((types for prefix, types in AMD_TYPES.items() if architecture.startswith(prefix)), ())


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A DataLoader as the user built it. ``length`` is in batches, None for an iterable dataset.

    Problems are sentences, empty for none. ``copy_problem`` says why the loader cannot be made anew with other options,
    ``workers_problem`` why it gets no workers, ``batched_reads_problem`` why its samples are read one by one.
    ``movable_transforms`` are the transforms at the end of the dataset's that could run on whole batches on the device.
    ``divides_samples``: an iterable dataset asks which worker it is in (``get_worker_info``). ``hears_of_epochs``: the
    dataset has ``set_epoch``.
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
    movable_transforms: tuple[str, ...] = ()
    copy_problem: str = ""
    divides_samples: bool = False
    hears_of_epochs: bool = False
    workers_problem: str = ""
    batched_reads_problem: str = "it is not known whether its batches can be read at once"


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer: its class and the implementations that its class offers.

    ``builtin``: a class of torch.optim. ``made_steps``: it has state already, as that of a watched script has.
    """

    name: str
    implementation: str
    implementations: tuple[str, ...]
    capturable: bool
    tensors: int
    state_bytes: int = 0
    builtin: bool = True
    made_steps: bool = False

    @property
    def full_name(self) -> str:
        """The class's name, which says so where it is not PyTorch's own."""
        return self.name if self.builtin else f"{self.name} of another package"


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """The facts found by inspecting the loaded workload in a trial process.

    ``families`` counts modules by kind: conv1d, conv2d, conv3d, linear, embedding, batch_norm, layer_norm, dropout,
    attention and recurrent. ``current`` holds the value of every known setting as the user has it.
    ``linear_shapes`` has inputs, outputs and count
    for each size of linear layer. ``repeated_blocks`` has class and count; ``block_shapes`` counts the shapes of those
    to compile by themselves, ``parameter_shapes`` those of all parameters; ``varying_shapes`` is whether the first
    batches differ in shape.
    ``clip_norm`` is the norm that the user clips gradients to, None without clipping.
    ``biased_conv_norm_pairs`` counts convolutions whose bias a norm cancels, ``conv_norm_pairs`` batch norms that could
    be folded (looked for in inference only).
    ``paddable_outputs`` has, for a multiple, how many layers could be padded to it, and the outputs of the widest.
    ``capability`` is NVIDIA's compute capability, None on other devices. ``matrix_types`` has the number types of the
    GPU's matrix units; None in sessions recorded before, whose GPUs are NVIDIA's.
    ``own_step``: the user wrote the step, and what happens inside it is not known. ``loss_form``: the form of the loss
    (``advisor.step.loss.LossForm``); empty in sessions recorded before. ``spread_already``: what of the loop is spread
    over processes or GPUs by the user; empty where nothing is. ``resizing_problem``: why a batch that is no loader's
    cannot be resized.
    ``generated_tokens``: the tokens that the step makes of a sample, 0 where it generates and the number is not known;
    None where it does not. ``torchscript``: the model is a module of TorchScript. ``casts_inside``: the type that
    autocast casts to inside a step of the user's own, ``none`` where it is off or not known. ``trainer``: the library
    whose trainer runs the loop, ``transformers`` or ``lightning``; empty for a loop of the user's own.
    ``capture_problem``: why no CUDA graph can hold the step, where that is known before it is tried.
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
    block_shapes: int = 0
    parameter_shapes: int = 0
    varying_shapes: bool = False
    clip_norm: float | None = None
    biased_conv_norm_pairs: int = 0
    conv_norm_pairs: int = 0
    paddable_outputs: tuple[tuple[int, int, int], ...] = ()
    matrix_types: tuple[str, ...] | None = None
    own_step: bool = False
    loss_form: str = ""
    spread_already: str = ""
    torchscript: bool = False
    resizing_problem: str = ""
    generated_tokens: int | None = None
    casts_inside: str = "none"
    trainer: str = ""
    capture_problem: str = ""

    def multiplies_in(self, number_type: str) -> bool:
        """Whether the GPU has matrix units for a type: ``float16``, ``bfloat16``, ``tf32`` or ``float8``."""
        types = nvidia_types(self.capability) if self.matrix_types is None else self.matrix_types
        return number_type in types

    @property
    def device_type(self) -> str:
        """The kind of the device in PyTorch's words: one of ``DEVICES``."""
        return self.device.partition(":")[0]

    @property
    def on_cuda(self) -> bool:
        """Whether the loop runs on a CUDA device."""
        return self.device_type == "cuda"

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
    """The machine's peak rates, measured on it: the roof that a step is compared with.

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
    """The readings of several clocks for the same step, ms.

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
        """``file:line``, or the name of the waiting operator."""
        return f"{self.file}:{self.line}" if self.file else self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """The instrumented pass: ms per phase of a step, the top operators, and the step's distance from the roof.

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
    ``batched_product``. ``phases_alone``: nothing but the phases was timed, before the pass itself.
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
    phases_alone: bool = False

    @property
    def kind_of_step(self) -> str:
        """The bottleneck in words; ``not clear`` where none was found, and empty where none was looked for."""
        return self.bottleneck.kind_of_step if self.bottleneck else "not clear" if self.evidence else ""

    def share(self, *phases: str) -> float:
        """The share of the instrumented step that these phases take, 0 to 1."""
        total = sum(self.phases.values())
        return sum(self.phases.get(phase, 0.0) for phase in phases) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A habit that reading the user's source found.

    ``recipe`` is the id of the recipe that prices it, or the habit's own name where no trial does. ``text`` is the line
    as it stands in the file, ``what`` says what it does, and ``advice`` what to write instead. ``value`` is the one of
    the recipe's values, as text, that does what the line does; empty where the line lacks what a value would bring.
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
    """All that a recipe may look at when it proposes candidates. The peaks are the baseline's.

    ``sources`` has the fingerprints of the user's own modules that the baseline imported, by path. ``gpus`` is how many
    the settings at hand are measured on. ``gradients_at_times`` counts the trained parameters that had a gradient after
    some of the first steps and none after others. ``operations`` are those of the model's forward pass that gradients
    flow through, 0 where they are not known.
    """

    hardware: Hardware
    workload: WorkloadFacts
    profile: Profile | None = None
    versions: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    sources: dict[str, str] = field(default_factory=dict)
    gpus: int = 1
    gradients_at_times: int = 0
    operations: int = 0

    def computes(self, *families: str) -> bool:
        """Whether a step computes one of these kinds of things: by a module of the model, or by calling a function."""
        called = self.profile.called if self.profile else ()
        return self.workload.has(*families) or any(family in called for family in families)

    @property
    def instrumented(self) -> Profile | None:
        """The profile, once the instrumented pass was made; None while its phases alone are known."""
        return None if self.profile is None or self.profile.phases_alone else self.profile

    @property
    def on_cuda(self) -> bool:
        """Whether the session measures on a CUDA device."""
        return self.workload.on_cuda

    def current(self, key: str, default: Value) -> Value:
        """The user's present value of a setting."""
        return self.workload.current.get(key, default)
