"""A recorded session in one line. Pure functions of its state."""

from __future__ import annotations

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_interval, format_pending, plain
from advisor.records import StackRecord
from advisor.report.conclusions import stack_helps
from advisor.report.no_result import no_result


def result_line(state: SessionState) -> str:
    """Return how a session ended: its result, or why it has none."""
    if state.failure:
        return f"failed: {plain(state.failure.message)}"
    if state.finished is None:
        return "not finished"
    if state.finished.cancelled:
        return "interrupted"
    if state.stack and state.stack.pending:
        return format_pending(state.stack)
    if state.stack and state.stack.comparison and state.stack.settings:
        count = len(state.stack.settings)
        doubt = "" if stack_helps(state) else "undecided, "
        return f"{doubt}{_effect(state, state.stack)} with {count} setting{'' if count == 1 else 's'}"
    return no_result(state).reason


def _effect(state: SessionState, stack: StackRecord) -> str:
    if state.yardstick and not state.goal.by_time:
        return state.yardstick.effect(stack.result, stack.comparison)
    return format_interval(stack.comparison)
