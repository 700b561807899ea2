"""Standard streams of a process that runs the user's code, and where in it the process is."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

# A process that gets this signal writes its stack to its log, the innermost call first, after this line.
TELL_WHERE = signal.SIGUSR1
STACK_BEGINS = "(most recent call first):\n"


def redirect_output(log_path: str) -> None:
    """Standard input from nowhere; output and errors, of C code and of children too, to a log."""
    with Path(os.devnull).open("rb") as null, Path(log_path).open("ab", buffering=0) as log:
        os.dup2(null.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.register(TELL_WHERE, file=sys.stderr, all_threads=False)
