"""Fingerprints of the user's own source files, to tell whether a later session measures the same program."""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from advisor.files.paths import is_library

_OURS = "advisor"  # our package, with the recipes in it
# The modules of the program that this process runs, and of Python's site customisation.
_ENTRIES = ("__main__", "__mp_main__", "sitecustomize", "usercustomize")


def fingerprint(path: str) -> str:
    """The SHA-256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""


def imported_sources() -> dict[str, str]:
    """The fingerprints of the user's modules (not libraries) that this process has imported, by path."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        ours = name.partition(".")[0] == _OURS or name in _ENTRIES
        if ours or not (isinstance(file, str) and file.endswith(".py") and Path(file).is_absolute()):
            continue
        path = os.path.realpath(file)
        if path not in found and not is_library(path):
            found[path] = fingerprint(path)
    return dict(sorted(found.items()))


def changed_sources(sources: Mapping[str, str]) -> tuple[str, ...]:
    """The files that were changed or removed."""
    return tuple(path for path, known in sources.items() if fingerprint(path) != known)
