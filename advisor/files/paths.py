"""Paths that a person may write in any way: too long, with a NUL, in folders that may not be entered."""

from __future__ import annotations

from pathlib import Path

# The folder of this package, for telling our files from the user's.
PACKAGE = Path(__file__).parents[1]


def is_file(path: str | Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is such a folder; a name that no folder can have is none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def exists(path: str | Path) -> bool:
    """Whether there is anything of that name."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def no_file(path: str | Path, shown: str = "") -> str:
    """Return the sentence that there is no such file, or that it lies where one may not look."""
    shown = shown or str(path)
    try:
        Path(path).stat()
    except PermissionError as error:
        return f"{shown} cannot be reached: {error.strerror}."
    except (OSError, ValueError):
        pass
    return f"there is no file {shown}."
