"""A fresh interpreter for a trial whose settings must be in the environment before Python and its libraries start.

The process that the fork server made replaces its program: its id, its process group and its end of the channel stay,
so the parent listens, times out and kills as ever.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NoReturn

from advisor.records import TrialSpec

_LIBRARIES = "LD_PRELOAD"
_BOOTSTRAP = (
    "import pickle, sys\n"
    "payload = open(int(sys.argv[1]), 'rb')\n"
    "sys.path[:] = pickle.load(payload)\n"
    "from advisor.trial.fresh import resume\n"
    "resume(payload, int(sys.argv[2]))\n"
)


def replace_program(spec: TrialSpec, connection: Connection, asked_at: float) -> NoReturn:
    """Start Python anew in this process with ``spec.environment``; ``resume`` goes on there."""
    os.setsid()
    with Path(spec.log_path).open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    payload = tempfile.TemporaryFile()  # noqa: SIM115 - it lives on in the new program
    for part in (sys.path, (spec, asked_at)):
        pickle.dump(part, payload)
    payload.seek(0)
    for handle in (payload.fileno(), connection.fileno()):
        os.set_inheritable(handle, True)
    arguments = [sys.executable, "-c", _BOOTSTRAP, str(payload.fileno()), str(connection.fileno())]
    os.execve(sys.executable, arguments, _merged(spec.environment))  # noqa: S606 - our own interpreter


def resume(payload: IO[bytes], handle: int) -> None:
    """Run the trial in the fresh interpreter."""
    spec, asked_at = pickle.load(payload)  # noqa: S301 - written by this program
    import advisor.trial.preload  # noqa: F401 - the same start as in the fork server
    from advisor.trial.main import trial_main

    trial_main(spec, Connection(handle), asked_at)


def _merged(wanted: dict[str, str]) -> dict[str, str]:
    """The environment with these variables, without those that are empty; libraries go before the user's own."""
    merged = {**os.environ, **wanted}
    if wanted.get(_LIBRARIES) and os.environ.get(_LIBRARIES):
        merged[_LIBRARIES] = f"{wanted[_LIBRARIES]}:{os.environ[_LIBRARIES]}"
    return {name: text for name, text in merged.items() if text or name not in wanted}
