"""Values of settings, and the kinds of things that are told apart."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

Value = bool | int | float | str
Values = Mapping[str, Value]  # by the keys of the settings
# The kinds of devices that --device names, in PyTorch's words, each with torch.distributed's backend for several of
# them; `machine/device.py` has a class for each kind.
COLLECTIVES = {"cpu": "gloo", "cuda": "nccl"}
DEVICES = tuple(COLLECTIVES)


class Mode(StrEnum):
    """The kind of loop that is tuned."""

    TRAIN = "train"
    INFER = "infer"


class Numerics(StrEnum):
    """The class of a setting's effect on the numerics."""

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
        """The class that changes most; exact where there is none."""
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
    """The cause of a failed trial: by the type of its exception, or by PyTorch's message where no type says it."""

    CAPTURE = "capture"  # recording the step in a CUDA graph
    CAPTURE_OF_LOSS = "capture of the loss"
    CAPTURE_OF_BACKWARD = "capture of the backward pass"
    HOST_COPY = "host copy"  # a tensor that the step makes on the host and copies to the GPU, which no graph can record
    COMPILER = "compiler"
    DOUBLE_BACKWARD = "double backward"  # a second derivative, which compiled code does not have
    LAYOUT = "layout"  # an operation, or compiled code, that got a tensor of another memory layout
    OPERATION = "operation"  # an operation that refused its arguments, as one does that knows no half precision


class TrialKind(StrEnum):
    """The tasks of a trial process."""

    CANDIDATE = "candidate"  # apply the settings and time the steps
    BASELINE = "baseline"  # as a candidate, but first describe the workload; where a loader feeds it, time the phases
    PROFILE = "profile"  # as the baseline; after the timing comes the whole instrumented pass
    REFERENCE = "reference"  # run the first steps in a higher precision; nothing is timed
    COMPILE = "compile"  # end after the first steps, which leave their code in the compiler's cache; nothing is timed
    TURNS = "turns"  # warm up, then time one block each time that the parent asks for one
    VERIFY = "verify"  # time a plain loop, with an exported file applied to it or without
    SCORE = "score"  # train some steps where the loop trains, and have the user's function score the model
    PACKAGE = "package"  # compile the model under the settings to one file; nothing is timed

    @property
    def inspects(self) -> bool:
        """Whether the trial describes the workload."""
        return self is TrialKind.BASELINE


class Verdict(StrEnum):
    """The verdict on a candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # the whole interval lies within 3 % of 1
    UNCLEAR = "unclear"  # the interval does not tell
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_change(self) -> bool:
        """Whether it says that something became faster or slower."""
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
    """The quantity that the ranking and the stack optimise."""

    THROUGHPUT = "throughput"
    MEMORY = "memory"
    LATENCY = "latency"
    ENERGY = "energy"


class ConfigKind(StrEnum):
    """The program that a config is for: each has its own words for a setting."""

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
