"""Files that are open at a fork: each process gets a position of its own in them."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_OPEN_FILES = "/proc/self/fd"
_STANDARD_STREAMS = 3


def read_independently() -> None:
    """Open this process's files for reading once more under their numbers, each at the position that it has now.

    A dataset that goes on reading from an open file would otherwise find it where the last fork left it. What cannot
    be opened again stays shared.
    """
    for descriptor in _open_for_reading():
        with contextlib.suppress(OSError):
            position = os.lseek(descriptor, 0, os.SEEK_CUR)
            again = os.open(f"{_OPEN_FILES}/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            os.lseek(again, position, os.SEEK_SET)
            os.dup2(again, descriptor, inheritable=os.get_inheritable(descriptor))
            os.close(again)


def _open_for_reading() -> Iterator[int]:
    """The descriptors of regular files that this process has open for reading only; none on another system."""
    try:
        descriptors = [int(link.name) for link in Path(_OPEN_FILES).iterdir()]
    except OSError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # the one that listed them is closed by now
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            reads = flags & os.O_ACCMODE == os.O_RDONLY and not flags & getattr(os, "O_PATH", 0)
            if descriptor >= _STANDARD_STREAMS and reads and stat.S_ISREG(os.fstat(descriptor).st_mode):
                yield descriptor
