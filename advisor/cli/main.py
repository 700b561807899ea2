"""Runs ``perf-advisor``. An error becomes two lines and an exit code; a bug of ours is shown with its traceback.

Importing this module loads neither torch nor rich nor textual; each command loads what it needs.
"""

import gc
import os
import sys
import traceback
from collections.abc import Sequence

from advisor.errors import AdvisorError, ExitCode, UsageError, refusal_of
from advisor.process.interrupts import INTERRUPTS
from advisor.process.logs import take_streams
from advisor.process.meanwhile import collector_waits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``perf-advisor`` with these arguments (the process's own by default) and return its exit code."""
    with INTERRUPTS.handled(for_good=arguments is None):
        if arguments is not None:
            return _guarded(arguments)
        output = take_streams()
        code = _guarded(sys.argv[1:])
        gc.freeze()  # the person waits: do not collect objects that end with the process
        if problem := output.problem():
            _complain(f"standard output cannot be written: {problem}.", "Make room for it, or send it elsewhere.")
            return code or 2
        return code


def _guarded(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. Show an exception as an error."""
    try:
        with collector_waits():
            from advisor.cli.commands.measure import Measure
            from advisor.cli.grammar import parse

            command = parse(arguments)
        if not isinstance(command, Measure):  # other commands end at once; a session handles interrupts itself
            INTERRUPTS.at_once()
        code = command() or ExitCode.OK
        sys.stdout.flush()  # here, because a reader that has left (BrokenPipeError) is not an error
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        shown = error if isinstance(error, AdvisorError) else _explained(error)
        _complain(shown.message, shown.hint, shown.details)
        return shown.exit_code
    return code


def _explained(error: Exception) -> AdvisorError:
    """Return the error to show for an unexpected exception. An exception without a known cause is a bug of ours."""
    said = f"{type(error).__name__}: {error}"
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is slower
    except FileNotFoundError:
        return UsageError("the working directory was removed.", "Change to a folder that exists, and run again.")
    if refused := refusal_of(error):
        return refused
    if isinstance(error, ImportError):
        hint = "`pip check` says what does not fit; `pip install --upgrade perf-advisor` installs what is missing."
        return UsageError(f"a library is missing, broken or too old: {said}", hint)
    details = "".join(traceback.format_exception(error))
    return AdvisorError(f"this is a bug of ours: {said}", "Please report it with this traceback.", details)


def _complain(message: str, hint: str, details: str = "") -> None:
    """Print an error on stderr: one line for the problem, one for the remedy, then the details if there are any."""
    from advisor.figures.formatting import plain, printable

    message, hint = (plain(" ".join(text.split())) for text in (message, hint))
    print(f"perf-advisor: {message}", file=sys.stderr)
    print(hint, file=sys.stderr)
    if details:
        print(printable(details.rstrip()), file=sys.stderr)
