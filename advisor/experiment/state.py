"""SessionState: the sum of a session's events. The app, the headless reporter and the exports all read it."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace

from advisor import records
from advisor.experiment import events
from advisor.experiment.control import REJECTED, Decision
from advisor.experiment.scaling_records import ScalingRecord
from advisor.judging.objective import Goal, Yardstick
from advisor.recipe.settings import Settings
from advisor.source.reading import relevant

# The activities of a session before its first step.
_LOADING = ("", "starting", events.BUILDING, "loading the model")
# The fields of the state that an event sets, and the matching fields of the event.
_SET_BY: dict[type[events.Event], dict[str, str]] = {
    events.GoalSet: {"goal": "goal", "session_id": "session_id"},
    events.HardwareFound: {"hardware": "hardware"},
    events.SourceRead: {"source_files": "files", "findings": "findings", "source_problems": "problems"},
    events.StageStarted: {"stage": "stage"},
    events.TrialActivity: {"activity": "text"},
    events.FactsFound: {"facts": "facts"},
    events.BaselineMeasured: {"baseline": "baseline"},
    events.TrialsPlanned: {"planned": "candidates", "skipped": "skipped", "consent": "consent"},
    events.ProgressMade: {"progress": "share", "left_s": "left_s"},
    events.ScalingMeasured: {"scaling": "record"},
    events.ExportVerified: {"verification": "verification"},
    events.StackMeasured: {"measured_stack": "record"},
    events.Ranked: {"ranked": "recommendations"},
    events.Paused: {"paused": "waiting"},
}
# After these events no trial runs: trials run one at a time, and nothing is measured or ranked during a trial.
_NOTHING_RUNS = (
    events.TrialEnded,
    events.TrialMeasured,
    events.Ranked,
    events.Paused,
    events.SessionFailed,
    events.SessionFinished,
)


@dataclass
class SessionState:
    """The state of a session. Changed only by :meth:`apply`, in the thread that owns it.

    ``live_ms`` are the step times of the running trial's blocks so far.

    ``measured_stack`` is the stack that was measured last, and ``ranked`` are its recommendations; ``stack`` and
    ``recommendations`` follow the person's decisions at once.

    ``sets_tried`` are all settings that were tried together, even if they failed; ``combinations`` are the usable ones.
    """

    goal: Goal = field(default_factory=Goal)
    session_id: str = ""
    hardware: records.Hardware | None = None
    facts: records.Facts | None = None
    source_files: tuple[str, ...] = ()
    findings: tuple[records.Finding, ...] = ()
    source_problems: tuple[str, ...] = ()
    stage: str = "starting"
    baseline: records.BaselineRecord | None = None
    planned: tuple[records.Candidate, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    consent: tuple[str, ...] = ()
    trials: dict[str, records.TrialRecord] = field(default_factory=dict)
    sets_tried: frozenset[Settings] = frozenset()
    combinations: dict[Settings, records.Combination] = field(default_factory=dict)
    measured_stack: records.StackRecord | None = None
    scaling: ScalingRecord | None = None
    ranked: tuple[records.Recommendation, ...] = ()
    decisions: dict[str, Decision] = field(default_factory=dict)
    accepted_values: dict[str, records.Value] = field(default_factory=dict)
    running: str = ""
    expected_s: float | None = None
    paused: bool = False
    activity: str = ""
    live_ms: tuple[float, ...] = ()
    logs: dict[str, str] = field(default_factory=dict)
    ended: dict[str, events.TrialEnded] = field(default_factory=dict)
    progress: float = 0.0
    left_s: float | None = None
    messages: list[events.Said] = field(default_factory=list)
    verification: records.Verification | None = None
    failure: events.SessionFailed | None = None
    finished: events.SessionFinished | None = None

    @classmethod
    def of(cls, history: Iterable[events.Event]) -> SessionState:
        """The state after these events."""
        state = cls()
        for event in history:
            state.apply(event)
        return state

    def snapshot(self) -> SessionState:
        """A copy for another thread, which later events do not change."""
        return replace(self, **{name: copy(value) for name, value in vars(self).items()})

    @property
    def is_loading(self) -> bool:
        """Whether the model is being loaded and no step of it has run yet."""
        return self.facts is None and self.baseline is None and self.activity in _LOADING

    @property
    def yardstick(self) -> Yardstick | None:
        """The goal and the baseline with which results are compared; None before the baseline is measured."""
        return Yardstick(self.goal, self.baseline) if self.baseline else None

    @property
    def mode(self) -> records.Mode:
        """The mode of the workload; training until the mode is known."""
        return self.facts.workload.mode if self.facts else records.Mode.TRAIN

    @property
    def profile(self) -> records.Profile | None:
        """The baseline's profile; None before it is taken."""
        return self.facts.profile if self.facts else None

    @property
    def baseline_bytes(self) -> int | None:
        """The baseline's peak reserved memory, in bytes; None before it is known."""
        return self.baseline.result.peak_reserved_bytes if self.baseline else None

    @property
    def stack_settings(self) -> dict[str, records.Value]:
        """The settings of the stack, empty before there is one."""
        return dict(stack.settings) if (stack := self.stack) else {}

    def apply(self, event: events.Event) -> None:
        """Take one event into account."""
        for name, of_event in _SET_BY.get(type(event), {}).items():
            setattr(self, name, getattr(event, of_event))
        match event:
            case events.FactsFound() | events.SourceRead():
                self.findings = relevant(self.findings, self.facts) if self.facts else self.findings
            case events.Said():
                others = [said for said in self.messages if not event.about or said.about != event.about]
                self.messages = [*others, event]
            case events.Decided():
                self.decisions.pop(event.recipe, None)
                self.accepted_values.pop(event.recipe, None)
                if event.decision is not None:
                    self.decisions[event.recipe] = event.decision
                if event.value is not None:
                    self.accepted_values[event.recipe] = event.value
            case events.StackMeasured():
                self.verification = None  # it was about a file with the previous stack
            case events.SessionFailed():
                self.failure = event
            case events.SessionFinished():
                self.finished, self.left_s = event, 0.0
            case _:
                self._follow_trial(event)
        if isinstance(event, _NOTHING_RUNS):
            self.running = self.activity = ""

    def _follow_trial(self, event: events.Event) -> None:
        match event:
            case events.TrialStarted():
                self.running, self.activity = event.name, "starting"
                self.expected_s, self.live_ms = event.expected_s, ()
                self.logs[event.name] = event.log_path
            case events.BlockTimed() if event.name == self.running:
                self.live_ms = (*self.live_ms, event.step_ms)
            case events.TrialEnded():
                self.ended[event.name] = event
            case events.TrialMeasured():
                self.trials[event.record.candidate.name] = event.record
            case events.RunMeasured() | events.TurnsMeasured():
                if len(event.settings) > 1 and event.result.outcome is not records.Outcome.SKIPPED:
                    self.sets_tried |= {Settings(event.settings)}
            case events.CombinationMeasured():
                self.combinations[Settings(event.point.settings)] = event.point

    # --- the person's decisions ---------------------------------------------------------------------------------

    @property
    def rejected(self) -> tuple[str, ...]:
        """The recipes that the person rejected, in the order of the decisions."""
        return tuple(recipe for recipe, decision in self.decisions.items() if decision is Decision.REJECTED)

    def has_run(self, name: str) -> bool:
        """Whether a candidate was tried, alone or with others, so that trying it is a repeat."""
        record = self.trials.get(name)
        return record is not None and record.result.outcome is not records.Outcome.SKIPPED

    def can_decide(self, recipe: str) -> bool:
        """Whether accepting or rejecting a recipe changes anything: it is recommended, in the stack, or to be tried."""
        waiting = self.finished is None and any(c.recipe == recipe and c.name not in self.trials for c in self.planned)
        recommended = any(item.recipe == recipe for item in self.recommendations)
        # A setting that came into the stack with others need not have been tried alone.
        stack = self.measured_stack.settings if self.measured_stack else {}
        return waiting or recommended or any(self._owners.get(key) == recipe for key in stack)

    @property
    def candidates(self) -> dict[str, records.Candidate]:
        """All candidates by name: first those of the plan in its order, then others that were tried."""
        return {c.name: c for c in (*self.planned, *(record.candidate for record in self.trials.values()))}

    @property
    def _owners(self) -> dict[str, str]:
        """The recipe of each known setting."""
        tried = (record.candidate for record in self.trials.values())
        return {candidate.key: candidate.recipe for candidate in (*self.planned, *tried)}

    @property
    def recommendations(self) -> tuple[records.Recommendation, ...]:
        """The recommendations, best first; those of rejected recipes are not in the stack."""
        return tuple(replace(item, in_stack=False) if item.recipe in self.rejected else item for item in self.ranked)

    @property
    def stack(self) -> records.StackRecord | None:
        """The stack without what the person rejected. It has no figures until it has been measured again."""
        stack, rejected, owners = self.measured_stack, self.rejected, self._owners if self.rejected else {}
        gone = {key: owners[key] for key in stack.settings if owners.get(key) in rejected} if stack else {}
        if stack is None or not gone:
            return stack
        rest = {key: value for key, value in stack.settings.items() if key not in gone}
        why = f"not measured since you rejected {' and '.join(dict.fromkeys(gone.values()))}"
        return records.StackRecord(
            settings=rest,
            result=records.TrialResult(records.Outcome.SKIPPED, why if rest else "you rejected all that was in it"),
            dropped={**stack.dropped, **dict.fromkeys(gone, REJECTED)},
        )
