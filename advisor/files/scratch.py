"""The process's own folder for temporary files, and files that are written in one piece.

Sockets lie in the folder, so its path is short however long the user's temporary folder is called. Where the process is
killed, its fork server removes the folder.
"""

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from advisor.errors import UsageError

# What a socket's path may have, in bytes, less what multiprocessing names the socket: 104 on macOS, 108 on Linux.
_LONGEST = 104 - len("/listener-12345678") - 1
_PREFIX = f"perf-advisor-{os.getuid()}-"
_OTHERS = ("/tmp", "/var/tmp")  # noqa: S108


@cache
def scratch_folder() -> Path:
    """The folder, which ends with this process. Raises UsageError where there is no room for one."""
    usual = os.environ.get("TMPDIR", "")
    for place in (usual, *_OTHERS):
        if place and len(os.fsencode(place)) + len(f"/{_PREFIX}12345678") <= _LONGEST:
            with suppress(OSError):
                made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
                atexit.register(shutil.rmtree, made, ignore_errors=True)
                return made
    raise UsageError(
        f"there is no folder for temporary files: neither {usual or 'TMPDIR'} nor /tmp can be written.",
        "Set TMPDIR to a folder that exists, has room, and whose path is short.",
    )


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
