"""``perf-advisor`` on the command line: errors become two lines and an exit code, and a bug of ours leaves a file.

Importing this module loads neither torch nor rich nor textual; each command loads what it needs.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor import options
from advisor.errors import AdvisorError, ExitCode, UsageError

if TYPE_CHECKING:
    from advisor.experiment.journal import PastSession
    from advisor.experiment.request import Request


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``perf-advisor`` with these arguments (the process's own by default) and return its exit code."""
    _accept_any_text()
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except AdvisorError as error:
        _complain(error.message, error.hint, error.details)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        _complain(f"this is a bug of ours: {type(error).__name__}: {error}", _keep_traceback())
        return ExitCode.BUG


def _accept_any_text() -> None:
    """Let no character of ours or the user's fail on a terminal that cannot show it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(arguments: Sequence[str]) -> int:
    code = _dispatch(options.parse(arguments))
    sys.stdout.flush()  # here, where a reader that has left is no error
    return code


def _dispatch(invocation: options.Invocation) -> int:
    if isinstance(invocation, options.ShowHelp):
        print(options.SHORT_HELP)
        return ExitCode.OK
    if isinstance(invocation, options.Measure):
        return _measure(invocation)
    from advisor import commands

    return commands.run(invocation)


def _measure(invocation: options.Measure) -> int:
    _check_key_map(invocation.outputs)
    past = None if invocation.resume is None else _past(invocation.resume, invocation.request)
    request = invocation.request or (past.request if past else None)
    assert request is not None, "the options name a target or a session"
    if invocation.budget_s is not None:
        request = replace(request, budget_s=invocation.budget_s)
    if not invocation.headless and sys.stdin.isatty() and sys.stdout.isatty():
        from advisor.tui.launch import run_app

        return run_app(request, invocation.outputs, past)
    from advisor.headless import run_headless

    return run_headless(request, invocation.outputs, past)


def _check_key_map(outputs: options.Outputs) -> None:
    """Raise UsageError for a path of ``--map`` that the config lacks: before measuring, not at the export."""
    if not (outputs.config_path and outputs.key_map):
        return
    from advisor.export.config_patch import check_key_map
    from advisor.export.files import read_exactly

    check_key_map(read_exactly(outputs.config_path), outputs.key_map)


def _past(session_id: str, request: Request | None) -> PastSession:
    """The session to take up: the one named, or the latest, of this target if there is one. Raises UsageError."""
    from advisor.experiment.journal import list_sessions, open_session

    if request is None:
        return open_session(session_id or None)
    target = request.target.target
    if session_id:
        past = open_session(session_id)
        if past.request.target.target != target:
            raise UsageError(
                f"the session {past.session_id} measured {past.request.target.target}, not {target}.",
                f"Leave the target out, or the session: `perf-advisor {target} --resume` takes up its latest.",
            )
        return past
    for past in list_sessions():
        if past.request.target.target == target:
            return past
    raise UsageError(f"there is no session of {target} to take up.", "`perf-advisor sessions` lists what there is.")


def _complain(message: str, hint: str, details: str = "") -> None:
    """What is wrong, and what to do: one line each; then the details, when there are some."""
    print(f"perf-advisor: {_one_line(message)}", file=sys.stderr)
    print(_one_line(hint), file=sys.stderr)
    if details:
        print(details.rstrip(), file=sys.stderr)


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def _keep_traceback() -> str:
    """Write the traceback of the present exception to a file, and say where it is and what to do with it."""
    import tempfile

    from advisor.state_folder import state_folder

    text = traceback.format_exc()
    for folder in (state_folder(), Path(tempfile.gettempdir())):
        path = folder / f"crash-{os.getpid()}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return f"Please report it with the traceback in {path}."
    return f"Please report it with this traceback: {text}"
