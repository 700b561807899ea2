"""Repairs in a forked worker: its own positions in open files, and the threads that it lacks."""

import contextlib
import multiprocessing
import os
import stat
import sys
import typing
from pathlib import Path

OPEN_FILES = "/proc/self/fd"
STANDARD_STREAMS = 3


class StartForked:
    """A `worker_init_fn` for workers that a loader did not have: each reads its dataset's open files by itself."""

    def __init__(self, then: typing.Any) -> None:
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Open the files once more, then run the `worker_init_fn` that the loader had, if any."""
        read_independently()
        forget_executors()
        if self.then is not None:
            self.then(worker_id)


def forks(loader: typing.Any) -> bool:
    """Whether a loader's workers are forks of this process: those that are started afresh have none of its files."""
    usual = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    own = loader.multiprocessing_context
    return (usual if own is None else own.get_start_method()) == "fork"


def read_independently() -> None:
    """Open this process's files for reading once more under their numbers, each at the position that it has now.

    A dataset that goes on reading from an open file would otherwise find it where the last fork left it. What cannot
    be opened again stays shared.
    """
    for descriptor in open_for_reading():
        with contextlib.suppress(OSError):
            position = os.lseek(descriptor, 0, os.SEEK_CUR)
            again = os.open(f"{OPEN_FILES}/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            os.lseek(again, position, os.SEEK_SET)
            os.dup2(again, descriptor, inheritable=os.get_inheritable(descriptor))
            os.close(again)


def forget_executors() -> None:
    """Forget the threads of executors, which a fork does not copy.

    Python joins them as a process ends. In a worker that such a thread forked that fails, with exit code 1, which
    PyTorch takes for a worker that broke off.
    """
    executors = sys.modules.get("concurrent.futures.thread")
    getattr(executors, "_threads_queues", {}).clear()


def open_for_reading() -> typing.Iterator[int]:
    """The descriptors of regular files that this process has open for reading only; none on another system."""
    try:
        import fcntl

        descriptors = [int(link.name) for link in Path(OPEN_FILES).iterdir()]
    except (ImportError, OSError):
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # the one that listed them is closed by now
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            reads = flags & os.O_ACCMODE == os.O_RDONLY and not flags & getattr(os, "O_PATH", 0)
            if descriptor >= STANDARD_STREAMS and reads and stat.S_ISREG(os.fstat(descriptor).st_mode):
                yield descriptor
