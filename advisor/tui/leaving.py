"""What the app returns when it closes: the text for the terminal, and the session to open next."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.errors import ExitCode
from advisor.experiment.events import SessionFailed
from advisor.figures.formatting import counted
from advisor.report.figures import candidates_tried
from advisor.report.rows import together_of
from advisor.tui.context import Context


@dataclass(frozen=True, slots=True)
class Then:
    """The session to open after the app has closed: a recorded one; with ``measures``, one that goes on.

    It goes on for ``budget_s``, or for as long as it had.
    """

    session_id: str
    measures: bool = False
    budget_s: float | None = None


def closing_words(context: Context) -> Iterator[str]:
    """The lines for the terminal, once it is the shell's again: the result, the files and how to go on."""
    state, session_id, measured = context.state, context.session_id, context.recorded is None
    again = f"Open it again with: perf-advisor open {session_id}"
    written = (f"Written: {', '.join(dict.fromkeys(context.saved))}.",) if context.saved else ()
    if measured and state.baseline is None and not state.trials:
        if context.kept_trials:
            yield from ("Nothing more was measured.", again)
        elif not state.failure:
            yield "Nothing was measured."
        return
    if together := together_of(state):
        yield f"Result: {together.words} with {counted(len(state.stack_settings), 'setting')}, {together.steps} a step."
    if measured:
        count = len(candidates_tried(state))  # as the app counts them: neither the control nor what had no time
        kept = f"The baseline and {counted(count, 'trial')} are kept" if count else "The baseline is kept"
        yield " ".join((f"{kept} in session {session_id}.", *written))
    else:
        yield from written
    yield again
    if measured and (state.finished is None or state.finished.cancelled):
        yield f"Go on with: perf-advisor --resume {session_id}"


def bug_of(error: BaseException) -> SessionFailed:
    """Turn an exception of the session's own code into the event that reports it."""
    details = "".join(traceback.format_exception(error))
    hint = "This is a bug of ours; please report it with the details."
    return SessionFailed(f"{type(error).__name__}: {error}", hint, details, ExitCode.BUG)
