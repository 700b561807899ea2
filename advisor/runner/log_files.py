"""Limits the size of a process's log: a large log loses its middle, so that it does not fill the disk."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from advisor.figures.formatting import format_bytes

# Size to which the log of a running process may grow between two checks before it is shortened. Bytes.
_MOST_RUNNING = 16 * 2**20
# Size of a log once its process has ended; half of it is from the beginning. Bytes.
_KEPT = 2**20
_WATCH_EVERY_S = 0.1  # seconds; a program can write hundreds of megabytes per second
# Reads of appended output during a cut; a program that never pauses cannot be caught up with. A count.
_CATCHES_UP = 100


@contextlib.contextmanager
def bounded(path: str) -> Iterator[None]:
    """Create the folder of a process's log. Keep the log small while the process runs, and smaller afterwards."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_WATCH_EVERY_S):
            shorten(path, _MOST_RUNNING)

    watcher = threading.Thread(target=watch, name="log-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        shorten(path, _KEPT)


def shorten(path: str, most: int) -> None:
    """Cut the middle out of a log that is larger than ``most`` bytes. Its process may still append to it.

    Output that is written between the last read of the log and the cut is lost.
    """
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(log).st_size
            if size <= most:
                return
            half = min(most, _KEPT) // 2
            end = os.pread(log, half, size - half)
            for _ in range(_CATCHES_UP):
                if not (appended := os.pread(log, half, size)):  # since its size was read
                    break
                end = (end + appended)[-half:]
                size += len(appended)
            os.ftruncate(log, half)
            left_out = f"\n[{format_bytes(size - 2 * half)} of output are left out here]\n"
            os.write(log, left_out.encode() + end)
        finally:
            os.close(log)
