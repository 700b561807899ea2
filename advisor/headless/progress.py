"""Progress lines on standard error: a line for each result of a session."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

from advisor.experiment import events
from advisor.experiment.state import SessionState
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
from advisor.records import Comparison, StackRecord, TrialRecord, TrialResult, Verdict
from advisor.report import figures
from advisor.report.evidence import hardware_table, workload_rows
from advisor.report.several_gpus import row_words
from advisor.report.verdict import no_result

# The largest share of the work that is shown as done before the session has ended.
_ALMOST = 0.99


class HeadlessReporter:
    """Takes a session's events, keeps its state, and writes a line for each event that a person waits for.

    The summary at the end lists what was not tried.
    """

    def __init__(self, file: TextIO) -> None:
        self.state = SessionState()
        self._file = file
        self._last: dict[str, object] = {}  # the last verdict on a candidate, by its label; the last line on the stack
        self._share = 0.0
        self._taking = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Ignore events from now on: the present state is reported, and an interrupted session may still post some."""
        with self._taking:
            self._closed = True

    def handle(self, event: events.Event) -> None:
        """Take one event into account. Called from the session's thread."""
        with self._taking:
            if self._closed:
                return
            lines = list(self._lines(event))  # before the state has the event: some lines say what is new
            self.state.apply(event)
            for line in lines:
                self._tell(line)

    def say(self, text: str) -> None:
        """Write a line. The session goes on even if nobody reads it any more."""
        with suppress(OSError):
            print(plain(text), file=self._file, flush=True)

    def _tell(self, line: str) -> None:
        """Write a line behind the share that is done, which never falls and is 100 % only at the end."""
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
                if files:  # which of the findings matter is known once the loop has been inspected
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
            case events.TrialMeasured(record) if record.verdict is not Verdict.SKIPPED:  # the summary says why not
                # No line while it was only measured with others.
                if record.alone or record.contribution is not None or not record.result.measured:
                    found = (record.verdict, record.confirmed and record.alone)  # not each shift of its interval
                    yield from self._unless_said(record.label, self._trial_line(record), found)
            case events.StackMeasured(record):
                line = self._stack_line(record)
                yield from self._unless_said("together", line, line)
            case events.ScalingMeasured(record):
                known = {(row.name, row.runs) for row in self.state.scaling.rows} if self.state.scaling else set()
                yield from (row_words(row) for row in record.rows if (row.name, row.runs) not in known)
            case events.Decided(recipe, decision):
                yield f"you {decision or 'took back your decision on'} {recipe}"
            case events.Said(text, severity):
                yield text if severity == "information" else f"{severity}: {text}"
            case events.ExportVerified(verification):
                yield figures.verified_words(verification)
            case events.SessionFinished(cancelled, session_s):
                words = "interrupted" if cancelled else "failed" if self.state.failure else "finished"
                yield f"{words} after {format_seconds(session_s)}"

    def _unless_said(self, about: str, line: str, found: object) -> Iterator[str]:
        """The line, unless the last one about this candidate, or the settings together, said the same."""
        if self._last.get(about) != found:
            yield line
        self._last[about] = found

    def _trial_line(self, record: TrialRecord) -> str:
        """The line on a candidate: its effect, or why it has none."""
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
        """The line on the settings together: their effect, or why there is none."""
        if not stack.settings:
            return f"together: {no_result(self.state)[0]}"
        settings = ", ".join(format_setting(key, value) for key, value in stack.settings.items())
        effect = stack.result.reason if stack.pending else format_outcome(stack.result)
        if stack.result.measured:
            gain = self._gain(stack.result, stack.comparison)
            effect = f"{gain}{figures.other_batch(stack, self.state.baseline)}, {figures.how_confirmed(stack)}"
        return f"together: {settings}  {effect}"

    def _gain(self, result: TrialResult, comparison: Comparison | None) -> str:
        """The gain in the figure of the session's goal; of a speed-up with the verdict where it shows a change."""
        if (by := self.state.yardstick) and not by.goal.by_time:
            return by.effect(result, comparison)
        words = format_ratio(comparison)
        return f"{words} {comparison.verdict}" if comparison and comparison.verdict.is_change else words
