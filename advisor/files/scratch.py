"""The process's own folder for temporary files, and files that are written in one piece.

A folder that a killed process left is removed by the next: a lock tells whether the process that made it still lives.
Sockets lie in it, so its path is short however long the user's temporary folder is called.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from advisor.errors import UsageError

# What a socket's path may have, in bytes, less what multiprocessing names the socket: 104 on macOS, 108 on Linux.
_LONGEST = 104 - len("/listener-12345678") - 1
_LOCK = "lock"


class Scratch:
    """A folder that lasts as long as this process. One that was removed meanwhile is made again."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1

    def folder(self) -> Path:
        """The folder. Raises UsageError where there is no room for one."""
        if self._path is None or not self._path.is_dir():
            self._make()
        assert self._path is not None
        return self._path

    def _make(self) -> None:
        if self._path is None:
            _remove_abandoned()
            atexit.register(self.remove)
        for place in _places():
            with suppress(OSError):
                path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=place))
                self._lock, self._path = _locked(path, os.O_CREAT), path
                return
        raise UsageError(
            f"there is no folder for temporary files: neither {_usual() or 'TMPDIR'} nor /tmp can be written.",
            "Set TMPDIR to a folder that exists, has room, and whose path is short.",
        )

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
        self._path = None


SCRATCH = Scratch()


def _prefix() -> str:
    return f"perf-advisor-{os.getuid()}-"


def _usual() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return ""


def _places() -> Iterator[str]:
    """The folders for temporary files, the user's first, whose paths are short enough."""
    for place in dict.fromkeys((_usual(), "/tmp", "/var/tmp")):  # noqa: S108
        if place and len(os.fsencode(place)) + len(f"/{_prefix()}12345678") <= _LONGEST:
            yield place


def _locked(folder: Path, flags: int = 0) -> int:
    """The folder's lock, held by this process. Raises OSError when there is none, or when another one holds it."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_abandoned() -> None:
    for place in _places():
        for folder in Path(place).glob(f"{_prefix()}*"):
            with suppress(OSError):  # the process that made it lives
                lock = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def replace_whole(path: Path, content: bytes, mode: int) -> None:
    """Write a file in one piece, so that a reader sees the old content or the new. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
