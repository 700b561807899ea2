"""Posts events for what is new in a session's knowledge: to the journal first, then to the user interface."""

from collections.abc import Callable, Iterable

from advisor import records
from advisor.errors import AdvisorError, ExitCode
from advisor.experiment import events
from advisor.experiment.events import Event, Said, SessionFailed, SessionFinished, TrialEnded, printable_event
from advisor.experiment.judging.records import stack_record, trial_record
from advisor.experiment.known import Kind, Known
from advisor.experiment.past.journal import Journal
from advisor.experiment.ranking import CONTROL, recommend
from advisor.recipe.settings import Settings
from advisor.source.prints import SourceWatch


class Teller:
    """Posts an event for each change since the last call."""

    def __init__(self, emit: Callable[[events.Event], None]) -> None:
        self._emit = emit
        self._runs: dict[Settings, int] = {}
        self._alternated: set[Settings] = set()
        self._baseline: records.BaselineRecord | None = None
        self._planned: events.TrialsPlanned | None = None
        self._combinations: set[Settings] = set()
        self.records: dict[str, records.TrialRecord] = {}
        self.stack: records.StackRecord | None = None
        self._ranked: tuple[records.Recommendation, ...] = ()

    def mark_as_posted(self, history: Iterable[events.Event]) -> None:
        """Take the runs of these events as told: a resumed session has them in its journal."""
        for event in history:
            if isinstance(event, events.RunMeasured):
                settings = Settings(event.settings)
                self._runs[settings] = self._runs.get(settings, 0) + 1
            elif isinstance(event, events.TurnsMeasured):
                self._alternated.add(Settings(event.settings))

    def tell(self, known: Known) -> None:
        """Post the new events."""
        self._tell_runs(known)
        baseline = known.judge.baseline_record()
        if baseline != self._baseline:
            self._baseline = baseline
            self._emit(events.BaselineMeasured(baseline))
        self._tell_plan(known)
        for record in self._records(known):
            if record != self.records.get(record.candidate.name):
                self.keep(record)
        self._tell_combinations(known)
        self.tell_stack(known)
        self._tell_ranking(known)

    def keep(self, record: records.TrialRecord) -> None:
        """Tell a candidate's record in place of an earlier one."""
        self.records[record.candidate.name] = record
        self._emit(events.TrialMeasured(record))

    def skip(self, candidate: records.Candidate, reason: str) -> None:
        """Tell that a candidate is left out, and why."""
        self.keep(
            records.TrialRecord(candidate, candidate.settings, records.TrialResult(records.Outcome.SKIPPED, reason))
        )

    def _tell_runs(self, known: Known) -> None:
        turns_of = {
            id(run): dict(settings)
            for settings, turns in known.judge.in_turn.items()
            if not turns.by_block
            for run in (*turns.new, *turns.old)
        }
        for settings, runs in known.judge.runs.items():
            for run in runs[self._runs.get(settings, 0) :]:
                self._emit(events.RunMeasured(dict(settings), run, turns_of.get(id(run))))
            self._runs[settings] = len(runs)
        for settings, turns in known.judge.in_turn.items():
            if settings not in self._alternated and turns.by_block:
                self._alternated.add(settings)
                new, old = turns.new[0], turns.old[0]
                self._emit(events.TurnsMeasured(dict(settings), new.blocks, old.blocks, new))

    def _tell_plan(self, known: Known) -> None:
        plan = known.plan
        consent = tuple(candidate.name for candidate in plan.candidates if plan.consent.needs_consent(candidate))
        planned = events.TrialsPlanned(plan.candidates, dict(plan.skipped), consent)
        if planned != self._planned:
            self._planned = planned
            self._emit(planned)

    def _records(self, known: Known) -> list[records.TrialRecord]:
        found = [known.record(candidate) for candidate in _candidates(known)]
        measured = [record for record in found if record is not None]
        control = self._control(known)
        return [control, *measured] if control else measured

    def _control(self, known: Known) -> records.TrialRecord | None:
        judge = known.judge
        if Kind.CONTROL not in known.done or not judge.controls:
            return None
        recipe = known.plan.catalog[CONTROL]
        candidate = records.Candidate(CONTROL, recipe.key, True)
        measured = [run for run in judge.controls if run.measured]  # a repeat that crashed replaces none
        control = measured[-1] if measured else judge.controls[-1]
        return trial_record(judge.with_run(candidate.settings, control), candidate, candidate.settings)

    def _tell_combinations(self, known: Known) -> None:
        """Tell the effect of each new combination of settings: a choice between time and memory."""
        for settings in known.judge.runs:
            result = known.judge.result(settings)
            told = settings in self._combinations or len(settings) < 2 or result is None
            if told or result is None or result.peak_reserved_bytes is None or not known.usable(settings):
                continue
            self._combinations.add(settings)
            comparison = known.judge.compare(settings)
            point = records.ParetoPoint(str(settings), dict(settings), comparison, result.peak_reserved_bytes)
            self._emit(events.CombinationMeasured(point))

    def tell_stack(self, known: Known, *, at_end: bool = False) -> None:
        """Tell the stack if it keeps to the limits, so that it can be used at once; at the end also none."""
        if known.pending:
            return
        result = known.judge.result(known.found)
        if known.found and (result is None or not known.judge.goal.fits(result)):
            return
        stack = stack_record(known.judge, known.found, known.left_out)
        too_early = self.stack is None and not (known.stack or at_end)
        if stack != self.stack and not too_early:
            self.stack = stack
            self._emit(events.StackMeasured(stack))

    def _tell_ranking(self, known: Known) -> None:
        by, stack = known.judge.yardstick, self.stack.settings if self.stack else {}
        ranked = recommend(known.plan.facts, self.records.values(), by, stack, known.plan.consent)
        if ranked != self._ranked:
            self._ranked = ranked
            self._emit(events.Ranked(ranked))


