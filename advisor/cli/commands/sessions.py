"""``perf-advisor sessions``: the recorded sessions, the latest first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.formatting import MISSING, format_interval, format_pending, format_seconds, plain

if TYPE_CHECKING:
    from advisor.experiment.state import SessionState
    from advisor.records import StackRecord


@dataclass(frozen=True, slots=True)
class ShowSessions:
    """List the recorded sessions."""

    def run(self) -> int:
        """Print them, and return the exit code."""
        from advisor.experiment.journal import list_sessions
        from advisor.experiment.state import SessionState
        from advisor.headless.terminal import print_text, table

        made = table("session", "target", "result", "length")
        for past in list_sessions():
            state = SessionState.of(past.events)
            length = format_seconds(state.finished.session_s) if state.finished else MISSING
            made.add_row(past.session_id, plain(past.request.target.command), result_of(state), length)
        if made.row_count:
            print_text(made, sys.stdout)
        else:
            print("There is no session yet: `perf-advisor demo` makes one.")
        return ExitCode.OK


def parse(arguments: Sequence[str]) -> ShowSessions:
    """The options of this command. Raises UsageError."""
    Parser("perf-advisor sessions", "List the recorded sessions, the latest first.").parse(arguments)
    return ShowSessions()


def result_of(state: SessionState) -> str:
    """What a session came to, in a few words."""
    from advisor.report.conclusions import candidates_tried, stack_helps

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
    return f"nothing {state.goal.better()}" if candidates_tried(state) else "no candidate was tried"


def _effect(state: SessionState, stack: StackRecord) -> str:
    """What the stack does by the session's objective."""
    if state.yardstick and not state.goal.by_time:
        return state.yardstick.effect(stack.result, stack.comparison)
    return format_interval(stack.comparison)
