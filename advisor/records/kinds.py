"""The type of a setting's value, and enumerations: modes, outcomes, verdicts, phases and others."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

Value = bool | int | float | str
Values = Mapping[str, Value]  # by the keys of the settings
# PyTorch's names of the device types that --device accepts, each with the torch.distributed backend for several
# devices; `machine/device.py` has a class for each type.
COLLECTIVES = {"cpu": "gloo", "cuda": "nccl"}
DEVICES = tuple(COLLECTIVES)


class Mode(StrEnum):
    """The kind of the tuned loop."""

    TRAIN = "train"
    INFER = "infer"


class Numerics(StrEnum):
    """How much a setting changes the numerical results."""

    EXACT = "exact"
    CLOSE = "close"
    CHANGED = "changed"

    @property
    def severity(self) -> int:
        """0 for exact, 1 for close, 2 for changed."""
        return ("exact", "close", "changed").index(self)

    def exceeds(self, other: Numerics) -> bool:
        """Whether this class changes more than the other."""
        return self.severity > other.severity

    @classmethod
    def worst(cls, *classes: Numerics) -> Numerics:
        """The class that changes most; exact if no class is given."""
        return max(classes, key=lambda numerics: numerics.severity, default=cls.EXACT)


class Outcome(StrEnum):
    """The outcome of a trial."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    NON_FINITE = "non_finite"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Cause(StrEnum):
    """The cause of a failed trial, by the type of its exception or, if the type does not tell, by PyTorch's message."""

    CAPTURE = "capture"  # recording the step in a CUDA graph
    CAPTURE_OF_LOSS = "capture of the loss"
    CAPTURE_OF_BACKWARD = "capture of the backward pass"
    HOST_COPY = "host copy"  # the step copies a tensor from the host to the GPU, which no graph can record
    COMPILER = "compiler"
    DOUBLE_BACKWARD = "double backward"  # a second derivative, which compiled code does not have
    LAYOUT = "layout"  # an operation, or compiled code, got a tensor of another memory layout
    OPERATION = "operation"  # an operation refused its arguments (it may not support half precision)


class TrialKind(StrEnum):
    """The tasks of a trial process."""

    CANDIDATE = "candidate"  # apply the settings and time the steps
    BASELINE = "baseline"  # like a candidate, but describe the workload first; if a loader feeds it, time the phases
    PROFILE = "profile"  # like the baseline; after the timing comes the whole instrumented pass
    REFERENCE = "reference"  # run the first steps in a higher precision; time nothing
    COMPILE = "compile"  # run only the first steps, to fill the compiler's cache; time nothing
    TURNS = "turns"  # warm up, then time a block whenever the parent asks for one
    VERIFY = "verify"  # time a plain loop, with or without an exported file
    SCORE = "score"  # train some steps (if the loop trains), then score the model with the user's function
    PACKAGE = "package"  # compile the model under the settings to one file; time nothing

    @property
    def inspects(self) -> bool:
        """Whether the trial describes the workload."""
        return self is TrialKind.BASELINE


class Verdict(StrEnum):
    """The verdict on a candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # the whole interval lies within 3 % of 1
    UNCLEAR = "unclear"  # the interval is too wide for a verdict
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_change(self) -> bool:
        """Whether the verdict is faster or slower."""
        return self in (Verdict.FASTER, Verdict.SLOWER)


class Bottleneck(StrEnum):
    """The resource that limits a step."""

    INPUT = "input"
    LAUNCH = "host launches"
    MEMORY = "memory bandwidth"
    COMPUTE = "compute"
    COPY = "host-to-device copies"
    COMMUNICATION = "communication"

    @property
    def kind_of_step(self) -> str:
        """The name of a step with this bottleneck: ``compute-heavy``."""
        return "compute-heavy" if self is Bottleneck.COMPUTE else f"{self.name.lower()}-bound"


class Phase(StrEnum):
    """The parts of a step, in the order in which a step runs them."""

    DATA_WAIT = "data wait"
    HOST_TO_DEVICE = "host-to-device"
    ZERO_GRAD = "zero_grad"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OWN_STEP = "your own step"


class Objective(StrEnum):
    """The quantity that the ranking and the combination optimise."""

    THROUGHPUT = "throughput"
    MEMORY = "memory"
    LATENCY = "latency"
    ENERGY = "energy"


class ConfigKind(StrEnum):
    """The program that a config is for. Each program has its own names for settings."""

    HUGGINGFACE = "huggingface"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    TIMM = "timm"
    ULTRALYTICS = "ultralytics"
    HYDRA = "hydra"
    PLAIN = "plain"


def text_of(value: Value) -> str:
    """A setting's value as YAML spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
