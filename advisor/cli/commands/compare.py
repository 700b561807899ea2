"""``perf-advisor compare``: the changes between two recorded sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.formatting import plain

if TYPE_CHECKING:
    from advisor.report.comparison import Measured


def tell_changes(before_id: str, after_id: str) -> int:
    """Print the changes from one recorded session to another. Raises UsageError where there is no such session."""
    from advisor.report.comparison import comparison_sections, summary
    from advisor.report.terminal import print_sections

    before, after = _measured(before_id), _measured(after_id)
    print(f"From {_named(before)}\nto   {_named(after)}\n\n{plain(summary(before, after))}")
    print_sections(comparison_sections(before, after), sys.stdout)
    return ExitCode.OK


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    parser = Parser(
        "perf-advisor compare",
        "Show the changes between two recorded sessions: baseline, stack, settings, verdicts, machine, versions.",
    )
    parser.add_argument("before", metavar="A", help="the id of the earlier session, or its beginning")
    parser.add_argument("after", metavar="B", help="the id of the later one")
    options = parser.parse(arguments)
    return partial(tell_changes, options.before, options.after)


def _measured(session_id: str) -> Measured:
    from advisor.experiment.past.journal import open_session
    from advisor.experiment.state import SessionState
    from advisor.report.comparison import Measured

    past = open_session(session_id)
    if past.damage:
        print(f"warning: {past.damage}.", file=sys.stderr)
    return Measured(past.session_id, past.request, SessionState.of(past.events))


def _named(session: Measured) -> str:
    from advisor.report.verdict import result_line

    return f"{session.session_id}, {plain(session.request.target.command)}: {result_line(session.state)}"
