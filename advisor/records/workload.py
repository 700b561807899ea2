"""The facts of a workload: its parts, the profile of its time, and the findings in its source."""

from dataclasses import dataclass, field

from advisor.records.hardware import Hardware
from advisor.records.kinds import Bottleneck, Mode, Value

# The compute capability from which a GPU's tensor cores take a type. CUDA C++ Programming Guide, "Compute
# Capabilities"; tf32 is the form in which they take float32.
TENSOR_CORES_SINCE = {"float16": (7, 0), "bfloat16": (8, 0), "tf32": (8, 0), "float8": (8, 9)}
# Why an iterable dataset gets one worker at most, unless its owner gave it several.
ONE_WORKER = "each worker yields all samples unless the dataset shards them: then give the loader two workers yourself"


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A DataLoader as the user built it. Problems are sentences, empty for none."""

    batch_size: int | None
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    length: int | None  # in batches; None for an iterable dataset
    iterable_dataset: bool
    custom_batch_sampler: bool
    movable_transforms: tuple[str, ...] = ()  # the dataset's last ones, which could run on whole batches on the device
    copy_problem: str = ""  # why the loader cannot be made anew with other options
    workers_problem: str = ""  # why it gets no workers
    on_device_problem: str = "it is not known whether its samples can be kept on the device"
    longest: int = 0  # the greatest length of the first batches, where these show what fills the tails of their samples
    padding_problem: str = ""  # why they cannot be padded further
    decoding_problem: str = "it is not known how its image files are decoded"


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer: its class and the implementations that its class offers."""

    name: str
    implementation: str
    implementations: tuple[str, ...]
    capturable: bool
    tensors: int
    state_bytes: int = 0
    builtin: bool = True  # a class of torch.optim
    made_steps: bool = False  # it has state already, as that of a watched script has

    @property
    def full_name(self) -> str:
        """The class's name, with a remark if it is not PyTorch's own."""
        return self.name if self.builtin else f"{self.name} of another package"


@dataclass(frozen=True, slots=True)
class Place:
    """A call or some statements of the user's that settings concern. Lines count from 1, columns from 0."""

    kind: str  # what is there, such as a loop, a model or a loader call: advisor/workloads/places.py
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    name: str = ""  # the expression that holds the object in this place; of a step the model and its optimizers
    takes: tuple[str, ...] = ()  # the names that the statements get from the rest of their round
    gives: tuple[str, ...] = ()  # the names that they give to the rest of the function
    problem: str = ""  # why the statements cannot become a function
    behind: tuple[int, ...] = ()  # the lines of statements among these that may as well stand behind them


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """The facts found by inspecting the loaded workload in a trial process."""

    mode: Mode
    device: str
    device_name: str
    device_uuid: str | None
    capability: tuple[int, int] | None  # compute capability, None on other devices
    device_memory_bytes: int
    model: str
    parameters: int
    parameter_bytes: int
    parameter_tensors: int
    parameter_dtypes: tuple[str, ...]
    families: dict[str, int]  # modules by kind, a name of _FAMILIES in advisor/trial/inspection.py
    batch_size: int | None
    batch_text: str
    data_kind: str
    loss: str
    optimizer: OptimizerFacts | None
    loader: LoaderFacts | None
    threads: int
    current: dict[str, Value] = field(default_factory=dict)  # the value of every known setting as the user has it
    notes: tuple[str, ...] = ()
    linear_shapes: tuple[tuple[int, int, int], ...] = ()  # inputs, outputs and count of each size
    repeated_blocks: tuple[tuple[str, int], ...] = ()  # class and count
    block_shapes: int = 0  # the shapes of those to compile by themselves, a count
    parameter_shapes: int = 0  # those of all parameters, a count
    varying_shapes: bool = False  # the first batches differ in shape
    empty_masks: int = 0  # attention masks that mask nothing in any of the first batches, a count
    clip_norm: float | None = None  # the norm that the user clips gradients to, None without clipping
    biased_conv_norm_pairs: int = 0  # convolutions whose bias a norm cancels
    conv_norm_pairs: int = 0  # batch norms that could be folded (looked for in inference only)
    paddable_outputs: tuple[tuple[int, int, int], ...] = ()  # a multiple, the layers to pad to it, the widest outputs
    models: int = 1  # that the step works with
    large_head: int = 0  # outputs of the last layer, where it is a linear one for a large vocabulary
    own_step: bool = False  # the user wrote the step, and what happens inside it is not known
    loss_form: str = ""  # of advisor.step.loss.LossForm; empty in sessions recorded before
    ranks: int = 1  # processes of torchrun that the user's script trains in, each on a GPU
    spread_already: str = ""  # what of the loop the user spreads over processes or GPUs; empty for nothing
    torchscript: bool = False  # the model is a module of TorchScript
    resizing_problem: str = ""  # why a batch that is no loader's cannot be resized
    generated_tokens: int | None = None  # of a sample; 0 where it generates and nobody knows, None where it does not
    casts_inside: str = "none"  # what autocast casts to inside the user's own step; none where off or unknown
    trainer: str = ""  # the library whose trainer runs the loop, transformers or lightning; else empty
    capture_problem: str = ""  # why no CUDA graph can hold the step, where known before it is tried
    places: tuple[Place, ...] = ()  # of the user's files, where settings can be written

    def multiplies_in(self, number_type: str) -> bool:
        """Whether the GPU has matrix units for a type: ``float16``, ``bfloat16``, ``tf32`` or ``float8``."""
        return (self.capability or (0, 0)) >= TENSOR_CORES_SINCE[number_type]

    @property
    def device_type(self) -> str:
        """The kind of the device in PyTorch's words: one of ``DEVICES``."""
        return self.device.partition(":")[0]

    @property
    def on_cuda(self) -> bool:
        """Whether the loop runs on a CUDA device."""
        return self.device_type == "cuda"

    @property
    def graph_problem(self) -> str:
        """The reason that the step, or the changed script, cannot have a CUDA graph; empty if it can."""
        places = {kind: [one for one in self.places if one.kind == kind] for kind in ("loop", "forward", "step")}
        if self.capture_problem or not places["loop"]:
            return self.capture_problem
        problem = places["step"][0].problem if len(places["step"]) == 1 else "the step was not seen in one block"
        if len(places["forward"]) > 1:
            problem = "the loop has several forward passes"
        return problem and f"{problem}; tuning.own_step captures a function that does all of it"

    @property
    def takes_arguments_only(self) -> bool:
        """Whether a script's Trainer runs the loop, so that settings can only be written as its arguments."""
        return bool(self.trainer) and any(place.kind == "arguments" for place in self.places)

    def has(self, *families: str) -> bool:
        """Whether the model has a module of one of these families."""
        return any(self.families.get(family, 0) for family in families)


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of the profile: its calls and its own times in a step."""

    name: str
    calls: float
    host_ms: float
    device_ms: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured peak rates of the machine; those that do not apply, or need more memory than was free, are None."""

    matmul_flops_per_s: dict[str, float]  # by type: float32, tf32, bfloat16, float16
    copy_bytes_per_s: float | None = None  # bytes read and written
    call_overhead_s: float | None = None
    measured_on: str = ""  # the date


