"""Files beside the exports: names that are free, and copies that overwrite nothing."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_TRACE = "trace.json"
_PACKED = ".gz"


def free_path(path: Path) -> Path:
    """``path`` itself when there is no such file, otherwise the first free one of ``name-2.ext``, ``name-3.ext``, …"""
    return next(name for name in _names(path) if not name.exists())


def copy_trace(source: Path, folder: Path) -> Path:
    """Copy a trace into a folder under a free name and return where it is. Raises OSError, and leaves no part of it."""
    name = _TRACE + (_PACKED if source.suffix == _PACKED else "")
    with source.open("rb") as trace:
        for path in _names(folder / name):
            try:
                with path.open("xb") as copy:
                    _fill(copy, trace, path)
            except FileExistsError:
                continue
            return path
    raise AssertionError("names do not run out")


def _fill(copy: BinaryIO, trace: BinaryIO, path: Path) -> None:
    try:
        shutil.copyfileobj(trace, copy)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _names(path: Path) -> Iterator[Path]:
    """The path, then the same with numbers. A number stands before ``.gz`` and the like: ``trace-2.json.gz``."""
    yield path
    packing = _PACKED if path.suffix == _PACKED else ""
    inner = Path(path.name.removesuffix(packing))
    for number in itertools.count(2):
        yield path.with_name(f"{inner.stem}-{number}{inner.suffix}{packing}")
