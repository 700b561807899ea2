"""The messages of trial processes and builders to their parent, and its requests."""

from dataclasses import dataclass, field

from advisor.records.trials import Block, TrialResult
from advisor.records.workload import Profile, WorkloadFacts


@dataclass(frozen=True, slots=True)
class Started:
    """The child runs; ``startup_s`` passed since the parent asked for it and before any user code."""

    startup_s: float


# Activities that others know by name: the first comes when the trial has come to the device, the others warm it up.
APPLYING, FIRST_STEPS, COMPILING = "applying the settings", "first steps", "compiling"


@dataclass(frozen=True, slots=True)
class Activity:
    """The present activity of a trial: loading, preparing, compiling, warming up, measuring, profiling."""

    text: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """The workload's facts, the versions of what it runs on, and fingerprints of the user's own modules by path."""

    workload: WorkloadFacts
    versions: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profiled:
    """The instrumented pass is done."""

    profile: Profile


@dataclass(frozen=True, slots=True)
class Compiled:
    """A trial that pauses has run its first steps and waits for :class:`GoOn`; it has timed nothing so far."""


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
    """The builder has built the target, or imported what it needs.

    ``problem``: why no trial can be forked from it; empty when they can. ``imported``: the modules of installed
    packages that building imported, where no trial can be forked.
    """

    problem: str = ""
    imported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forked:
    """The builder has forked a trial."""

    pid: int


@dataclass(frozen=True, slots=True)
class ForkEnded:
    """The trial that the builder forked is over; a negative exit code is the signal that ended it."""

    exitcode: int | None


@dataclass(frozen=True, slots=True)
class ForkAhead:
    """To the builder: fork the next trial's process before its spec is known."""


TrialMessage = Started | Activity | Inspected | Profiled | Compiled | Ready | BlockDone | TargetFailure | Finished


@dataclass(frozen=True, slots=True)
class GoOn:
    """Parent to child: nothing runs beside the trial any more."""


@dataclass(frozen=True, slots=True)
class MeasureBlock:
    """Parent to child: time one block of about this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Parent to child: finish and report."""


TrialCommand = GoOn | MeasureBlock | Stop
