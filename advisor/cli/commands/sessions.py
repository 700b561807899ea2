"""``perf-advisor sessions``: the recorded sessions, the latest first."""

import sys
from collections.abc import Callable, Sequence

from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.formatting import MISSING, format_seconds, plain


def show() -> int:
    """List the recorded sessions."""
    from advisor.experiment.past.journal import list_sessions
    from advisor.experiment.state import SessionState
    from advisor.headless.terminal import print_text, table
    from advisor.report.verdict import result_line

    made = table("session", "target", "result", "length")
    for past in list_sessions():
        state = SessionState.of(past.events)
        length = format_seconds(state.finished.session_s) if state.finished else MISSING
        made.add_row(past.session_id, plain(past.request.target.command), result_line(state), length)
    if made.row_count:
        print_text(made, sys.stdout)
    else:
        print("There is no session yet: `perf-advisor demo` makes one.")
    return ExitCode.OK


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    Parser("perf-advisor sessions", "List the recorded sessions, the latest first.").parse(arguments)
    return show
