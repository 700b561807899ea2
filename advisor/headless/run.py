"""Runs a session without the app, with a progress line for each result on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from advisor.errors import AdvisorError, ExitCode
from advisor.experiment import events
from advisor.experiment.events import Event, SessionFinished
from advisor.experiment.measuring.verification import limit_s, may_be_verified
from advisor.experiment.past.journal import Journal, PastSession
from advisor.experiment.request import Outputs, Request
from advisor.experiment.state import SessionState
from advisor.export.outputs import Written, write_outputs
from advisor.figures.formatting import (
    counted,
    format_bytes,
    format_ms,
    format_outcome,
    format_rate,
    format_ratio,
    format_seconds,
    format_setting,
    plain,
)
from advisor.process.interrupts import INTERRUPTS
from advisor.recipe.catalog import load_catalog
from advisor.records import Comparison, Exported, StackRecord, TrialRecord, TrialResult, Verdict
from advisor.report import figures
from advisor.report.evidence import hardware_table, workload_rows
from advisor.report.several_gpus import row_words
from advisor.report.terminal import print_sections
from advisor.report.verdict import no_result
from advisor.report.whole import summary_sections

if TYPE_CHECKING:
    from advisor.experiment.session import Session

_ALMOST = 0.99  # the largest progress, as a share, that is shown before the session has ended


class HeadlessReporter:
    """Takes a session's events, keeps its state, and writes a line for each event that a person waits for.

    A setting that was not tried gets no line: the summary at the end lists it.
    """

    def __init__(self, file: TextIO) -> None:
        self.state = SessionState()
        self._file = file
        self._last: dict[str, object] = {}  # by label: the last verdict on a candidate, or the last line on the stack
        self._share = 0.0
        self._taking = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Ignore further events of an interrupted session, so that the report shows the present state."""
        with self._taking:
            self._closed = True

    def handle(self, event: events.Event) -> None:
        """Take one event into account. Called from the session's thread."""
        with self._taking:
            if self._closed:
                return
            lines = list(self._lines(event))  # before the event changes the state: a line may need the old state
            self.state.apply(event)
            for line in lines:
                self._tell(line)

    def say(self, text: str) -> None:
        """Write a line. The session goes on even if nobody reads it any more."""
        with suppress(OSError):
            print(plain(text), file=self._file, flush=True)

    def _tell(self, line: str) -> None:
        """Write a line after the progress in percent, which never falls and is 100 % only at the end."""
        finished = self.state.finished
        over = finished is not None and not finished.cancelled and self.state.failure is None
        self._share = 1.0 if over else max(self._share, min(self.state.progress, _ALMOST))
        left_s = round(self.state.left_s or 0)
        left = f", {format_seconds(left_s) if left_s >= 60 else f'{left_s} s'} left" if left_s > 0 else ""
        self.say(f"[{100 * self._share:3.0f} %{left}] {line}")

    def _lines(self, event: events.Event) -> Iterator[str]:  # noqa: PLR0912 - a case for each kind of event
        """The lines to write for an event; none for most events."""
        match event:
            case events.HardwareFound(hardware):
                rows = {str(row[0]): row[1] for row in hardware_table(hardware, None).rows}
                yield ", ".join((*figures.gpu_names(hardware), f"CPU {rows['CPU']}", f"memory {rows['Memory']}"))
                yield from filter(None, (hardware.gpu_note,))
            case events.SourceRead(files, _, problems):
                if files:  # the findings come later: the loop's inspection shows which of them matter
                    yield f"read {counted(len(files), 'file')} of your source, for habits that cost time"
                yield from problems
            case events.StageStarted(stage) if stage != "done":
                yield figures.STAGES.get(stage, stage)
            case events.FactsFound(facts):
                if self.state.facts is None:
                    rows = dict(workload_rows(facts))
                    yield f"{rows['Model']}, {rows['Loop']}, batch: {rows['Batch']}"
                    yield from facts.workload.notes
                if facts.profile and facts.profile.kind_of_step:
                    yield f"{facts.profile.kind_of_step}: {facts.profile.evidence}"
            case events.BaselineMeasured(baseline) if not self.state.baseline:
                step, memory = format_ms(baseline.step_ms), format_bytes(baseline.result.peak_reserved_bytes)
                rate, interval = format_rate(baseline.samples_per_s), figures.interval_words(baseline)
                yield f"baseline: {step} per step, {rate}, {memory} reserved, {interval}"
            case events.TrialsPlanned(candidates, skipped) if not self.state.planned:
                reasons = f"; {len(skipped)} recipes skipped, with the reasons at the end" if skipped else ""
                yield f"{counted(len(candidates), 'candidate')} to try{reasons}"
            case events.TrialMeasured(record) if record.verdict is not Verdict.SKIPPED:  # the summary has the reason
                # A candidate that was only measured together with others has no figure of its own, so no line.
                if record.alone or record.contribution is not None or not record.result.measured:
                    found = (record.verdict, record.confirmed and record.alone)  # a new interval alone is no news
                    yield from self._unless_said(record.label, self._trial_line(record), found)
            case events.StackMeasured(record):
                line = self._stack_line(record)
                yield from self._unless_said("together", line, line)
            case events.ScalingMeasured(record):
                known = {(row.name, row.runs) for row in self.state.scaling.rows} if self.state.scaling else set()
                yield from (row_words(row) for row in record.rows if (row.name, row.runs) not in known)
            case events.Said(text, severity):
                yield text if severity == "information" else f"{severity}: {text}"
            case events.ExportVerified(verification):
                yield f"the exported file is {figures.file_finding(self.state, verification)[1]}"
            case events.SessionFinished(cancelled, session_s):
                words = "interrupted" if cancelled else "failed" if self.state.failure else "finished"
                yield f"{words} after {format_seconds(session_s)}"

    def _unless_said(self, about: str, line: str, found: object) -> Iterator[str]:
        """Yield the line if ``found`` differs from the last finding about this candidate or combination."""
        if self._last.get(about) != found:
            yield line
        self._last[about] = found

    def _trial_line(self, record: TrialRecord) -> str:
        """The line about a candidate: its effect, or the reason that it has none."""
        name, words = record.candidate.name, figures.effect_words(record)
        if not record.result.measured:
            name, words = record.label, format_outcome(record.result)
        elif record.alone:
            words = self._gain(record.result, record.comparison)
            words += f", {figures.IN_TURN}" * record.confirmed
        elif record.contribution and record.contribution.verdict.is_change:
            words += f", {record.contribution.verdict}"
        doubt = f" (unreliable: {record.result.disturbed})" if record.result.disturbed else ""
        return f"{name}  {words}{doubt}"

    def _stack_line(self, stack: StackRecord) -> str:
        """The line about the combination: its effect, or the reason that there is none."""
        if not stack.settings:
            return f"together: {no_result(self.state)[0]}"
        settings = ", ".join(format_setting(key, value) for key, value in stack.settings.items())
        effect = stack.result.reason if stack.pending else format_outcome(stack.result)
        if stack.result.measured:
            gain = self._gain(stack.result, stack.comparison) + figures.other_batch(stack, self.state.baseline)
            effect = f"{gain}, {figures.how_confirmed(stack, self.state)}"
        return f"together: {settings}  {effect}"

    def _gain(self, result: TrialResult, comparison: Comparison | None) -> str:
        """The gain in terms of the session's goal. The verdict follows a speed-up if that is a clear change."""
        if (by := self.state.yardstick) and not by.goal.by_time:
            return by.effect(result, comparison)
        words = format_ratio(comparison)
        return f"{words} {comparison.verdict}" if comparison and comparison.verdict.is_change else words


