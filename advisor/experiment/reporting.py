"""The events of a session: each is written to the journal first, then shown in the user interface."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from advisor import records
from advisor.errors import AdvisorError
from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.events import Event, Said, SessionFailed, SessionFinished, TrialEnded, printable_event
from advisor.experiment.judging.judge import Judge
from advisor.experiment.judging.records import stack_record, trial_record
from advisor.experiment.known import Kind, Known
from advisor.experiment.past.journal import Journal
from advisor.experiment.ranking import CONTROL, recommend
from advisor.experiment.state import SessionState
from advisor.recipe.settings import Settings
from advisor.source.prints import SourceWatch


class Reporter:
    """Journals and posts the events of a session; ``post`` only posts. ``state`` is the sum of the events so far.

    A continued session begins with the decisions and the warnings of ``past``. ``protects_record``: the journal holds a
    complete session, whose record a failure of this one must not spoil. ``watch`` notices when the user's files differ
    from those that the baseline measured.
    """

    def __init__(self, post: Callable[[Event], None], journal: Journal, past: SessionState | None = None) -> None:
        before = past or SessionState()
        self.post = post
        self.state = SessionState(
            decisions=dict(before.decisions),
            accepted_values=dict(before.accepted_values),
            messages=[said for said in before.messages if said.about],
        )
        self.protects_record = bool(before.finished and not before.finished.cancelled)
        self.watch = SourceWatch({})
        self._journal = journal
        self._lock = threading.Lock()
        self._runs: Counter[Settings] = Counter()
        self._in_turn: set[Settings] = set()

    @property
    def session_id(self) -> str:
        """The session's id, which is the journal's."""
        return self._journal.session_id

    # --- events ------------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Journal and post an event, from any thread."""
        ends_early = isinstance(event, SessionFinished) and (event.cancelled or self.state.failure is not None)
        spoils = ends_early or isinstance(event, SessionFailed)
        with self._lock:
            self.state.apply(event)
        event = printable_event(event)
        problem = "" if self.protects_record and spoils else self._journal.record(event)
        self.post(event)
        if problem:
            self.warn(f"the journal cannot be written any more: {problem}; the session goes on without it")
        for path in self.watch.changed() if isinstance(event, TrialEnded) else ():
            self.warn(
                f"{path} has changed since the baseline was measured, so later trials may run other code: "
                "end this session and start another"
            )

    def emit_new(self, event: Event) -> bool:
        """Emit an event unless the state has what it says; return whether it was new."""
        is_new = not self.state.holds(event)
        if is_new:
            self.emit(event)
        return is_new

    def decisions(self) -> tuple[dict[str, Decision], dict[str, records.Value]]:
        """The person's decisions so far, the latest last, and the values that were accepted alone; from any thread."""
        with self._lock:
            return dict(self.state.decisions), dict(self.state.accepted_values)

    def warn(self, text: str, *, once: str = "") -> None:
        """Tell the person something to act on, or to know when they read the figures; ``once`` about the same."""
        if not once or self._said(once) is None:
            self.emit(Said(text, "warning", once))

    def correct(self, about: str, warning: str, otherwise: str) -> None:
        """Replace an earlier warning by what is true now: another warning, or the sentence that there is none."""
        before = self._said(about)
        if before is not None and before.text != (warning or otherwise):
            self.emit(Said(warning or otherwise, "warning" if warning else "information", about))

    def fail(self, error: AdvisorError) -> None:
        """Tell that the session failed."""
        self.emit(SessionFailed(error.message, error.hint, error.details, int(error.exit_code)))

    def _said(self, about: str) -> Said | None:
        return next((said for said in self.state.messages if said.about == about), None)

    # --- what is known -----------------------------------------------------------------------------------------

    def mark_as_posted(self, history: Iterable[Event]) -> None:
        """Take the runs of these events as posted: a resumed session has them in its journal."""
        for event in history:
            if isinstance(event, events.RunMeasured):
                self._runs[Settings(event.settings)] += 1
            elif isinstance(event, events.TurnsMeasured):
                self._in_turn.add(Settings(event.settings))

    def report(self, known: Known) -> None:
        """Emit the events for what is new."""
        judge, plan = known.judge, known.plan
        self._report_runs(judge)
        self.emit_new(events.BaselineMeasured(judge.baseline_record()))
        consent = tuple(candidate.name for candidate in plan.candidates if plan.consent.needs_consent(candidate))
        self.emit_new(events.TrialsPlanned(plan.candidates, dict(plan.skipped), consent))
        beside = plan.partnered(known.stack) if known.stack else []
        tried = [candidate for candidate in beside if candidate.name in known.tried]
        found = (known.record(candidate) for candidate in dict.fromkeys((*plan.candidates, *tried)))
        for record in (_control(known), *found):
            if record is not None:
                self.emit_new(events.TrialMeasured(record))
        self._report_combinations(known)
        self.report_stack(known)
        stack = self.state.measured_stack
        trials = self.state.trials.values()
        ranked = recommend(plan.facts, trials, judge.yardstick, stack.settings if stack else {}, plan.consent)
        self.emit_new(events.Ranked(ranked))

    def skip(self, candidate: records.Candidate, reason: str) -> None:
        """Emit that a candidate is left out, and why."""
        result = records.TrialResult(records.Outcome.SKIPPED, reason)
        self.emit_new(events.TrialMeasured(records.TrialRecord(candidate, candidate.settings, result)))

    def report_stack(self, known: Known, *, at_end: bool = False) -> None:
        """Emit the stack if it keeps to the limits, so that it can be used at once; at the end also none."""
        result = known.judge.result(known.found)
        exceeds = bool(known.found) and (result is None or not known.judge.goal.fits(result))
        too_early = self.state.measured_stack is None and not (known.stack or at_end)
        if not (known.pending or exceeds or too_early):
            self.emit_new(events.StackMeasured(stack_record(known.judge, known.found, known.left_out)))

    def _report_runs(self, judge: Judge) -> None:
        turns_of = {
            id(run): dict(settings)
            for settings, turns in judge.in_turn.items()
            if not turns.by_block
            for run in (*turns.new, *turns.old)
        }
        for settings, runs in judge.runs.items():
            for run in runs[self._runs[settings] :]:
                self.emit(events.RunMeasured(dict(settings), run, turns_of.get(id(run))))
            self._runs[settings] = len(runs)
        for settings, turns in judge.in_turn.items():
            if settings not in self._in_turn and turns.by_block:
                self._in_turn.add(settings)
                new, old = turns.new[0], turns.old[0]
                self.emit(events.TurnsMeasured(dict(settings), new.blocks, old.blocks, new))

    def _report_combinations(self, known: Known) -> None:
        """Emit the effect of each new combination of settings: a choice between time and memory."""
        for settings in known.judge.runs:
            result = known.judge.result(settings)
            if settings in self.state.combinations or len(settings) < 2 or not known.usable(settings):
                continue
            if result is not None and result.peak_reserved_bytes is not None:
                comparison, peak_bytes = known.judge.compare(settings), result.peak_reserved_bytes
                point = records.ParetoPoint(str(settings), dict(settings), comparison, peak_bytes)
                self.emit(events.CombinationMeasured(point))


def _control(known: Known) -> records.TrialRecord | None:
    """The record of the control, by its latest run that measured: a repeat that crashed replaces none."""
    judge = known.judge
    if Kind.CONTROL not in known.done or not judge.controls:
        return None
    candidate = records.Candidate(CONTROL, known.plan.catalog[CONTROL].key, True)
    latest = max(enumerate(judge.controls), key=lambda run: (run[1].measured, run[0]))[1]
    return trial_record(judge.with_run(candidate.settings, latest), candidate, candidate.settings)
