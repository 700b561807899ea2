"""The start of a trial's process, before PyTorch is imported; and its replacement by a fresh interpreter.

A trial whose settings must be in the environment before Python and its libraries start replaces its own program. The
process id, group and end of the channel stay, so the parent listens, times out and kills as usual.
"""

import contextlib
import importlib
import json
import os
import pickle
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from advisor.errors import refusal_of
from advisor.process.channel import send_message
from advisor.process.household import lead_own_group
from advisor.process.logs import redirect_output
from advisor.records import Outcome, TrialResult, TrialSpec

# A rank, for torchrun. Its argument is the address for reports; empty for ranks that do not report.
RANK = """\
from advisor.process.meanwhile import collector_waits
with collector_waits():
    import advisor.trial.preload  # the same start as in the fork server
    from advisor.ranks.trial import main
main(sys.argv[2])
"""
_RESUME = "from advisor.trial.starting import resume\nresume(int(sys.argv[2]), int(sys.argv[3]))\n"
_LIBRARIES = "LD_PRELOAD"


def program(lines: str, *arguments: object) -> list[str]:
    """The command line of a Python with the same paths that runs these lines; ``arguments`` begin at ``argv[2]``."""
    # -P keeps a json.py in the working directory from replacing Python's.
    lines = f"import json, sys\nsys.path[:] = json.loads(sys.argv[1])\n{lines}"
    return [sys.executable, "-P", "-c", lines, json.dumps(sys.path), *map(str, arguments)]


def import_main(connection: Connection, log_path: str) -> ModuleType:
    """The module of a trial's stages, which imports PyTorch. If that fails, send the reason and end the process."""
    # A fork server that lacks paths which the session added (a notebook does) has not imported it.
    preload = sys.modules.get("advisor.trial.preload")
    failure: BaseException | None = preload.FAILURE if preload is not None else None
    if failure is None:
        try:
            return importlib.import_module("advisor.trial.main")
        except BaseException as error:  # any error of a library
            failure = error
    reason, hint = f"{type(failure).__name__}: {failure}", "Run `python -c 'import torch'`."
    if refused := refusal_of(failure):
        reason, hint = refused.message, refused.hint
    details = "".join(traceback.format_exception(failure))
    with contextlib.suppress(OSError):
        Path(log_path).write_text(details, encoding="utf-8", errors="backslashreplace")
    with contextlib.suppress(OSError):
        failed = TrialResult(Outcome.FAILED, f"PyTorch cannot be imported: {reason}", hint, details)
        send_message(connection, failed)
    sys.exit(1)


def replace_program(spec: TrialSpec, connection: Connection, asked_at: float) -> NoReturn:
    """Replace this process with a new Python that has the trial's variables. ``resume`` continues there."""
    lead_own_group()
    redirect_output(spec.log_path)
    told = tempfile.TemporaryFile()  # noqa: SIM115 - the new program closes it
    told.write(pickle.dumps((spec, asked_at)))
    told.seek(0)
    handles = connection.fileno(), told.fileno()
    for handle in handles:
        os.set_inheritable(handle, True)
    arguments = program(_RESUME, *handles)
    os.execve(sys.executable, arguments, merged_environment(spec.environment))  # noqa: S606 - our own interpreter


def resume(channel: int, told: int) -> None:
    """Run the trial in the fresh interpreter. ``channel`` is the open end to the parent; ``told`` has the spec."""
    import advisor.trial.preload  # noqa: F401 - the same start as in the fork server

    connection = Connection(channel)
    with os.fdopen(told, "rb") as file:
        spec, asked_at = pickle.load(file)  # noqa: S301 - written by this process
    import_main(connection, spec.log_path).trial_main(spec, connection, asked_at)


def merged_environment(wanted: dict[str, str]) -> dict[str, str]:
    """The environment with these variables. Empty ones are removed; libraries are put before the user's."""
    merged = {**os.environ, **wanted}
    if wanted.get(_LIBRARIES) and os.environ.get(_LIBRARIES):
        merged[_LIBRARIES] = f"{wanted[_LIBRARIES]}:{os.environ[_LIBRARIES]}"
    return {name: text for name, text in merged.items() if text or name not in wanted}
