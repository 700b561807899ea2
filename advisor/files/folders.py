"""Folders of our own: the state folder, with journals, hints and the chosen theme; and one for temporary files.

Sockets lie in the latter, so its path is short. Where the process is killed, its fork server removes it.
"""

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from advisor.errors import UsageError
from advisor.files.paths import content_of

# What a socket's path may have, in bytes, less what multiprocessing names the socket: 104 on macOS, 108 on Linux.
_LONGEST = 104 - len("/listener-12345678") - 1
_NAME = "perf-advisor"
_PREFIX = f"{_NAME}-{os.getuid()}-"
RecordT = TypeVar("RecordT")


@cache
def scratch_folder() -> Path:
    """The folder, which ends with this process. Raises UsageError where there is no room for one."""
    usual = ""
    with suppress(OSError):
        usual = tempfile.gettempdir()
    for place in dict.fromkeys((usual, "/tmp", "/var/tmp")):  # noqa: S108
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


def state_folder() -> Path:
    """The user's state folder; ``PERF_ADVISOR_STATE`` names another. It need not exist yet."""
    if override := os.environ.get("PERF_ADVISOR_STATE"):
        return Path(override)
    from platformdirs import user_state_path  # late, as msgspec below: the command line is checked without them

    return user_state_path(_NAME)


def make_private(folder: Path) -> None:
    """Make a folder that only its user may enter, as those above it in the state folder. Raises OSError."""
    ours = state_folder()
    for path in (ours, *reversed([one for one in folder.parents if ours in one.parents]), folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077 and (path != ours or ours.name == _NAME):
            path.chmod(0o700)


def read_record(name: str, empty: RecordT) -> RecordT:
    """A record of the state folder; ``empty`` where its file is missing, broken or of another form."""
    import msgspec

    try:
        return msgspec.json.decode(content_of(state_folder() / name), type=type(empty))
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return empty


def write_record(name: str, record: object) -> None:
    """Store a record in a file of the state folder. It can be made again, so a full disk is no error."""
    import msgspec

    path = state_folder() / name
    with suppress(OSError):
        make_private(path.parent)
        replace_whole(path, msgspec.json.encode(record), 0o600)
