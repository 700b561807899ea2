"""The facts of a workload: its parts, the profile of its time, and the findings in its source."""

from dataclasses import dataclass, field

from advisor.records.hardware import Hardware
from advisor.records.kinds import Bottleneck, Mode, Value

# The first compute capability whose tensor cores support a type (tf32 is their form of float32). CUDA C++ Programming
# Guide, "Compute Capabilities".
TENSOR_CORES_SINCE = {"float16": (7, 0), "bfloat16": (8, 0), "tf32": (8, 0), "float8": (8, 9)}
# The reason that a loader of an iterable dataset is tried with at most one worker, if the user gave it no more.
ONE_WORKER = "each worker yields all samples unless the dataset shards them: then give the loader two workers yourself"


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A DataLoader as the user built it. A problem is a sentence; it is empty if there is none."""

    batch_size: int | None
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    length: int | None  # in batches; None for an iterable dataset
    iterable_dataset: bool
    custom_batch_sampler: bool
    movable_transforms: tuple[str, ...] = ()  # the dataset's last transforms that could run on the device, in batches
    copy_problem: str = ""  # the reason that the loader cannot be rebuilt with other options
    workers_problem: str = ""  # the reason that the loader cannot have workers
    on_device_problem: str = "it is not known whether its samples can be kept on the device"
    longest: int = 0  # the greatest length in the first batches, if they show the values that pad their samples
    padding_problem: str = ""  # the reason that batches cannot be padded further
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
    made_steps: bool = False  # the optimizer already has state (that of a watched script, for example)

    @property
    def full_name(self) -> str:
        """The class's name, with a remark if it is not PyTorch's own."""
        return self.name if self.builtin else f"{self.name} of another package"


@dataclass(frozen=True, slots=True)
class Place:
    """A call or statements in the user's code that settings change. Lines count from 1, columns from 0."""

    kind: str  # the kind of place (a loop, a model, a loader call): see advisor/workloads/places.py
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    name: str = ""  # the expression of the object in this place; for a step, of the model and its optimizers
    takes: tuple[str, ...] = ()  # the names that the statements read and other statements of the round set
    gives: tuple[str, ...] = ()  # the names that the statements set and the function reads later
    problem: str = ""  # the reason that the statements cannot become a function
    behind: tuple[int, ...] = ()  # the lines of those statements that can be moved after the others


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
    families: dict[str, int]  # the number of modules by family: a name of _FAMILIES in advisor/trial/inspection.py
    batch_size: int | None
    batch_text: str
    data_kind: str
    loss: str
    optimizer: OptimizerFacts | None
    loader: LoaderFacts | None
    threads: int
    current: dict[str, Value] = field(default_factory=dict)  # the user's present value of every known setting
    notes: tuple[str, ...] = ()
    linear_shapes: tuple[tuple[int, int, int], ...] = ()  # linear layers: inputs, outputs and count of each size
    repeated_blocks: tuple[tuple[str, int], ...] = ()  # class and count
    block_shapes: int = 0  # how many different shapes the blocks for regional compilation have
    parameter_shapes: int = 0  # how many different shapes the parameters have
    varying_shapes: bool = False  # the first batches differ in shape
    empty_masks: int = 0  # how many attention masks mask nothing in any of the first batches
    clip_norm: float | None = None  # the norm to which the user clips gradients; None without clipping
    biased_conv_norm_pairs: int = 0  # how many convolutions have a bias that a norm cancels
    conv_norm_pairs: int = 0  # how many batch norms can be folded (counted in inference only)
    paddable_outputs: tuple[tuple[int, int, int], ...] = ()  # a multiple, the layers to pad to it, the widest outputs
    models: int = 1  # the number of models in the step
    large_head: int = 0  # the outputs of the last layer, if it is a linear layer for a large vocabulary
    own_step: bool = False  # the user wrote the step, so its inside is not known
    loss_form: str = ""  # a value of advisor.step.loss.LossForm; empty in sessions of earlier versions
    ranks: int = 1  # the number of torchrun's processes in which the user's script trains, each on a GPU
    spread_already: str = ""  # the part of the loop that the user spreads over processes or GPUs; empty if none
    torchscript: bool = False  # the model is a module of TorchScript
    resizing_problem: str = ""  # the reason that a batch without a loader cannot be resized
    generated_tokens: int | None = None  # tokens that the step generates a sample; 0: unknown; None: it generates none
    casts_inside: str = "none"  # the type of autocast inside the user's own step; none if off or unknown
    trainer: str = ""  # the library whose trainer runs the loop, transformers or lightning; else empty
    capture_problem: str = ""  # the reason that no CUDA graph can hold the step, if known before a trial
    places: tuple[Place, ...] = ()  # the places in the user's files where settings can be written

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
        """The reason that the step, or the changed script, cannot use a CUDA graph; empty if it can."""
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
    """One operator of the profile: its calls and its own times (without operators it calls) in a step."""

    name: str
    calls: float
    host_ms: float
    device_ms: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured peak rates of the machine. A rate is None if it does not apply or needs more memory than was free."""

    matmul_flops_per_s: dict[str, float]  # by type: float32, tf32, bfloat16, float16
    copy_bytes_per_s: float | None = None  # bytes read and written
    call_overhead_s: float | None = None
    measured_on: str = ""  # the date of the measurement


@dataclass(frozen=True, slots=True)
class HabitRow:
    """One way to do a thing that can be done in several ways, as measured in the instrumented pass."""

    habit: str  # the recipe's id
    way: str  # one of the recipe's values
    step_ms: float | None = None  # the step time in this way (for eval_no_grad, of a validation step)
    memory_bytes: int | None = None  # the step's peak above the memory allocated before it; None if not measured


@dataclass(frozen=True, slots=True)
class SyncPlace:
    """A line of the step that makes the host wait for the device."""

    file: str  # empty if no line of Python causes the wait
    line: int
    text: str  # the line as in the file, or the name of the waiting operator
    calls_per_step: float
    blocked_ms: float | None  # how long the host waits there in a step; None if unknown (inside the backward pass)

    @property
    def place(self) -> str:
        """``file:line``, or the name of the waiting operator."""
        return f"{self.file}:{self.line}" if self.file else self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of the instrumented pass: ms per phase of a step, the top operators, and the share of peak rates.

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
    calls_per_step: float | None = None  # calls of operators, without calls by other operators
    call_overhead_s: float | None = None  # the time of one call of an operator on a tiny tensor
    bottleneck: Bottleneck | None = None
    evidence: str = ""
    host_to_device_bytes: int | None = None  # bytes copied in each step
    moved_bytes_per_step: int | None = None  # bytes read and written; each tensor of an operator counts once
    ceilings: Ceilings | None = None
    trace_path: str = ""  # a Chrome trace of the profiled steps, gzipped
    habits: tuple[HabitRow, ...] = ()  # several ways to do the same thing, each measured
    sync_places: tuple[SyncPlace, ...] | None = None  # None if they were not looked for (on the CPU)
    host_made_tensors: int | None = None  # tensors that model and loss make on the host in a step, and copy
    called: tuple[str, ...] = ()  # what the operators compute: names of WorkloadFacts.families, or batched_product
    phases_alone: bool = False  # only the phases were timed so far; the pass itself comes later

    @property
    def kind_of_step(self) -> str:
        """The bottleneck in words; ``not clear`` if none was found, empty if it was not looked for."""
        return self.bottleneck.kind_of_step if self.bottleneck else "not clear" if self.evidence else ""

    def share(self, *phases: str) -> float:
        """The share of the instrumented step that these phases take, 0 to 1."""
        total = sum(self.phases.values())
        return sum(self.phases.get(phase, 0.0) for phase in phases) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A habit that costs time, found by reading the user's source."""

    recipe: str  # the id of the recipe that measures its cost, or the habit's name if no recipe does
    file: str
    line: int
    text: str  # the line as in the file
    what: str  # what the line does
    advice: str  # what to write instead
    value: str = ""  # the recipe's value, as text, that does the same as the line; empty if the line lacks something

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a recipe may use when it proposes candidates. The peaks are the baseline's."""

    hardware: Hardware
    workload: WorkloadFacts
    profile: Profile | None = None
    versions: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    sources: dict[str, str] = field(default_factory=dict)  # fingerprints of the user's own modules, by path
    gpus: int = 1  # the number of GPUs that the present settings are measured on
    operations: int = 0  # the number of operations with gradients in the forward pass; 0 if not known

    def computes(self, *families: str) -> bool:
        """Whether a step computes one of these families, by a module of the model or by calling a function."""
        called = self.profile.called if self.profile else ()
        return self.workload.has(*families) or any(family in called for family in families)

    @property
    def instrumented(self) -> Profile | None:
        """The profile after the instrumented pass; None before it, even if the phases are known."""
        return None if self.profile is None or self.profile.phases_alone else self.profile

    @property
    def on_cuda(self) -> bool:
        """Whether the session measures on a CUDA device."""
        return self.workload.on_cuda

    def current(self, key: str, default: Value) -> Value:
        """The user's present value of a setting."""
        return self.workload.current.get(key, default)
