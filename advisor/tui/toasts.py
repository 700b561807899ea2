"""The toasts: the events that are worth one, the texts, and as many as the screen has room for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from textual import on
from textual.notifications import Notification, Notify, SeverityLevel

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_ms, format_outcome, format_ratio, format_seconds
from advisor.records import Outcome, StackRecord, TrialRecord, Verdict
from advisor.report.conclusions import stack_helps
from advisor.report.figures import IN_TURN, interval_words, other_batch, verified_words
from advisor.tui.result import AppResult
from advisor.tui.text import MEASURED_AGAIN, said_text
from advisor.tui.theme import ThemedApp

# Toasts on screen at a time: Textual leaves parts of those that do not fit on it. A count.
MOST_TOASTS = 3
# On a screen of fewer lines one toast leaves little enough of the view.
_SHORT = 16
_QUIET = {Outcome.CANCELLED, Outcome.SKIPPED}


@dataclass(frozen=True, slots=True)
class Toast:
    """A short notice."""

    title: str
    text: str
    severity: SeverityLevel = "information"
    timeout_s: float = 5.0


def toast_for(event: events.Event, before: SessionState) -> Toast | None:
    """The toast of an event, given the state just before it; None for the many that only change a view."""
    match event:
        case events.BaselineMeasured(baseline) if before.baseline is None:
            text = f"{format_ms(baseline.step_ms)} a step, {interval_words(baseline)}"
            return Toast("Baseline measured", text)
        case events.StackMeasured(record) if record.confirmed and record.comparison and record.settings:
            return _stack_toast(record, before)
        case events.TrialMeasured(record):
            return _trial_toast(record, before)
        case events.Said() | events.ExportVerified():
            return _told_toast(event, before)
        case events.SessionFinished(cancelled, session_s) if not cancelled and before.failure is None:
            use = (
                "Key 4 shows the advice, 5 exports it."
                if before.recommendations or stack_helps(before)
                else "Key 1 shows the result."
            )
            return Toast("Done", f"Measured for {format_seconds(session_s)}. {use}")
        case _:
            return None


def _stack_toast(stack: StackRecord, before: SessionState) -> Toast | None:
    """The toast of a confirmed stack, where its figures are not those that were told last."""
    told = _stack_told(stack, before)
    if stack.comparison is None or told == _stack_told(before.stack, before):
        return None
    return Toast(f"Stack measured {IN_TURN}" if stack.comparison.is_open else "Stack confirmed", told)


def _stack_told(stack: StackRecord | None, before: SessionState) -> str:
    """The effect of a confirmed stack as it is told; empty for another one."""
    if stack is None or not stack.confirmed or stack.comparison is None:
        return ""
    by = before.yardstick
    effect = by.effect(stack.result, stack.comparison) if by else format_ratio(stack.comparison)
    return f"{effect}{other_batch(stack, before.baseline)}"


def _told_toast(event: events.Said | events.ExportVerified, before: SessionState) -> Toast | None:
    if isinstance(event, events.Said):
        return _said_toast(event, before)
    found = event.verification
    return Toast(Path(found.path).name, verified_words(found), "warning" if found.problem else "information", 10.0)


def _trial_toast(record: TrialRecord, before: SessionState) -> Toast | None:
    if record.verdict is not Verdict.FAILED or record.result.outcome in _QUIET:
        return None
    failure = (record.result.outcome, record.result.reason)
    if any((known.result.outcome, known.result.reason) == failure for known in before.trials.values()):
        return None  # a model that stands nothing else than its own loop would have a toast for every trial
    return Toast(record.candidate.name, format_outcome(record.result), "warning")


def _said_toast(said: events.Said, before: SessionState) -> Toast | None:
    if MEASURED_AGAIN in said.text and any(MEASURED_AGAIN in other.text for other in before.messages):
        return None  # on a busy machine every trial would have one; the notes have them all
    severity = said.severity
    level: SeverityLevel = "error" if severity == "error" else "warning" if severity == "warning" else "information"
    return Toast("", said_text(said), level, 8.0)


class ToastingApp(ThemedApp[AppResult]):
    """An app that clears its toasts where a newer one needs the room."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[Notification] = []

    @on(Notify)
    def _make_room(self, message: Notify) -> None:
        """Take the older ones away just before Textual adds one for which there is no room."""
        self._told = [told for told in self._told if not told.has_expired]
        if len(self._told) >= (MOST_TOASTS if self.size.height >= _SHORT else 1):
            self.clear_notifications()
        self._told.append(message.notification)

    def clear_notifications(self) -> None:
        """Take all toasts away."""
        super().clear_notifications()
        self._told = []
