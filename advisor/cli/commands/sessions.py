"""``perf-advisor sessions``: the recorded sessions, the latest first; and the deletion of old ones."""

import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from advisor.cli.parser import Parser
from advisor.errors import ExitCode, UsageError
from advisor.figures.formatting import MISSING, counted, format_first, format_seconds, plain
from advisor.figures.options import count_of

_MOST_NAMED = 3


def show() -> int:
    """List the recorded sessions."""
    from advisor.experiment.past.journal import list_sessions, session_ids
    from advisor.experiment.state import SessionState
    from advisor.report.terminal import print_text, table
    from advisor.report.verdict import result_line

    made, found, read = table("session", "target", "result", "length"), session_ids(), set[str]()
    for past in list_sessions():
        read.add(past.session_id)
        state = SessionState.of(past.events)
        length = format_seconds(state.finished.session_s) if state.finished else MISSING
        made.add_row(past.session_id, plain(past.request.target.command), result_line(state), length)
    if made.row_count:
        print_text(made, sys.stdout)
    if unread := [session_id for session_id in found if session_id not in read]:
        many = format_first(unread, _MOST_NAMED)
        told = f"{counted(len(unread), 'session')} cannot be read: {many}; `perf-advisor report {unread[0]}` says why."
        print(f"warning: {told}", file=sys.stderr)
    elif not made.row_count:
        print("There is no session yet: `perf-advisor demo` makes one.")
    return ExitCode.OK


def prune(keep: int) -> int:
    """Delete all sessions that can be read but the latest, with their logs; not one that is being written."""
    from advisor.experiment.past.journal import Journal, list_sessions

    deleted = 0
    for past in islice(list_sessions(), keep, None):
        try:
            Journal(past.path, past.request).close()
        except UsageError as error:
            print(f"warning: {error.message}", file=sys.stderr)
            continue
        past.path.unlink()
        shutil.rmtree(past.path.with_suffix(""), ignore_errors=True)
        deleted += 1
    print(f"{counted(deleted, 'session')} deleted.")
    return ExitCode.OK


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    parser = Parser("perf-advisor sessions", "List the recorded sessions, the latest first, or delete old ones.")
    parser.option("--keep", metavar="N", read=count_of, help="delete all but the latest N")
    keep = parser.parse(arguments).keep
    return partial(prune, keep) if keep else show