@dataclass(frozen=True, slots=True)
class HabitRow:
    """One way of doing the same thing, measured in the instrumented pass. Fields are None where not measured."""

    habit: str  # the recipe's id
    way: str  # one of its values
    step_ms: float | None = None  # the step in this way: of validation for eval_no_grad
    memory_bytes: int | None = None  # the step's peak above what was allocated before it


@dataclass(frozen=True, slots=True)
class SyncPlace:
    """A line of the step that makes the host wait for the device."""

    file: str  # empty where no line of Python is to blame
    line: int
    text: str  # the line as it stands in the file, or what waits
    calls_per_step: float
    blocked_ms: float | None  # how long the host stands there in a step; None as inside the backward pass

    @property
    def place(self) -> str:
        """``file:line``, or the name of the waiting operator."""
        return f"{self.file}:{self.line}" if self.file else self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """The instrumented pass: ms per phase of a step, the top operators, and the step's distance from the roof.

    ``phases`` is measured with a synchronisation at each boundary, so its sum can exceed ``step_ms``.
    """

    step_ms: float
    phases: dict[str, float]
    operators: tuple[OperatorRow, ...] = ()
    device_busy_share: float | None = None  # 0 to 1
    kernels_per_step: float | None = None
    flops_per_step: int | None = None
    ceiling_flops_per_s: float | None = None
    ceiling_dtype: str | None = None
    copy_bytes_per_s: float | None = None
    calls_per_step: float | None = None  # of operators, without those that operators make themselves
    call_overhead_s: float | None = None  # of one call on no data to speak of
    bottleneck: Bottleneck | None = None
    evidence: str = ""
    host_to_device_bytes: int | None = None  # copied in each step
    moved_bytes_per_step: int | None = None  # read and written, each tensor of an operator counted once
    ceilings: Ceilings | None = None
    trace_path: str = ""  # a Chrome trace of the profiled steps, gzipped
    habits: tuple[HabitRow, ...] = ()  # ways of doing the same thing, priced
    sync_places: tuple[SyncPlace, ...] | None = None  # None where nobody looked, as on the CPU
    host_made_tensors: int | None = None  # made on the host in a step by the model and the loss, and copied
    called: tuple[str, ...] = ()  # what operators compute, in the words of WorkloadFacts.families and batched_product
    phases_alone: bool = False  # nothing but the phases was timed, before the pass itself

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
    """A habit that reading the user's source found."""

    recipe: str  # the id of the one that prices it, or the name of a habit that none does
    file: str
    line: int
    text: str  # the line as it stands in the file
    what: str  # what the line does
    advice: str  # what to write instead
    value: str = ""  # the recipe's value, as text, that does what the line does; empty where the line lacks it

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
    sources: dict[str, str] = field(default_factory=dict)  # fingerprints of the user's own modules, by path
    gpus: int = 1  # how many the settings at hand are measured on
    operations: int = 0  # of the model's forward pass that gradients flow through, 0 where not known

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
