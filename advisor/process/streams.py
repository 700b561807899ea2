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

    def text(self, usual: TextIO | None, errors: str, *, line_buffering: bool = True) -> io.TextIOWrapper:
        """This stream for text, in the encoding of the ``usual`` one; ``errors`` is that of ``str.encode``."""
        encoding = getattr(usual, "encoding", None) or "utf-8"
        return io.TextIOWrapper(io.BufferedWriter(self), encoding, errors, line_buffering=line_buffering)

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
    sys.stdout = out.text(sys.__stdout__, "replace", line_buffering=out.isatty())
    sys.stderr = error.text(sys.__stderr__, "replace")
    sys.__stderr__ = sys.stderr  # type: ignore[misc]  # the app draws on it
    return out
