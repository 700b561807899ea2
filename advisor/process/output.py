"""Standard streams of a process that runs the user's code: redirected to a log, and read from there."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import stat
import sys
from pathlib import Path
from typing import TextIO

from advisor.process.streams import Stream

# A process that gets this signal writes its stack to its log, the innermost call first, after this line.
TELL_WHERE = signal.SIGUSR1
STACK_BEGINS = "(most recent call first):\n"
_STDERR = 2
_LONGEST_BYTES = 2000


def redirect_output(log_path: str) -> None:
    """Standard input from nowhere; output and errors, of C code and of children too, to a log.

    The log can be read through them too: see :class:`Printed`. Any text can be printed.
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


class Printed:
    """Begins now. Nothing is read where standard error is no file, such as a terminal."""

    def __init__(self) -> None:
        self._from = _written()

    def text(self) -> str:
        """The end of the text written to standard error's file since then, by Python or by C."""
        until = _written()
        written = until - self._from if self._from <= until else until  # else its middle was cut out meanwhile
        length = min(written, _LONGEST_BYTES)
        with contextlib.suppress(OSError):
            return os.pread(_STDERR, length, until - length).decode("utf-8", "replace") if length > 0 else ""
        return ""


def flush_streams() -> None:
    """Write what Python still holds back. The streams may be the user's own objects, closed, or None."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _written() -> int:
    """The size of standard error's file, in bytes."""
    flush_streams()
    try:
        found = os.fstat(_STDERR)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
