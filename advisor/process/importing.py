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
from advisor.process.hiding import hidden_library
from advisor.records import Finished, Outcome, TrialResult

_RANK = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from advisor.process.meanwhile import collector_waits\n"
    "with collector_waits():\n"
    "    from advisor.trial.ranks.rank import main\n"
    "main(sys.argv[2])\n"
)


def program_of_rank(listener: str = "") -> list[str]:
    """The command line of a rank, for torchrun. ``listener``: the address that it reports to, if any does."""
    return [sys.executable, "-P", "-c", _RANK, json.dumps(sys.path), listener]


def import_main(connection: Connection, directory: str, log_path: str) -> ModuleType | None:
    """The module of a trial's stages, which imports PyTorch; None after the session was told why it cannot be had."""
    preload = sys.modules.get("advisor.trial.preload")
    failure: BaseException | None = preload.FAILURE if preload is not None else None
    try:
        if failure is None:
            return importlib.import_module("advisor.trial.main")
    except BaseException as error:  # whatever a file of the user's does in place of a library
        failure = error
    assert failure is not None
    result = unable(failure, directory)
    with contextlib.suppress(OSError):
        Path(log_path).write_text(result.details, encoding="utf-8", errors="backslashreplace")
    with contextlib.suppress(OSError):
        send_message(connection, Finished(result))
    return None


def unable(error: BaseException, directory: str) -> TrialResult:
    """The result of a trial that never came to the user's code."""
    refused = refusal_of(error)
    hidden = hidden_library(dict.fromkeys((str(Path.cwd()), directory)))
    reason, hint = f"PyTorch cannot be imported: {type(error).__name__}: {error}", "Run `python -c 'import torch'`."
    if refused:
        reason, hint = f"PyTorch cannot be imported: {refused.message}", refused.hint
    elif hidden:
        reason, hint = f"{hidden}: {type(error).__name__}: {error}", "Rename it, and run again."
    return TrialResult(Outcome.FAILED, reason, hint, "".join(traceback.format_exception(error)))
