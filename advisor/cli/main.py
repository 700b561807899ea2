"""``perf-advisor`` on the command line: errors become two lines and an exit code, and a bug of ours leaves a file.

Importing this module loads neither torch nor rich nor textual; each command loads what it needs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.process.hiding import hidden_library
from advisor.process.interrupts import INTERRUPTS
from advisor.process.streams import Streams

if TYPE_CHECKING:
    from advisor.cli import options
    from advisor.errors import AdvisorError
    from advisor.experiment.journal import PastSession
    from advisor.experiment.request import Request
    from advisor.records import TargetSpec
    from advisor.records.outputs import Outputs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``perf-advisor`` with these arguments (the process's own by default) and return its exit code."""
    with INTERRUPTS.handled(for_good=arguments is None):
        if arguments is not None:
            _accept_any_text()
            return _guarded(arguments)
        streams = Streams.taken()
        code = _guarded(sys.argv[1:])
        if problem := streams.problem():
            _complain(f"standard output cannot be written: {problem}.", "Make room for it, or send it elsewhere.")
            return code or 2
        return code


def _guarded(arguments: Sequence[str]) -> int:
    """Run, and make an exit code of whatever goes wrong."""
    from advisor.errors import AdvisorError, ExitCode

    try:
        return _run(arguments)
    except AdvisorError as error:
        _complain(error.message, error.hint, error.details)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        explained = _explained(error)
        _complain(explained.message, explained.hint)
        return explained.exit_code


def _explained(error: Exception) -> AdvisorError:
    """Return the error that is shown for an unexpected exception; if no known cause fits, it is a bug of ours."""
    from advisor.errors import AdvisorError, UsageError, refusal_of

    said = f"{type(error).__name__}: {error}"
    if refused := refusal_of(error):
        return refused
    if hidden := hidden_library(dict.fromkeys((os.getcwd(), sys.path[0]))):  # noqa: PTH109 - it may be gone
        return UsageError(f"{hidden}: {said}", "Rename it, and run again.")
    return AdvisorError(f"this is a bug of ours: {said}", _keep_traceback())


def _accept_any_text() -> None:
    """Let no character of ours or the user's fail on a terminal that cannot show it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(arguments: Sequence[str]) -> int:
    from advisor.cli import options

    code = _dispatch(options.parse(arguments))
    sys.stdout.flush()  # here, where a reader that has left is no error
    return code


def _dispatch(invocation: options.Invocation) -> int:
    from advisor.cli import options

    if isinstance(invocation, options.Measure):
        return _measure(invocation)
    INTERRUPTS.at_once()
    if isinstance(invocation, options.ShowHelp):
        print(options.SHORT_HELP)
        return 0
    from advisor.cli import commands

    return commands.run(invocation)


def _measure(invocation: options.Measure) -> int:
    _check_key_map(invocation.outputs)
    past = None if invocation.resume is None else _past(invocation.resume, invocation.request)
    request = _request_of(invocation.request, past)
    assert request is not None, "the options name a target or a session"
    if invocation.budget_s is not None:
        request = replace(request, budget_s=invocation.budget_s)
    if not invocation.headless and sys.stdin.isatty() and sys.stdout.isatty():
        from advisor.tui.launch import run_app

        return run_app(request, invocation.outputs, past)
    from advisor.headless import run_headless

    return run_headless(request, invocation.outputs, past)


def _check_key_map(outputs: Outputs) -> None:
    """Raise UsageError for a path of ``--map`` that the config lacks: before measuring, not at the export."""
    if not (outputs.config_path and outputs.key_map):
        return
    from advisor.export.config_patch import check_key_map
    from advisor.export.files import read_exactly

    check_key_map(read_exactly(outputs.config_path), outputs.key_map, outputs.config_path)


def _request_of(asked: Request | None, past: PastSession | None) -> Request | None:
    """Return the request to measure. Options that are not given now are those of the resumed session."""
    if asked is None or past is None:
        return asked or (past.request if past else None)
    return asked.continuing(past.request)


def _past(session_id: str, request: Request | None) -> PastSession:
    """The session to take up: the one named, or the latest, of this target if there is one. Raises UsageError."""
    from advisor.errors import UsageError
    from advisor.experiment.journal import list_sessions, open_session

    if request is None:
        return open_session(session_id or None)
    wanted = request.target
    if session_id:
        past = open_session(session_id)
        if not _takes_up(wanted, past.request.target):
            raise UsageError(
                f"the session {past.session_id} measured {past.request.target.command}, not {wanted.command}.",
                f"Leave the target out, or the session: `perf-advisor {wanted.target} --resume` takes up its latest.",
            )
        return past
    for past in list_sessions():
        if _takes_up(wanted, past.request.target):
            return past
    raise UsageError(
        f"there is no session of {wanted.command} to take up.", "`perf-advisor sessions` lists what there is."
    )


def _takes_up(wanted: TargetSpec, measured: TargetSpec) -> bool:
    """Whether a session of one target measures another; arguments that are left out are the session's."""
    return wanted.target == measured.target and wanted.arguments in ((), measured.arguments)


def _complain(message: str, hint: str, details: str = "") -> None:
    """What is wrong, and what to do: one line each; then the details, when there are some."""
    from advisor.figures.formatting import plain, printable

    message, hint = (plain(" ".join(text.split())) for text in (message, hint))
    print(f"perf-advisor: {message}", file=sys.stderr)
    print(hint, file=sys.stderr)
    if details:
        print(printable(details.rstrip()), file=sys.stderr)


def _keep_traceback() -> str:
    """Write the traceback of the present exception to a file, and say where it is and what to do with it."""
    import traceback

    from advisor.files.state_folder import state_folder

    text = traceback.format_exc()
    for folder in (state_folder(), Path("/tmp"), Path.home()):  # noqa: S108 - a file of its own, never through a link
        path = folder / f"crash-{os.getpid()}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return f"Please report it with the traceback in {path}."
    return f"Please report it with this traceback: {text}"