# --- a whole run ---------------------------------------------------------------------------------------------------

_SIGNAL_CHECK_S = 0.05


def open_session(request: Request, past: PastSession | None, emit: Callable[[Event], None]) -> Session:
    """Return a session with its journal and its trial processes, ready to run."""
    from advisor.experiment.session import Session
    from advisor.runner.trials import Runner

    Runner.prepare()
    journal = Journal.create(request) if past is None else Journal(past.path)
    return Session(request, Runner(), emit, journal, past=past)


def run_headless(request: Request, outputs: Outputs, past: PastSession | None = None) -> int:
    """Run a new session, or resume a past one; then report it, write the outputs, and return the exit code.

    SIGINT, SIGTERM and SIGHUP end the session; the results so far are reported and written. Raises AdvisorError at
    the end if the session failed or an output could not be written. Raises KeyboardInterrupt if a second signal
    comes before the session has ended.
    """
    reporter = HeadlessReporter(sys.stderr)
    with INTERRUPTS.handled():
        session = open_session(request, past, reporter.handle)
        started = time.monotonic()
        with INTERRUPTS.obeyed_by():
            ended = _run_in_thread(session, session.run, reporter.say)
            if not ended:
                reporter.close()
                reporter.state.apply(SessionFinished(True, time.monotonic() - started))
            written = _report(reporter, request, outputs, session)
            state = reporter.state
            if cancelled := state.finished is not None and state.finished.cancelled:
                nothing = "" if state.baseline else "nothing was measured yet; "
                reporter.say(f"{nothing}go on with: perf-advisor --resume")
    if not ended:
        raise KeyboardInterrupt
    if state.failure and not cancelled:
        raise state.failure.error
    if state.finished is None:
        raise AdvisorError("the session ended without a result.", "This is a bug of ours: please report it.")
    if written.errors:
        raise written.errors[0]
    return ExitCode.INTERRUPTED if cancelled else ExitCode.OK


def _run_in_thread(session: Session, part: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Run a part of the session in a thread, because signals interrupt no thread. Return whether the part has ended.

    The first signal cancels the session; after the second signal, this function no longer waits.
    """
    worker, cancelled = threading.Thread(target=part, name="session", daemon=True), False
    worker.start()
    while worker.is_alive() and not INTERRUPTS.urgent:
        worker.join(_SIGNAL_CHECK_S)
        if INTERRUPTS.asked and not cancelled:
            cancelled = True
            say("stopping; what was measured is kept (once more to leave at once)")
            session.cancel()
    return not worker.is_alive()


def _report(reporter: HeadlessReporter, request: Request, outputs: Outputs, session: Session) -> Written:
    """Write the files first, then the summary, because the reader of our output may leave."""
    state, catalog = reporter.state, load_catalog(request.recipe_folders)

    def verify(exported: Exported) -> None:
        stack = state.stack
        if stack and may_be_verified(state) and outputs.verify and not INTERRUPTS.asked:
            reporter.say(f"verifying {exported.path} in a plain loop, {format_seconds(limit_s(stack))} at most")
            if not _run_in_thread(session, lambda: session.verify(exported, stack), reporter.say):
                reporter.close()

    written = write_outputs(state, request, outputs, catalog, verify)
    if state.baseline:
        print_sections(summary_sections(state, catalog), sys.stderr if outputs.json_to_stdout else sys.stdout)
    for sentence in written.sentences:
        reporter.say(sentence)
    return written
