"""The app's result for the command line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.errors import ExitCode
from advisor.experiment.events import SessionFailed
from advisor.experiment.state import SessionState
from advisor.figures.formatting import counted
from advisor.report.conclusions import candidates_tried
from advisor.report.rows import ranking


@dataclass(frozen=True, slots=True)
class Then:
    """The session to open after the app has closed: a recorded one; with ``measures``, one that goes on.

    It goes on for ``budget_s``, or for as long as it had.
    """

    session_id: str
    measures: bool = False
    budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class AppResult:
    """The exit code, and the lines to print once the terminal is the shell's again.

    A failure's message, hint and details are for stderr; ``lines`` are for the person on stdout.
    """

    exit_code: int
    lines: tuple[str, ...] = ()
    error_lines: tuple[str, ...] = ()
    then: Then | None = None


def result_of_recorded(state: SessionState, session_id: str, saved: Sequence[str] = ()) -> AppResult:
    """Return the app's result after a recorded session."""
    return AppResult(ExitCode.OK, (*_found(state), *_written(saved), _open_again(session_id)))


def result_of(state: SessionState, session_id: str, kept_trials: int = 0, saved: Sequence[str] = ()) -> AppResult:
    """Return the app's result after a session that measured; it may have gone on with ``kept_trials``."""
    lines = tuple(_kept(state, session_id, kept_trials, saved))
    if failure := state.failure:
        errors = (f"perf-advisor: {failure.message}", failure.hint, failure.details.rstrip())
        return AppResult(failure.exit_code, lines, tuple(filter(None, errors)))
    over = state.finished is not None and not state.finished.cancelled
    return AppResult(ExitCode.OK if over else ExitCode.INTERRUPTED, lines)


def _kept(state: SessionState, session_id: str, kept_trials: int, saved: Sequence[str]) -> Iterator[str]:
    """The result, what was kept and written, and how to go on: three lines where all went well."""
    if state.baseline is None and not state.trials:
        if kept_trials:
            yield from ("Nothing more was measured.", _open_again(session_id))
        elif not state.failure:
            yield "Nothing was measured."
        return
    yield from _found(state)
    count = len(candidates_tried(state))  # as the app counts them: neither the control nor what had no time
    what = f"The baseline and {counted(count, 'trial')} are kept" if count else "The baseline is kept"
    yield " ".join((f"{what}{f' in session {session_id}' if session_id else ''}.", *_written(saved)))
    if session_id:
        yield _open_again(session_id)
    if state.finished is None or state.finished.cancelled:
        yield f"Go on with: perf-advisor --resume {session_id}".rstrip()


def _written(saved: Sequence[str]) -> Sequence[str]:
    """The files that the person wrote, in a line; none where there are none."""
    return (f"Written: {', '.join(dict.fromkeys(saved))}.",) if saved else ()


def _found(state: SessionState) -> Iterator[str]:
    """The result in a line; none where nothing was measured together."""
    found = ranking(state)
    if found.together:
        together = found.together
        yield f"Result: {together.words} with {counted(len(found.settings), 'setting')}, {together.steps} a step."


def _open_again(session_id: str) -> str:
    return f"Open it again with: perf-advisor open {session_id}"


def bug_of(error: BaseException) -> SessionFailed:
    """Turn an exception of the session's own code into the event that reports it."""
    details = "".join(traceback.format_exception(error))
    return SessionFailed(
        f"{type(error).__name__}: {error}",
        "This is a bug of ours; please report it with the details.",
        details,
        ExitCode.BUG,
    )
