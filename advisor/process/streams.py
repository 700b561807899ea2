"""The process's standard streams, made safe: writing never fails, and lost text is noticed."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
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


class Streams:
    """Standard output and error of a process that is perf-advisor's own."""

    def __init__(self, out: Stream | None = None) -> None:
        self._out = out

    @classmethod
    def taken(cls) -> Streams:
        """Take the streams over. One that was closed leads nowhere; what a terminal cannot show becomes ``?``."""
        _open_missing()
        out, error = Stream(1), Stream(2)
        sys.stdout, sys.stderr = _text(out, sys.__stdout__), _text(error, sys.__stderr__)
        return cls(out)

    def problem(self) -> str:
        """The reason that standard output was not fully written; empty when it was, or its reader had left."""
        sys.stdout.flush()
        error = self._out.error if self._out else None
        if error is None or error.errno in (errno.EPIPE, errno.EIO):  # `head` has seen enough; the terminal is gone
            return ""
        return error.strerror or str(error)


def _open_missing() -> None:
    """Let no file be opened under the number of a standard stream that the shell closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def _text(raw: Stream, usual: TextIO | None) -> io.TextIOWrapper:
    encoding = getattr(usual, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, encoding=encoding, errors="replace", line_buffering=raw.isatty() or raw.fileno() == 2
    )
