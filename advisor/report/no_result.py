"""The reason for a session without faster settings, in one sentence for every renderer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from advisor.experiment.policy import POLICY
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_pending, format_percent
from advisor.records import TrialRecord
from advisor.report.conclusions import candidates_tried, settings_to_export, stack_helps
from advisor.report.figures import own_figures


class Cause(Enum):
    """The kinds of reasons. Only ``NO_GAIN`` is a finding about the settings; the others leave them undecided."""

    NOT_TRIED = auto()
    ALL_FAILED = auto()
    TOO_NOISY = auto()
    NO_GAIN = auto()


@dataclass(frozen=True, slots=True)
class NoResult:
    """A cause with its reason, in lower case and without an end: ``no candidate was tried``."""

    cause: Cause
    reason: str

    @property
    def sentence(self) -> str:
        """The reason as a sentence, which says so where nothing could be judged."""
        if self.cause is Cause.NO_GAIN:
            return f"{self.reason[:1].upper()}{self.reason[1:]}."
        return f"Nothing could be judged: {self.reason}."


def no_result(state: SessionState) -> NoResult:
    """The reason no candidate is known to help, for a session in which none does."""
    tried = candidates_tried(state)
    if not tried:
        return NoResult(Cause.NOT_TRIED, "no candidate was tried")
    if not any(record.result.measured for record in tried):
        return NoResult(
            Cause.ALL_FAILED, f"all {len(tried)} trials failed" if len(tried) > 1 else "its only trial failed"
        )
    noise = state.baseline.noise_floor if state.baseline else 0.0
    if noise > POLICY.noisy and state.baseline and state.baseline.runs > 1:
        return NoResult(Cause.TOO_NOISY, f"identical runs differ by {format_percent(noise)} on this machine")
    if noise > POLICY.noisy or _all_open(state, tried):
        return NoResult(Cause.TOO_NOISY, "step times vary so much that faster and slower cannot be told apart")
    return NoResult(Cause.NO_GAIN, f"nothing that was tried {state.goal.better()}")


def _all_open(state: SessionState, tried: Sequence[TrialRecord]) -> bool:
    """Whether no interval of a candidate or the stack tells anything, though there are some."""
    figures = [own_figures(record).comparison for record in tried] + [state.stack.comparison if state.stack else None]
    known = [comparison for comparison in figures if comparison]
    return bool(known) and all(comparison.is_open for comparison in known)


def why_no_stack(state: SessionState) -> str:
    """The reason there are no settings to use together, in lower case and without an end."""
    together = any(len(settings) > 1 for settings in state.combinations)
    if state.stack is None and not together and (state.finished is None or state.finished.cancelled):
        return "the session ended before any were measured together"
    found = no_result(state)
    if found.cause in (Cause.NOT_TRIED, Cause.ALL_FAILED):
        return found.reason
    if state.stack is None and not together:
        return "none were measured together"
    return f"nothing that was measured together {state.goal.better()}"


def export_remark(state: SessionState) -> str:
    """The end of the sentence about exported settings that promise less than a person expects; else empty."""
    if state.stack and state.stack.pending:
        return f": {format_pending(state.stack)}"
    if not settings_to_export(state):
        return f", without settings: {why_no_stack(state)}"
    return "" if stack_helps(state) else f", though together they {state.goal.not_better(2)}"
