"""Events: the frozen messages of a session. The session's thread posts all of them except decisions."""

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
    """The workload has been loaded and inspected. Posted again, with the profile, after the baseline is profiled."""

    facts: records.Facts


class BaselineMeasured(Event, frozen=True):
    """The baseline was measured. Posted again whenever a repeat changes its figures."""

    baseline: records.BaselineRecord


class TrialsPlanned(Event, frozen=True):
    """The candidates in order, why other recipes have none, and which candidates need the person's ``consent``."""

    candidates: tuple[records.Candidate, ...]
    skipped: dict[str, str]
    consent: tuple[str, ...] = ()


class TrialStarted(Event, frozen=True):
    """A trial process was started. ``name``: a candidate's name, ``baseline``, or the stack's description."""

    name: str
    log_path: str
    expected_s: float | None = None  # seconds; None if nothing is known yet


# What the session does before its first trial.
BUILDING = "importing PyTorch, building the model"


class TrialActivity(Event, frozen=True):
    """What the running trial is doing now."""

    name: str
    text: str


class BlockTimed(Event, frozen=True):
    """A block of the running trial has been timed: ms per step. Only some blocks are posted."""

    name: str
    step_ms: float


class TrialEnded(Event, frozen=True):
    """The trial process has ended: its outcome and its time per step. The verdict comes with the records."""

    name: str
    outcome: records.Outcome
    reason: str = ""
    step_ms: float | None = None
    peak_reserved_bytes: int | None = None
    wall_s: float | None = None


class RunMeasured(Event, frozen=True):
    """A trial of these settings has ended, even if it failed, and counts as a run. A resumed session reads these."""

    settings: dict[str, records.Value]
    result: records.TrialResult
    turns_of: dict[str, records.Value] | None = None  # set if the trial was a turn of these settings


class TurnsMeasured(Event, frozen=True):
    """On the CPU, blocks of these settings (``result``) and of the baseline (``old``) were timed in turn."""

    settings: dict[str, records.Value]
    old: tuple[records.Block, ...]
    result: records.TrialResult


class TrialMeasured(Event, frozen=True):
    """A candidate was measured, failed or was skipped. Posted again if more runs change its figures."""

    record: records.TrialRecord


class CombinationMeasured(Event, frozen=True):
    """Several settings were measured together, and their memory and numerics allow them as the stack."""

    point: records.Combination


class StackMeasured(Event, frozen=True):
    """The stack so far; ``record.confirmed`` marks the final one."""

    record: records.StackRecord


class ScalingMeasured(Event, frozen=True):
    """The results on several GPUs so far. The whole record is posted again after each trial."""

    record: ScalingRecord


class Ranked(Event, frozen=True):
    """The recommendations, best first."""

    recommendations: tuple[records.Recommendation, ...]


class Decided(Event, frozen=True):
    """The person accepted or rejected a recipe (or one ``value`` of it), or took the decision back (None)."""

    recipe: str
    decision: Decision | None
    value: records.Value | None = None


class Paused(Event, frozen=True):
    """The session waits before its next trial because the person paused it, or it goes on."""

    waiting: bool


class ProgressMade(Event, frozen=True):
    """The session's progress, 0 to 1, and the seconds that it still expects to need."""

    share: float
    left_s: float


class ExportVerified(Event, frozen=True):
    """An exported file was applied to the target and timed in a plain loop in a fresh process."""

    verification: records.Verification


class Said(Event, frozen=True):
    """A plain sentence for the person. It replaces an earlier sentence with the same ``about``."""

    text: str
    severity: str = "information"  # information, warning or error
    about: str = ""


class SessionFailed(Event, frozen=True):
    """The session cannot go on: the target could not be loaded, its baseline failed, or perf-advisor has a bug."""

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
    """The session is over; ``cancelled`` if it was interrupted. The journal has everything that was measured."""

    cancelled: bool
    session_s: float
    spent: records.TimeSpent | None = None


# The kinds of events by their names, which journals use.
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
# Kinds that version 0.1 recorded and that nothing needs any more.
FORMER_KINDS = frozenset({"AllReduceMeasured", "GpusChosen"})


def printable_event(event: Event) -> Event:
    """Return the event with control characters made visible, so that a target's text cannot steer the terminal."""
    values = msgspec.to_builtins(event)
    shown = printable_in(values)
    return event if shown == values else msgspec.convert(shown, type(event))
