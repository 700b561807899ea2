"""The process's standard streams, made safe: writing never fails, and lost text is noticed."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDERR = 2


class Stream(io.FileIO):
    """A standard stream that takes everything. ``error`` is the first that it met; nothing is written after that."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.error: OSError | None = None

    def write(self, data: ReadableBuffer) -> int:
        """Write the data, or as much of it as can be written."""
        while self.error is None:
            try:
                written = super().write(data)
            except OSError as error:
                self.error = error
            else:
                if written is not None:
                    return written
                select.select([], [self], [])  # another program made it non-blocking
        return memoryview(data).nbytes

    def problem(self) -> str:
        """The reason that standard output was not fully written; empty when it was, or its reader had left."""
        sys.stdout.flush()
        if self.error is None or self.error.errno in (errno.EPIPE, errno.EIO):  # `head` has seen enough; no terminal
            return ""
        return self.error.strerror or str(self.error)


def take_streams() -> Stream:
    """Take over the streams of a process that is perf-advisor's own, and return its standard output.

    Output to a closed one is dropped; characters that a terminal lacks become ``?``.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass  # no file may get the number of a standard stream that the shell closed
    os.close(descriptor)
    out, error = Stream(1), Stream(2)
    sys.stdout, sys.stderr = _text(out, sys.__stdout__), _text(error, sys.__stderr__)
    sys.__stderr__ = sys.stderr  # type: ignore[misc]  # the app draws on it
    return out


def _text(raw: Stream, usual: TextIO | None) -> io.TextIOWrapper:
    encoding = getattr(usual, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, encoding=encoding, errors="replace", line_buffering=raw.isatty() or raw.fileno() == 2
    )


# --- of a process that runs the user's code -------------------------------------------------------------------

# A process that gets this signal writes its stack to its log, the innermost call first, after this line.
TELL_WHERE = signal.SIGUSR1
STACK_BEGINS = "(most recent call first):\n"
_LONGEST_BYTES = 2000


def redirect_output(log_path: str) -> None:
    """Standard input from nowhere; output and errors, of C code and of children too, to a log.

    The log can be read through them too: see :func:`last_printed`. Any text can be printed.
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
    faulthandler.enable(file=sys.stderr, all_threads=False)
    faulthandler.register(TELL_WHERE, file=sys.stderr, all_threads=False)


def _writer(descriptor: int) -> TextIO:
    """A text stream that takes everything: a log on a full disk is no fault of the target's."""
    raw = io.BufferedWriter(Stream(descriptor))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def last_printed() -> str:
    """The end of what Python and C wrote to standard error's file; empty where it is no file, such as a terminal."""
    flush_streams()
    with contextlib.suppress(OSError):
        start = max(0, os.fstat(_STDERR).st_size - _LONGEST_BYTES)
        return os.pread(_STDERR, _LONGEST_BYTES, start).decode("utf-8", "replace")
    return ""


def flush_streams() -> None:
    """Write what Python still holds back. The streams may be the user's own objects, closed, or None."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
