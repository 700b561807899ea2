"""The text that a process wrote to its log since a moment, for errors that were only printed."""

from __future__ import annotations

import contextlib
import os
import stat
import sys

_STDERR = 2
_LONGEST_BYTES = 2000


class Printed:
    """Begins now. Nothing is read where standard error is no file, such as a terminal."""

    def __init__(self) -> None:
        self._from = _written()

    def text(self) -> str:
        """The end of what was written to standard error's file since then, by Python or by C."""
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
