"""Standard streams that accept all text, and the log that replaces them in a process with the user's code.

On request, a process writes its stack to its log.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from advisor.files.paths import is_library

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# On this signal a process writes its stack to its log: this line, then the calls, the innermost first.
TELL_WHERE, STACK_BEGINS = signal.SIGUSR1, "(most recent call first):\n"
LOG_TAIL_BYTES = 2000
# Limits of a stack: bytes that are read, calls that are shown, and checks of the log.
_STACK_BYTES, CALLS_TOLD, _LOOKS, _LOOK_EVERY_S = 2**16, 8, 20, 0.05
_FATAL = "Fatal Python error: "  # Python's text before the stack of a process that a signal such as SIGSEGV ends


class Stream(io.FileIO):
    """A standard stream that accepts all text. ``error`` is its first error; after that nothing is written."""

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
        """This stream for text, in the encoding of the ``usual`` stream; ``errors`` is as in ``str.encode``."""
        encoding = getattr(usual, "encoding", None) or "utf-8"
        return io.TextIOWrapper(io.BufferedWriter(self), encoding, errors, line_buffering=line_buffering)

    def problem(self) -> str:
        """The reason that standard output was not fully written; empty if it was, or if its reader had left."""
        sys.stdout.flush()
        if self.error is None or self.error.errno in (errno.EPIPE, errno.EIO):  # `head` has seen enough; no terminal
            return ""
        return self.error.strerror or str(self.error)


def take_streams() -> Stream:
    """Take over perf-advisor's own streams and return standard output. A terminal's missing characters become ``?``."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # no file may get the number of a standard stream that the shell closed
    os.close(descriptor)
    out, error = Stream(1), Stream(2)
    sys.stdout = out.text(sys.__stdout__, "replace", line_buffering=out.isatty())
    sys.stderr = error.text(sys.__stderr__, "replace")
    sys.__stderr__ = sys.stderr  # type: ignore[misc]  # the app draws on it
    return out


def redirect_output(log_path: str) -> None:
    """Redirect output and errors (also of C code and children, any text) to a log, and input from nowhere."""
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if log > 2:
        os.close(log)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = Stream(1).text(None, "backslashreplace")  # output that a full disk refuses is not the target's fault
    sys.stderr = Stream(2).text(None, "backslashreplace")
    faulthandler.enable(file=sys.stderr, all_threads=False)
    faulthandler.register(TELL_WHERE, file=sys.stderr, all_threads=False)


def last_printed() -> str:
    """The end of what Python and C wrote to standard error's file; empty if it is not a file (a terminal)."""
    flush_streams()
    return tail("/proc/self/fd/2")


def flush_streams() -> None:
    """Write the output that Python still buffers. The streams may be the user's own objects, closed, or None."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def stack_of(pid: int, log_path: str) -> str:
    """The stack of a running process, which is asked for it; empty if it does not answer."""
    with contextlib.suppress(OSError):  # the process has ended or belongs to another user
        log = Path(log_path)
        before = log.stat().st_size
        os.kill(pid, TELL_WHERE)
        for _ in range(_LOOKS):
            time.sleep(_LOOK_EVERY_S)
            if STACK_BEGINS in tail(log_path, max(0, log.stat().st_size - before)):
                time.sleep(_LOOK_EVERY_S)  # wait for the end of the stack
                return last_stack(log_path)
    return ""


def last_stack(log_path: str) -> str:
    """The last stack in a log, the innermost call first; empty if there is none."""
    return tail(log_path, _STACK_BYTES).partition(STACK_BEGINS)[2].rpartition(STACK_BEGINS)[2]


def own_calls(stack: str) -> str:
    """The user's innermost calls in a stack, after a line that introduces them; empty if there are none."""
    calls = [line for line in stack.splitlines() if line.startswith('  File "') and '"<string>"' not in line]
    own = [line for line in calls if not is_library(line.split('"')[1])][:CALLS_TOLD]
    return "\n".join(("At the time limit it was in these calls, innermost first:", *own)) if own else ""


def last_words(path: str) -> str:
    """The end of the log of a process that has ended; after a crash, the innermost calls of its stack."""
    said, crashed, stack = tail(path, _STACK_BYTES).rpartition(_FATAL)
    if not crashed:  # a stack that was asked for is not part of its output
        before, asked, _ = stack.rpartition(STACK_BEGINS)
        return (before.rpartition("\n")[0] if asked else stack)[-LOG_TAIL_BYTES:]
    calls = [line for line in stack.splitlines() if line.startswith("  File ")]
    crash = "\n".join((f"{_FATAL}{stack.splitlines()[0]}, the innermost call first:", *calls[:CALLS_TOLD]))
    return said[-LOG_TAIL_BYTES:] + crash


def tail(path: str, length: int = LOG_TAIL_BYTES) -> str:
    """The end of a log of any size, ``length`` bytes long; empty if the log cannot be read."""
    with contextlib.suppress(OSError):
        return read_end(path, length)
    return ""


def read_end(path: str, length: int) -> str:
    """The last ``length`` bytes of a log as text. Raises OSError."""
    with Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - length))
        return file.read().decode("utf-8", "replace")
