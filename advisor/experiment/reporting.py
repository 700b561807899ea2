"""Posts events for what is new in a session's knowledge: to the journal first, then to the user interface."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from advisor import records
from advisor.errors import AdvisorError, ExitCode
from advisor.experiment import events
from advisor.experiment.events import Event, Said, SessionFailed, SessionFinished, TrialEnded, printable_event
from advisor.experiment.judging.judge import Judge
from advisor.experiment.judging.records import stack_record, trial_record
from advisor.experiment.known import Kind, Known
from advisor.experiment.past.journal import Journal
from advisor.experiment.ranking import CONTROL, recommend
from advisor.recipe.settings import Settings
from advisor.source.prints import SourceWatch


class Reporter:
    """Posts an event for each change since the last call. ``records`` and ``stack`` are those that were posted last."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._runs: Counter[Settings] = Counter()
        self._alternated: set[Settings] = set()
        self._latest: dict[Hashable, Event] = {events.Ranked: events.Ranked(())}
        self.records: dict[str, records.TrialRecord] = {}
        self.stack: records.StackRecord | None = None

    def mark_as_posted(self, history: Iterable[Event]) -> None:
        """Take the runs of these events as posted: a resumed session has them in its journal."""
        for event in history:
            if isinstance(event, events.RunMeasured):
                self._runs[Settings(event.settings)] += 1
            elif isinstance(event, events.TurnsMeasured):
                self._alternated.add(Settings(event.settings))

    def report(self, known: Known) -> None:
        """Post the new events."""
        judge, plan = known.judge, known.plan
        self._report_runs(judge)
        self._post(events.BaselineMeasured, events.BaselineMeasured(judge.baseline_record()))
        consent = tuple(candidate.name for candidate in plan.candidates if plan.consent.needs_consent(candidate))
        self._post(events.TrialsPlanned, events.TrialsPlanned(plan.candidates, dict(plan.skipped), consent))
        beside = plan.partnered(known.stack) if known.stack else []
        tried = [candidate for candidate in beside if candidate.name in known.tried]
        found = (known.record(candidate) for candidate in dict.fromkeys((*plan.candidates, *tried)))
        for record in (_control(known), *found):
            if record is not None:
                self._report_record(record)
        self._report_combinations(known)
        self.report_stack(known)
        stacked = self.stack.settings if self.stack else {}
        ranked = recommend(plan.facts, self.records.values(), judge.yardstick, stacked, plan.consent)
        self._post(events.Ranked, events.Ranked(ranked))

    def skip(self, candidate: records.Candidate, reason: str) -> None:
        """Post that a candidate is left out, and why."""
        result = records.TrialResult(records.Outcome.SKIPPED, reason)
        self._report_record(records.TrialRecord(candidate, candidate.settings, result))

    def report_stack(self, known: Known, *, at_end: bool = False) -> None:
        """Post the stack if it keeps to the limits, so that it can be used at once; at the end also none."""
        result = known.judge.result(known.found)
        exceeds = bool(known.found) and (result is None or not known.judge.goal.fits(result))
        too_early = self.stack is None and not (known.stack or at_end)
        if not (known.pending or exceeds or too_early):
            self.stack = stack_record(known.judge, known.found, known.left_out)
            self._post(events.StackMeasured, events.StackMeasured(self.stack))

    def _post(self, about: Hashable, event: Event) -> None:
        """Post an event unless it is the latest about the same."""
        if self._latest.get(about) != event:
            self._latest[about] = event
            self._emit(event)

    def _report_record(self, record: records.TrialRecord) -> None:
        self.records[record.candidate.name] = record
        self._post(record.candidate.name, events.TrialMeasured(record))

    def _report_runs(self, judge: Judge) -> None:
        turns_of = {
            id(run): dict(settings)
            for settings, turns in judge.in_turn.items()
            if not turns.by_block
            for run in (*turns.new, *turns.old)
        }
        for settings, runs in judge.runs.items():
            for run in runs[self._runs[settings] :]:
                self._emit(events.RunMeasured(dict(settings), run, turns_of.get(id(run))))
            self._runs[settings] = len(runs)
        for settings, turns in judge.in_turn.items():
            if settings not in self._alternated and turns.by_block:
                self._alternated.add(settings)
                new, old = turns.new[0], turns.old[0]
                self._emit(events.TurnsMeasured(dict(settings), new.blocks, old.blocks, new))

    def _report_combinations(self, known: Known) -> None:
        """Post the effect of each new combination of settings: a choice between time and memory."""
        for settings in known.judge.runs:
            result = known.judge.result(settings)
            if settings in self._latest or len(settings) < 2 or not known.usable(settings):
                continue
            if result is not None and result.peak_reserved_bytes is not None:
                comparison, peak_bytes = known.judge.compare(settings), result.peak_reserved_bytes
                point = records.ParetoPoint(str(settings), dict(settings), comparison, peak_bytes)
                self._post(settings, events.CombinationMeasured(point))


def _control(known: Known) -> records.TrialRecord | None:
    """The record of the control, by its latest run that measured: a repeat that crashed replaces none."""
    judge = known.judge
    if Kind.CONTROL not in known.done or not judge.controls:
        return None
    candidate = records.Candidate(CONTROL, known.plan.catalog[CONTROL].key, True)
    latest = max(enumerate(judge.controls), key=lambda run: (run[1].measured, run[0]))[1]
    return trial_record(judge.with_run(candidate.settings, latest), candidate, candidate.settings)


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
        event = printable_event(event)
        spoils = isinstance(event, SessionFailed) or (
            isinstance(event, SessionFinished) and (event.cancelled or self.exit_code is not ExitCode.OK)
        )
        problem = "" if self.keeps_complete and spoils else self._journal.record(event)
        self.post(event)
        if problem:
            self.warn(f"the journal cannot be written any more: {problem}; the session goes on without it")
        for path in self.watch.changed() if isinstance(event, TrialEnded) else ():
            self.warn(
                f"{path} has changed since the baseline was measured, so later trials may run other code: "
                "end this session and start another"
            )

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
