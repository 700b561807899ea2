"""A fresh interpreter for a trial whose settings must be in the environment before Python and its libraries start.

The process that the fork server made replaces its program: its id, its process group and its end of the channel stay,
so the parent listens, times out and kills as ever.
"""

import os
import pickle
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from advisor.process import importing
from advisor.process.household import lead_own_group
from advisor.records import TrialSpec

_LIBRARIES = "LD_PRELOAD"
_RESUME = "from advisor.trial.fresh import resume\nresume(int(sys.argv[2]), int(sys.argv[3]))\n"


def replace_program(spec: TrialSpec, connection: Connection, asked_at: float) -> NoReturn:
    """Replace this process with a new Python that has the trial's variables; ``resume`` continues there."""
    lead_own_group()
    with Path(spec.log_path).open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    told = tempfile.TemporaryFile()  # noqa: SIM115 - the new program closes it
    told.write(pickle.dumps((spec, asked_at)))
    told.seek(0)
    handles = connection.fileno(), told.fileno()
    for handle in handles:
        os.set_inheritable(handle, True)
    arguments = importing.program(_RESUME, *handles)
    os.execve(sys.executable, arguments, merged_environment(spec.environment))  # noqa: S606 - our own interpreter


def resume(channel: int, told: int) -> None:
    """Run the trial in the fresh interpreter. ``channel`` and ``told`` are open files: the parent's end, the spec."""
    import advisor.trial.preload  # noqa: F401 - the same start as in the fork server

    connection = Connection(channel)
    with os.fdopen(told, "rb") as file:
        spec, asked_at = pickle.load(file)  # noqa: S301 - written by this process
    main = importing.import_main(connection, spec.log_path)
    if main is not None:
        main.trial_main(spec, connection, asked_at)


def merged_environment(wanted: dict[str, str]) -> dict[str, str]:
    """The environment with these variables; empty ones are removed, and libraries are put before the user's."""
    merged = {**os.environ, **wanted}
    if wanted.get(_LIBRARIES) and os.environ.get(_LIBRARIES):
        merged[_LIBRARIES] = f"{wanted[_LIBRARIES]}:{os.environ[_LIBRARIES]}"
    return {name: text for name, text in merged.items() if text or name not in wanted}
