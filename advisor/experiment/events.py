"""Events: the frozen messages of a session. All but decisions are posted from the session's thread."""

import msgspec

from advisor import records
from advisor.errors import AdvisorError, ExitCode
from advisor.experiment.control import Decision
from advisor.experiment.scaling_records import ScalingRecord
from advisor.figures.formatting import printable_in
from advisor.judging.objective import Goal


class Event(msgspec.Struct, frozen=True):
    """One event of a session."""


class GoalSet(Event, frozen=True):
    """The session's goal: its first event. ``session_id`` is empty in older journals."""

    goal: Goal
    session_id: str = ""


class HardwareFound(Event, frozen=True):
    """The machine has been inspected."""

    hardware: records.Hardware


class SourceRead(Event, frozen=True):
    """The user's source has been read for habits. ``problems`` says which files could not be read, and why."""

    files: tuple[str, ...]
    findings: tuple[records.Finding, ...]
    problems: tuple[str, ...] = ()


class StageStarted(Event, frozen=True):
    """The session entered a stage, perhaps again: baseline, stack, instruments, search, confirmation, alone, done."""

    stage: str


class FactsFound(Event, frozen=True):
    """The workload has been loaded and inspected; again, with the profile, once the baseline has been profiled."""

    facts: records.Facts


class BaselineMeasured(Event, frozen=True):
    """The baseline, again whenever a repeat changed its figures."""

    baseline: records.BaselineRecord


class TrialsPlanned(Event, frozen=True):
    """The candidates in order, why the other recipes have none, and which candidates need the person's ``consent``."""

    candidates: tuple[records.Candidate, ...]
    skipped: dict[str, str]
    consent: tuple[str, ...] = ()


class TrialStarted(Event, frozen=True):
    """A trial process was started. ``name``: a candidate's name, ``baseline``, or the stack's description."""

    name: str
    log_path: str
    expected_s: float | None = None  # seconds; None where nothing is known yet


# Activity of the session before its first trial.
BUILDING = "importing PyTorch, building the model"


class TrialActivity(Event, frozen=True):
    """The present activity of the running trial."""

    name: str
    text: str


class BlockTimed(Event, frozen=True):
    """A block of the running trial has been timed: the ms of one step. Not all blocks are posted."""

    name: str
    step_ms: float


class TrialEnded(Event, frozen=True):
    """The trial process has ended: its outcome, and the time of one step in it. Its verdict comes with the records."""

    name: str
    outcome: records.Outcome
    reason: str = ""
    step_ms: float | None = None
    peak_reserved_bytes: int | None = None
    wall_s: float | None = None


class RunMeasured(Event, frozen=True):
    """A trial has ended that counts as a run of these settings, also when it failed. A resumed session reads these."""

    settings: dict[str, records.Value]
    result: records.TrialResult
    turns_of: dict[str, records.Value] | None = None  # the settings in whose turns with the baseline it ran


class TurnsMeasured(Event, frozen=True):
    """Blocks of these settings, those of ``result``, and of the baseline, ``old``, were timed in turn on the CPU."""

    settings: dict[str, records.Value]
    old: tuple[records.Block, ...]
    result: records.TrialResult


class TrialMeasured(Event, frozen=True):
    """A candidate was measured, failed or was skipped. Posted again when more runs change its figures."""

    record: records.TrialRecord


class CombinationMeasured(Event, frozen=True):
    """Several settings were measured together. Their memory and numerics would allow them as the stack."""

    point: records.Combination


class StackMeasured(Event, frozen=True):
    """The stack so far; ``record.confirmed`` marks the final one."""

    record: records.StackRecord


class ScalingMeasured(Event, frozen=True):
    """The settings on several GPUs so far; the whole record, again after each trial."""

    record: ScalingRecord


class Ranked(Event, frozen=True):
    """The recommendations, best first."""

    recommendations: tuple[records.Recommendation, ...]


class Decided(Event, frozen=True):
    """The person accepted or rejected a recipe (or one ``value`` of it), or took that back (None)."""

    recipe: str
    decision: Decision | None
    value: records.Value | None = None


class Paused(Event, frozen=True):
    """The session waits before its next trial, since the person paused it; or it goes on."""

    waiting: bool


class ProgressMade(Event, frozen=True):
    """The session's progress, 0 to 1, and the seconds that it expects to need still."""

    share: float
    left_s: float


class ExportVerified(Event, frozen=True):
    """An exported file was applied to the target in a fresh process and timed in a plain loop."""

    verification: records.Verification


class Said(Event, frozen=True):
    """A plain sentence for the person. A later one that is ``about`` the same takes its place."""

    text: str
    severity: str = "information"  # information, warning or error
    about: str = ""


class SessionFailed(Event, frozen=True):
    """The session cannot go on: the target could not be loaded, its baseline failed, or a bug of ours."""

    message: str
    hint: str
    details: str
    exit_code: int

    @property
    def error(self) -> AdvisorError:
        """The failure as an error with its exit code."""
        error = AdvisorError(self.message, self.hint, self.details)
        error.exit_code = ExitCode(self.exit_code)
        return error


class SessionFinished(Event, frozen=True):
    """The session is over; ``cancelled`` when it was interrupted. Everything measured is in the journal."""

    cancelled: bool
    session_s: float
    spent: records.TimeSpent | None = None


# The kinds of events by their names, as a journal has them.
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
# Kinds that version 0.1 recorded, and that nothing needs any more.
FORMER_KINDS = frozenset({"AllReduceMeasured", "GpusChosen"})


def printable_event(event: Event) -> Event:
    """Return the event with visible control characters, so that a target's texts cannot steer the terminal."""
    values = msgspec.to_builtins(event)
    shown = printable_in(values)
    return event if shown == values else msgspec.convert(shown, type(event))
