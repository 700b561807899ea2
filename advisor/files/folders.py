"""Folders of our own: the state folder (journals, hints, the chosen theme) and the folder for temporary files.

The temporary folder holds sockets, so its path is short. If the process is killed, its fork server removes the folder.
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

# The longest path of the folder, in bytes: a socket's path (104 on macOS, 108 on Linux) less multiprocessing's name.
_LONGEST = 104 - len("/listener-12345678") - 1
_NAME = "perf-advisor"
_PREFIX = f"{_NAME}-{os.getuid()}-"
RecordT = TypeVar("RecordT")


@cache
def scratch_folder() -> Path:
    """The temporary folder, which is removed when this process ends. Raises UsageError if none can be made."""
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
    """Write a file atomically, so that a reader sees the old content or the new, never a part. Raises OSError."""
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
    from platformdirs import user_state_path  # late, as msgspec below: checking the command line needs neither

    return user_state_path(_NAME)


def make_private(folder: Path) -> None:
    """Make a folder, and its parents inside the state folder, that only the user may enter. Raises OSError."""
    ours = state_folder()
    for path in (ours, *reversed([one for one in folder.parents if ours in one.parents]), folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077 and (path != ours or ours.name == _NAME):
            path.chmod(0o700)


def read_record(name: str, empty: RecordT) -> RecordT:
    """Read a record from the state folder; ``empty`` if its file is missing, broken or of another form."""
    import msgspec

    try:
        return msgspec.json.decode(content_of(state_folder() / name), type=type(empty))
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return empty


def write_record(name: str, record: object) -> None:
    """Store a record in the state folder. A full disk is no error, because the record can be made again."""
    import msgspec

    path = state_folder() / name
    with suppress(OSError):
        make_private(path.parent)
        replace_whole(path, msgspec.json.encode(record), 0o600)
