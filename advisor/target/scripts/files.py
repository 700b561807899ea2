"""The files of a script that is watched or measured: kept open, and not written over once its step was seen."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_OPEN = inspect.signature(open)
_WRITING = frozenset("wax+")


def writes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of ``open`` with these arguments may write."""
    try:
        mode = _OPEN.bind(*args, **kwargs).arguments.get("mode", "r")
    except TypeError:  # open() itself says what is wrong
        return False
    return not _WRITING.isdisjoint(str(mode))


class StaysOpen(io.TextIOWrapper):
    """A text file that the end of its ``with`` block leaves open where ``is_over`` says that the script was ended."""

    is_over: Callable[[], bool]
    mode: str

    def __exit__(self, *exception: object) -> None:
        """Close the file, or write out what it holds so far."""
        if self.is_over():
            self.flush()
        else:
            self.close()


def staying_open(file: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_over: Callable[[], bool]) -> Any:
    """A text file just opened by such a call, as one that stays open for the body of the loop; any other as it is."""
    if type(file) is not io.TextIOWrapper:
        return file
    newline = _OPEN.bind(*args, **kwargs).arguments.get("newline")
    mode, encoding, errors, by_line = file.mode, file.encoding, file.errors, file.line_buffering
    kept = StaysOpen(file.detach(), encoding, errors, newline, by_line)
    kept.mode, kept.is_over = mode, is_over
    return kept


def save_over_nothing(save: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``torch.save``, into a temporary file where it would go over one: a trial's weights are no checkpoint."""
    if not isinstance(f, str | os.PathLike) or not Path(f).exists():
        return save(obj, f, *args, **kwargs)
    with tempfile.TemporaryDirectory() as folder:
        return save(obj, Path(folder, Path(f).name), *args, **kwargs)


@contextlib.contextmanager
def saving_over_nothing() -> Iterator[None]:
    """Have ``torch.save`` leave the files that there are as they are."""
    module: Any = torch
    original = module.save

    module.save = functools.partial(save_over_nothing, original)
    try:
        yield
    finally:
        module.save = original
