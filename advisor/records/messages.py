"""The messages of trial processes and builders to their parent, and the parent's commands to a trial."""

from dataclasses import dataclass, field

from advisor.records.trials import Block, TrialResult
from advisor.records.workload import Profile, WorkloadFacts

# Activities that several modules name. During the first two a trial may compile; during the others it is timed.
FIRST_STEPS, COMPILING = "first steps", "compiling"
MEASURING, PLAIN_LOOP = "measuring", "timing a plain loop"


@dataclass(frozen=True, slots=True)
class Activity:
    """The present activity of a trial: loading, preparing, compiling, warming up, measuring, profiling."""

    text: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """The workload's facts, the versions of its libraries, and a fingerprint of each module of the user, by path."""

    workload: WorkloadFacts
    versions: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """An interactive trial has warmed up and waits for a :data:`TrialCommand`."""


@dataclass(frozen=True, slots=True)
class BuilderReady:
    """The builder has built the target. ``problem`` is the reason that no trial can be forked from it, if any."""

    problem: str = ""
    modules: tuple[str, ...] = ()  # if there is a problem, the library modules that building imported
    environment: dict[str, str] = field(default_factory=dict)  # variables that building set: modules may read them


@dataclass(frozen=True, slots=True)
class Forked:
    """The builder has forked a trial."""

    pid: int


@dataclass(frozen=True, slots=True)
class ForkEnded:
    """A trial that the builder forked has ended; a negative exit code means the signal that ended it."""

    exitcode: int | None


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A rank's first message to the process that launched it."""

    rank: int
    pid: int


# A Block is sent when it has been timed, a Profile after the instrumented pass. The TrialResult is the last message.
TrialMessage = Activity | Inspected | Profile | Ready | Block | TrialResult

# From the parent to an interactive trial: the seconds of a block to time, or None to finish and report.
TrialCommand = float | None
