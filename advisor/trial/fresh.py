"""A fresh interpreter for a trial whose settings must be in the environment before Python and its libraries start.

The process that the fork server made replaces its program: its id, its process group and its end of the channel stay,
so the parent listens, times out and kills as ever. The trial comes over the channel, once it is known.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

_LIBRARIES = "LD_PRELOAD"
_STDERR = 2
_PR_SET_PDEATHSIG = 1  # prctl(2); it holds in the program that replaces this one
_BOOTSTRAP = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from advisor.trial.fresh import resume\n"
    "resume(int(sys.argv[2]), sys.argv[3])\n"
)


def replace_program(environment: dict[str, str], connection: Connection, log_path: str) -> NoReturn:
    """Replace this process with a new Python that has these variables; ``resume`` continues there."""
    os.setsid()
    with Path(log_path).open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for handle in {*_open_handles(), connection.fileno()}:
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            os.set_inheritable(handle, handle == connection.fileno())
    _end_with_the_parent()
    connection.send(None)  # from here on it may be stopped
    own = ["-P", "-c", _BOOTSTRAP]  # a json.py in the working directory is not Python's
    arguments = [*own, json.dumps(sys.path), str(connection.fileno()), log_path]
    os.execve(sys.executable, [sys.executable, *arguments], merged_environment(environment))  # noqa: S606 - our own interpreter


def _open_handles() -> list[int]:
    """The numbers of the open files but the standard ones.

    One of them tells the fork server that the session lives, and must not outlive that in a process that stands still.
    """
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if int(entry.name) > _STDERR]


def _end_with_the_parent() -> None:
    """Have the kernel end this process with the fork server. A paused process does not see its channel close."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def resume(handle: int, log_path: str) -> None:
    """Import the modules of trials, wait for the trial, and run it, in the fresh interpreter.

    What was written to the log so far becomes the beginning of the trial's.
    """
    import advisor.trial.preload  # noqa: F401 - the same start as in the fork server
    from advisor.process import importing

    connection = Connection(handle)
    try:
        spec, asked_at = connection.recv()
    except (EOFError, OSError):
        return  # nobody needs it any more
    with contextlib.suppress(FileNotFoundError):  # the parent has moved it already
        Path(log_path).replace(spec.log_path)
    main = importing.import_main(connection, spec.target.directory, spec.log_path)
    if main is not None:
        main.trial_main(spec, connection, asked_at)


def merged_environment(wanted: dict[str, str]) -> dict[str, str]:
    """The environment with these variables, without those that are empty; libraries go before the user's own."""
    merged = {**os.environ, **wanted}
    if wanted.get(_LIBRARIES) and os.environ.get(_LIBRARIES):
        merged[_LIBRARIES] = f"{wanted[_LIBRARIES]}:{os.environ[_LIBRARIES]}"
    return {name: text for name, text in merged.items() if text or name not in wanted}
