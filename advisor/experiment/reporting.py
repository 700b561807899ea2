"""The events of a session: each is written to the journal first, then shown in the user interface."""

import threading
from collections.abc import Callable
from dataclasses import replace

from advisor import records
from advisor.errors import AdvisorError
from advisor.experiment import caveats, events
from advisor.experiment.consent import Consent
from advisor.experiment.control import Decision
from advisor.experiment.events import Event, Said, SessionFailed, SessionFinished, TrialEnded, printable_event
from advisor.experiment.known import Known
from advisor.experiment.past.journal import Journal
from advisor.experiment.ranking import CONTROL, recommend
from advisor.experiment.state import SessionState
from advisor.judging.judge import stack_record
from advisor.source.prints import changed_sources


class Reporter:
    """Journals and posts the events of a session; ``post`` only posts. ``state`` is the sum of the events so far.

    A continued session begins with the decisions and warnings of ``past``. If it ends early, the journal does not
    record that, and keeps the end of the past session. ``sources`` are the fingerprints of the user's files at the time
    when the baseline was measured.
    """

    def __init__(self, post: Callable[[Event], None], journal: Journal, past: SessionState | None = None) -> None:
        before = past or SessionState()
        self.post = post
        self.state = SessionState(
            decisions=dict(before.decisions),
            accepted_values=dict(before.accepted_values),
            messages=[said for said in before.messages if said.about],
        )
        self.sources: dict[str, str] = {}
        self._journal = journal
        self._continues = past is not None
        self._lock = threading.Lock()
        self._latest: dict[tuple[type[Event], str], Event] = {(Said, said.about): said for said in self.state.messages}

    # --- events ------------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Journal and post an event, from any thread."""
        ends_early = isinstance(event, SessionFinished) and (event.cancelled or self.state.failure is not None)
        spoils = ends_early or isinstance(event, SessionFailed)
        with self._lock:
            self.state.apply(event)
        event = printable_event(event)
        problem = "" if self._continues and spoils else self._journal.record(event)
        self.post(event)
        if problem:
            self.warn(f"the journal cannot be written any more: {problem}; the session goes on without it")
        for path in changed_sources(self.sources) if isinstance(event, TrialEnded) else ():
            del self.sources[path]  # warn once
            self.warn(
                f"{path} has changed since the baseline was measured, so later trials may run other code: "
                "end this session and start another"
            )

    def emit_new(self, event: Event, about: str = "") -> None:
        """Emit an event unless the latest of its kind with the same ``about`` has the same content."""
        kind = type(event), about
        if self._latest.get(kind) != event:
            self._latest[kind] = event
            self.emit(event)

    def decisions(self) -> tuple[dict[str, Decision], dict[str, records.Value]]:
        """Return the person's decisions, the latest last, and the recipes' accepted values. Safe from any thread."""
        with self._lock:
            return dict(self.state.decisions), dict(self.state.accepted_values)

    def consented(self, consent: Consent) -> Consent:
        """Return the consent under the decisions so far."""
        decisions, values = self.decisions()
        return replace(consent, decisions=decisions, values=values)

    def warn(self, text: str, about: str = "") -> None:
        """Warn the person of something to act on or to know when reading the figures. An empty text does nothing.

        A warning replaces an earlier one with the same ``about``. The same text is not repeated.
        """
        if text and about:
            self.emit_new(Said(text, "warning", about), about)
        elif text:
            self.emit(Said(text, "warning"))

    def withdraw(self, about: str, text: str) -> None:
        """Replace an outdated warning, if there was one, by this text."""
        if (Said, about) in self._latest:
            self.emit_new(Said(text, about=about), about)

    def fail(self, error: AdvisorError) -> None:
        """Report that the session failed."""
        self.emit(SessionFailed(error.message, error.hint, error.details, int(error.exit_code)))

    # --- what is known -----------------------------------------------------------------------------------------

    def report(self, known: Known) -> None:
        """Emit events for new results, and warn of failures."""
        judge, plan = known.judge, known.plan
        self.emit_new(events.BaselineMeasured(judge.baseline_record()))
        consent = tuple(candidate.name for candidate in plan.candidates if plan.consent.needs_consent(candidate))
        self.emit_new(events.TrialsPlanned(plan.candidates, dict(plan.skipped), consent))
        beside = plan.partnered(known.stack) if known.stack else []
        tried = [candidate for candidate in beside if candidate.name in known.tried]
        control = records.Candidate(CONTROL, plan.catalog[CONTROL].key, True)
        for candidate in dict.fromkeys((control, *plan.candidates, *tried)):
            if (record := known.record(candidate)) is not None:
                self.emit_new(events.TrialMeasured(record), candidate.name)
        # The effect of each new combination is reported, since it offers a choice between time and memory.
        for settings in judge.runs:
            result = judge.result(settings)
            if settings in self.state.combinations or len(settings) < 2 or known.why_unusable(settings):
                continue
            if result is not None and (peak_bytes := result.peak_reserved_bytes) is not None:
                point = records.Combination(dict(settings), judge.compare(settings), peak_bytes)
                self.emit(events.CombinationMeasured(point))
        self.report_stack(known)
        stack = self.state.measured_stack
        trials = self.state.trials.values()
        ranked = recommend(plan.facts, trials, judge.yardstick, stack.settings if stack else {}, plan.consent)
        self.emit_new(events.Ranked(ranked))
        for text, about in caveats.of_failures(known):
            self.warn(text, about)

    def report_stack(self, known: Known, *, at_end: bool = False) -> None:
        """Emit the stack if it is within the limits, so that it can be used at once; at the end also an empty stack."""
        result = known.judge.result(known.found)
        exceeds = bool(known.found) and (result is None or not known.judge.goal.fits(result))
        too_early = self.state.measured_stack is None and not (known.stack or at_end)
        if not (known.pending or exceeds or too_early):
            self.emit_new(events.StackMeasured(stack_record(known.judge, known.found, known.left_out)))
