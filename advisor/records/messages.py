"""The messages of trial processes and builders to their parent, and its requests."""

from dataclasses import dataclass, field

from advisor.records.trials import Block, TrialResult
from advisor.records.workload import Profile, WorkloadFacts

# Activities that more than one module names: in the first two a trial may compile, in the others it is timed.
FIRST_STEPS, COMPILING = "first steps", "compiling"
MEASURING, PLAIN_LOOP = "measuring", "timing a plain loop"


@dataclass(frozen=True, slots=True)
class Activity:
    """The present activity of a trial: loading, preparing, compiling, warming up, measuring, profiling."""

    text: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """The workload's facts, the versions of its libraries, and fingerprints of the user's modules by path."""

    workload: WorkloadFacts
    versions: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """An interactive trial has warmed up and waits for a :data:`TrialCommand`."""


@dataclass(frozen=True, slots=True)
class BuilderReady:
    """The builder has built the target. ``problem``: why no trial can be forked from it; empty when they can."""

    problem: str = ""
    modules: tuple[str, ...] = ()  # of libraries that building imported, where there is a problem
    environment: dict[str, str] = field(default_factory=dict)  # that building set, as these modules may read it


@dataclass(frozen=True, slots=True)
class Forked:
    """The builder has forked a trial."""

    pid: int


@dataclass(frozen=True, slots=True)
class ForkEnded:
    """A trial that the builder forked is over; a negative exit code is the signal that ended it."""

    exitcode: int | None


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A rank's first message to the process that launched it."""

    rank: int
    pid: int


# A profile comes after the instrumented pass, a block once it is timed; the result is the trial's last message.
TrialMessage = Activity | Inspected | Profile | Ready | Block | TrialResult

# From the parent to an interactive trial: the seconds of a block to time, or None to finish and report.
TrialCommand = float | None
