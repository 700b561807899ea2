"""Write files byte for byte. A reader sees either the old or the new content, never a part of it."""

import contextlib
import os
import re
import stat
from pathlib import Path

from advisor.errors import UsageError
from advisor.files.folders import replace_whole
from advisor.files.paths import is_file, is_folder
from advisor.records import TargetSpec


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a temporary file that is synced and then renamed. The file keeps its mode.

    A symbolic link stays; the file to which it points is replaced. Line endings are not changed. Raises UsageError if
    the folder is missing or the file cannot be written.
    """
    raw = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    _check_place(target)
    try:
        if target.is_file():
            replace_whole(target, raw, stat.S_IMODE(target.stat().st_mode))
        elif not Path(path).exists():
            umask = os.umask(0)
            os.umask(umask)
            replace_whole(target, raw, 0o666 & ~umask)
        else:  # a device or a pipe (/dev/stdout) is written to, not replaced
            # O_NONBLOCK: do not wait for a pipe's reader, which may never come.
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.set_blocking(descriptor, True)
            with os.fdopen(descriptor, "wb") as file:
                file.write(raw)
    except OSError as error:
        hint = f"Check that you may write to {target.parent}, or choose another path."
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.", hint) from error


def check_writable(path: Path) -> None:
    """Raise UsageError if no file could be written to this path later."""
    _check_place(path)
    try:
        replaced = stat.S_ISREG(path.stat().st_mode)  # devices and pipes are written to
        allowed = os.access(path, os.W_OK)
    except FileNotFoundError:
        replaced = allowed = True
    except (OSError, ValueError):  # the name is impossible, or its links form a circle
        replaced = allowed = False
    if not allowed or (replaced and not os.access(path.parent, os.W_OK)):
        raise UsageError(f"{path} cannot be written.", "Name a file that you may write.")


def _check_place(path: Path) -> None:
    if is_folder(path):
        raise UsageError(f"{path} is a folder.", "Name a file in it.")
    if not is_folder(path.parent):
        raise UsageError(f"the folder {path.parent} does not exist.", "Make it first, or name another file.")


# The target in our files: in the comments of a settings file, and in the first lines of a Python file.
_OF_TARGET = re.compile(r"^# target: (.+)$|x \([^)]*\).*, for (\S+) on ", re.M)
_HEAD_BYTES = 4096
_MARK = "perf-advisor"


def check_target_of(path: str | Path, target: TargetSpec, hint: str) -> None:
    """Raise UsageError if the path is our file with settings of another target. ``hint`` says what to do."""
    head = _head_of(path)
    found = _OF_TARGET.search(head) if _MARK in head else None
    named = (found[1] or found[2]).strip() if found else ""
    if named and named != target.command and named.split(" ", 1)[0] != target.target:
        raise UsageError(f"{path} has the settings of {named}, not of {target.command}.", hint)


def check_replaceable(path: str | Path, target: TargetSpec, hint: str) -> None:
    """Raise UsageError if an export must not replace a file unasked: another target's file, or maybe the user's own.

    Our files contain "perf-advisor" at their beginning. A changed copy of a user's file is recognised only by
    ``.tuned`` in its name; under another name it may be the user's own file.
    """
    head = _head_of(path)
    if head.strip() and _MARK not in head and ".tuned" not in Path(path).suffixes:
        raise UsageError(f"{path} exists, and may be a file of your own.", hint)
    check_target_of(path, target, hint)


def _head_of(path: str | Path) -> str:
    """Return the beginning of a file, or an empty text if it is missing or cannot be read."""
    with contextlib.suppress(OSError):
        if is_file(path):
            with Path(path).open("rb") as file:
                return file.read(_HEAD_BYTES).decode("utf-8", "replace")
    return ""
