"""Events: the messages that a session posts as it goes. Frozen; posted from the session's thread but for decisions."""

from dataclasses import dataclass

import msgspec

from advisor import records
from advisor.experiment.control import Decision
from advisor.experiment.objective import Goal
from advisor.figures.formatting import printable_in


class Event:
    """One event of a session. Each kind below is frozen."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GoalSet(Event):
    """The session's goal: its first event. ``session_id`` is empty in older journals."""

    goal: Goal
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class HardwareFound(Event):
    """The machine has been inspected."""

    hardware: records.Hardware


@dataclass(frozen=True, slots=True)
class AllReduceMeasured(Event):
    """All-reduce has been measured between the ranks of a session over several GPUs."""

    sweep: records.AllReduceSweep


@dataclass(frozen=True, slots=True)
class SourceRead(Event):
    """The user's source has been read for habits. ``problems`` says which files could not be read, and why."""

    files: tuple[str, ...]
    findings: tuple[records.Finding, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageStarted(Event):
    """The session entered a stage: baseline, leap, instruments, search, confirmation, alone, done.

    The search goes back and forth between them, as what is expected to gain most comes next.
    """

    stage: str


@dataclass(frozen=True, slots=True)
class FactsFound(Event):
    """The workload has been loaded and inspected; again, with the profile, once the baseline has been profiled."""

    facts: records.Facts


@dataclass(frozen=True, slots=True)
class BaselineMeasured(Event):
    """The baseline, again whenever a repeat changed its figures."""

    baseline: records.BaselineRecord


@dataclass(frozen=True, slots=True)
class TrialsPlanned(Event):
    """The candidates in their order, and the reason for every other recipe.

    ``consent`` names the candidates that change what is computed: without the person's consent they are tried last.
    """

    candidates: tuple[records.Candidate, ...]
    skipped: dict[str, str]
    consent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialStarted(Event):
    """A trial process was asked for. ``name`` is a candidate's name, ``baseline``, or the stack's description.

    ``expected_s`` is what it is expected to take, in seconds; None where nothing is known yet.
    """

    name: str
    log_path: str
    expected_s: float | None = None


# Activity of the session before its first trial.
BUILDING = "building the model, once for all trials"


@dataclass(frozen=True, slots=True)
class TrialActivity(Event):
    """The present activity of the running trial."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class BlockTimed(Event):
    """A block of the running trial has been timed: the ms and samples of one step. Not all blocks are told of."""

    name: str
    step_ms: float
    samples: float


@dataclass(frozen=True, slots=True)
class TrialEnded(Event):
    """The trial process has ended: its outcome, and the time of one step in it. Its verdict comes with the records."""

    name: str
    outcome: records.Outcome
    reason: str = ""
    step_ms: float | None = None
    peak_reserved_bytes: int | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunMeasured(Event):
    """A trial has ended that counts as a run of these settings, also when it failed. A resumed session reads these.

    ``turns_of`` are the settings in whose turns with the baseline it ran, as a process of its own; None for others.
    """

    settings: dict[str, records.Value]
    result: records.TrialResult
    turns_of: dict[str, records.Value] | None = None


@dataclass(frozen=True, slots=True)
class TurnsMeasured(Event):
    """Blocks of these settings, ``new``, and of the baseline, ``old``, have been timed in turn on the CPU."""

    settings: dict[str, records.Value]
    new: tuple[records.Block, ...]
    old: tuple[records.Block, ...]
    result: records.TrialResult


@dataclass(frozen=True, slots=True)
class TrialMeasured(Event):
    """A candidate was measured, failed or was skipped. Posted again when more runs change its figures."""

    record: records.TrialRecord


@dataclass(frozen=True, slots=True)
class CombinationMeasured(Event):
    """Several settings were measured together on the way to the stack, and could be it by memory and numerics."""

    point: records.ParetoPoint


@dataclass(frozen=True, slots=True)
class StackMeasured(Event):
    """The stack so far; ``record.confirmed`` marks the final one."""

    record: records.StackRecord


@dataclass(frozen=True, slots=True)
class ScalingMeasured(Event):
    """The settings on several GPUs so far; the whole record, again after each trial."""

    record: records.ScalingRecord


@dataclass(frozen=True, slots=True)
class Ranked(Event):
    """The recommendations, best first."""

    recommendations: tuple[records.Recommendation, ...]


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """The person accepted or rejected a recipe, or took that back (None). Posted from the thread that asked for it.

    Where only one of its values was accepted, that is ``value``.
    """

    recipe: str
    decision: Decision | None
    value: records.Value | None = None


@dataclass(frozen=True, slots=True)
class GpusChosen(Event):
    """The person chose how many GPUs to train on after the search on one: a number, 0 for all, 1 for one only."""

    gpus: int


@dataclass(frozen=True, slots=True)
class Held(Event):
    """The session waits before its next trial, since the person paused it; or it goes on."""

    waiting: bool


@dataclass(frozen=True, slots=True)
class ProgressMade(Event):
    """The session's progress, 0 to 1, and the seconds that it expects to need still."""

    share: float
    left_s: float


@dataclass(frozen=True, slots=True)
class ExportVerified(Event):
    """An exported file was applied to the target in a fresh process and timed in a plain loop."""

    verification: records.Verification


@dataclass(frozen=True, slots=True)
class Said(Event):
    """A plain sentence for the person: a problem, a decision. ``severity``: information, warning, error.

    A later sentence that is ``about`` the same takes its place; one that is about nothing stays.
    """

    text: str
    severity: str = "information"
    about: str = ""


@dataclass(frozen=True, slots=True)
class SessionFailed(Event):
    """The session cannot go on: the target could not be loaded, its baseline failed, or a bug of ours."""

    message: str
    hint: str
    details: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class SessionFinished(Event):
    """The session is over; ``cancelled`` when it was interrupted. Everything measured is in the journal."""

    cancelled: bool
    session_s: float
    spent: records.TimeSpent | None = None


# The kinds of events by their names, as a journal has them.
KINDS: dict[str, type[Event]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}


def printable_event(event: Event) -> Event:
    """The event with the control characters in its texts shown: a target's words must not steer a terminal."""
    values = msgspec.to_builtins(event)
    shown = printable_in(values)
    return event if shown == values else msgspec.convert(shown, type(event))
