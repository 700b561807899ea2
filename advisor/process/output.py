"""Standard streams of a process that runs the user's code, and where in it the process is."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from advisor.process.streams import Stream

# A process that gets this signal writes its stack to its log, the innermost call first, after this line.
TELL_WHERE = signal.SIGUSR1
STACK_BEGINS = "(most recent call first):\n"


def redirect_output(log_path: str) -> None:
    """Standard input from nowhere; output and errors, of C code and of children too, to a log.

    The log can be read through them too: see :class:`advisor.process.printed.Printed`. Any text can be printed.
    """
    log = os.open(log_path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if log > 2:
        os.close(log)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = _writer(1)
    sys.stderr = _writer(2)
    faulthandler.register(TELL_WHERE, file=sys.stderr, all_threads=False)


def _writer(descriptor: int) -> TextIO:
    """A text stream that takes everything: a log on a full disk is no fault of the target's."""
    raw = io.BufferedWriter(Stream(descriptor))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
