"""The start of a process, before PyTorch is imported: a failure is reported with its reason, without a traceback."""

import contextlib
import importlib
import json
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from advisor.errors import refusal_of
from advisor.process.channel import send_message
from advisor.records import Finished, Outcome, TrialResult

_RANK = """\
from advisor.process.meanwhile import collector_waits
with collector_waits():
    from advisor.ranks.rank import main
main(sys.argv[2])
"""


def program(lines: str, *arguments: object) -> list[str]:
    """The command line of a Python with this one's paths that runs these lines; ``arguments`` begin at ``argv[2]``."""
    # A json.py in the working directory is not Python's: hence -P.
    lines = f"import json, sys\nsys.path[:] = json.loads(sys.argv[1])\n{lines}"
    return [sys.executable, "-P", "-c", lines, json.dumps(sys.path), *map(str, arguments)]


def program_of_rank(listener: str = "") -> list[str]:
    """The command line of a rank, for torchrun. ``listener``: the address to report to; empty for ranks that do not."""
    return program(_RANK, listener)


def import_main(connection: Connection, log_path: str) -> ModuleType | None:
    """The module of a trial's stages, which imports PyTorch; None if that fails, and the session has the reason."""
    preload = sys.modules.get("advisor.trial.preload")
    failure: BaseException | None = preload.FAILURE if preload is not None else None
    try:
        if failure is None:
            return importlib.import_module("advisor.trial.main")
    except BaseException as error:  # whatever a library raises
        failure = error
    assert failure is not None
    refused = refusal_of(failure)
    reason, hint = f"{type(failure).__name__}: {failure}", "Run `python -c 'import torch'`."
    if refused:
        reason, hint = refused.message, refused.hint
    details = "".join(traceback.format_exception(failure))
    with contextlib.suppress(OSError):
        Path(log_path).write_text(details, encoding="utf-8", errors="backslashreplace")
    with contextlib.suppress(OSError):
        failed = TrialResult(Outcome.FAILED, f"PyTorch cannot be imported: {reason}", hint, details)
        send_message(connection, Finished(failed))
    return None