def _candidates(known: Known) -> list[records.Candidate]:
    planned = {candidate.name: candidate for candidate in known.plan.candidates}
    for candidate in known.plan.partnered(known.stack) if known.stack else ():
        if candidate.name in known.tried:
            planned.setdefault(candidate.name, candidate)
    return list(planned.values())


class Outbox:
    """Journals and posts the events of a session; ``post`` only posts. ``exit_code`` is that of the session.

    ``keeps_complete``: the journal holds a complete session, whose record a failure of this one must not spoil.
    ``watch`` notices when the user's files differ from those that the baseline measured.
    """

    def __init__(self, post: Callable[[Event], None], journal: Journal) -> None:
        self.post = post
        self.exit_code = ExitCode.OK
        self.keeps_complete = False
        self.watch = SourceWatch({})
        self._journal = journal
        self._warned: dict[str, str] = {}

    @property
    def session_id(self) -> str:
        """The session's id, which is the journal's."""
        return self._journal.session_id

    def emit(self, event: Event) -> None:
        """Journal and post an event."""
        if isinstance(event, TrialEnded):
            self._notice_changed_sources()
        event = printable_event(event)
        problem = "" if self._spoils_the_record(event) else self._journal.record(event)
        self.post(event)
        if problem:
            self.warn(f"the journal cannot be written any more: {problem}; the session goes on without it")

    def warn(self, text: str, *, once: str = "") -> None:
        """Tell the person something that they should act on, or know when they read the figures."""
        if once and once in self._warned:
            return
        self._warned[once] = text
        self.emit(Said(text, "warning", once))

    def recall(self, history: Iterable[Event]) -> None:
        """Take what an earlier part of the session told for told."""
        told = (event for event in history if isinstance(event, Said) and event.about)
        self._warned |= {event.about: event.text if event.severity == "warning" else "" for event in told}

    def correct(self, about: str, warning: str, otherwise: str) -> None:
        """Replace an earlier warning by what is true now: another warning, or the sentence that there is none."""
        if self._warned.get(about, warning) != warning:
            self._warned[about] = warning
            self.emit(Said(warning or otherwise, "warning" if warning else "information", about))

    def fail(self, error: AdvisorError) -> None:
        """Tell that the session failed."""
        self.exit_code = error.exit_code
        self.emit(SessionFailed(error.message, error.hint, error.details, int(error.exit_code)))

    def _spoils_the_record(self, event: Event) -> bool:
        """Whether an event would turn the record of a session that was complete into one that was not."""
        if isinstance(event, SessionFinished):
            return self.keeps_complete and (event.cancelled or self.exit_code is not ExitCode.OK)
        return self.keeps_complete and isinstance(event, SessionFailed)

    def _notice_changed_sources(self) -> None:
        """Say once of each file of the user's that another one measures from now on than the baseline did."""
        for path in self.watch.changed():
            self.warn(
                f"{path} has changed since the baseline was measured, so later trials may run other code: "
                "end this session and start another"
            )
