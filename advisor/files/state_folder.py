"""The state folder: journals, hints, and the chosen theme."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from platformdirs import user_state_path

from advisor.files.paths import content_of
from advisor.files.scratch import replace_whole

_NAME = "perf-advisor"


RecordT = TypeVar("RecordT")


def state_folder() -> Path:
    """The user's state folder; ``PERF_ADVISOR_STATE`` names another. It need not exist yet."""
    override = os.environ.get("PERF_ADVISOR_STATE")
    return Path(override) if override else user_state_path(_NAME)


def make_private(folder: Path) -> None:
    """Make a folder that only its user may enter, as those above it in the state folder. Raises OSError."""
    ours = state_folder()
    for path in (ours, *reversed([one for one in folder.parents if ours in one.parents]), folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077 and (path != ours or ours.name == _NAME):
            path.chmod(0o700)


def read_record(name: str, empty: RecordT) -> RecordT:
    """A record of the state folder; ``empty`` where its file is missing, broken or of another form."""
    try:
        return msgspec.json.decode(content_of(state_folder() / name), type=type(empty))
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return empty


def write_record(name: str, record: object) -> None:
    """Store a record in a file of the state folder, in place of an earlier one.

    Records can be made again, so a disk that is full or not writable is no error.
    """
    path = state_folder() / name
    with suppress(OSError):
        make_private(path.parent)
        replace_whole(path, msgspec.json.encode(record), 0o600)
