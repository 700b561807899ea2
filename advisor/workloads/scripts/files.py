"""The files of a script that is watched or measured: kept open, and not written over once its step was seen."""

import builtins
import contextlib
import inspect
import io
import linecache
import os
import shutil
import sys
import tempfile
import time
import tokenize
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from advisor.files.paths import INSTALLED, PACKAGE, is_pythons_own
from advisor.process.meanwhile import replaced

# Times of change before this one are those of files that no trial has made. Seconds since the epoch.
_BEGUN_S = time.time()
_WITH_CACHES = tuple(f"{folder}{package}/" for folder in INSTALLED for package in ("torch", "triton"))
_OPEN = inspect.signature(open)
_WRITING = frozenset("wax+")


_run_in_place: dict[str, str] = {}


def run_in_place(read_as: Mapping[str, str]) -> None:
    """From now on, have other files run in the place of the user's, under the names of those."""
    _run_in_place.update(read_as)
    original: Callable[..., Any] = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        path = loader.get_filename(name)
        return compile(source_of(Path(path)), path, "exec") if path in _run_in_place else original(loader, name)

    if read_as:
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def source_of(path: Path) -> bytes:
    """The text of a file of the user's, or of the one that is run in its place."""
    source = Path(_run_in_place.get(str(path), path)).read_bytes()
    if str(path) in _run_in_place:  # what looks at the lines of the code finds those
        lines = io.TextIOWrapper(
            io.BytesIO(source), tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        ).readlines()
        linecache.cache[str(path)] = (len(source), None, lines, str(path))
    return source


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
    """A text file that this call has opened, made to stay open for the body of the loop; any other file as it is."""
    if type(file) is not io.TextIOWrapper:
        return file
    newline = _OPEN.bind(*args, **kwargs).arguments.get("newline")
    mode, encoding, errors, by_line = file.mode, file.encoding, file.errors, file.line_buffering
    kept = StaysOpen(file.detach(), encoding, errors, newline, by_line)
    kept.mode, kept.is_over = mode, is_over
    return kept


def save_over_nothing(save: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``torch.save``, into a temporary file where it would go over one: a trial's weights are no checkpoint."""
    if not _is_there(f):
        return save(obj, f, *args, **kwargs)
    with tempfile.TemporaryDirectory() as folder:
        return save(obj, Path(folder, Path(f).name), *args, **kwargs)


def _open_over_nothing(function: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    return function(os.devnull if "w" in mode and _is_there(file) else file, mode, *args, **kwargs)


def _move_over_nothing(function: Callable[..., Any], src: Any, dst: Any, **kwargs: Any) -> Any:
    """Move a file, unless it would go over one; one that was there before stays where it is."""
    if not _is_there(src) or not _is_old(Path(src)):
        return Path(src).unlink() if _is_there(dst) else function(src, dst, **kwargs)
    return None if _is_there(dst) else shutil.copy2(src, dst)


def _copy_over_nothing(function: Callable[..., Any], src: Any, dst: Any, **kwargs: Any) -> Any:
    return dst if _is_there(dst) else function(src, dst, **kwargs)


def _tensors_over_nothing(function: Callable[..., Any], tensors: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    return None if _is_there(file) else function(tensors, file, *args, **kwargs)


def _remove_nothing_old(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    """Remove a file or a folder unless it was there before. What is in ``dir_fd`` was looked at with its folder."""
    if kwargs.get("dir_fd") is None and isinstance(path, str | os.PathLike) and _is_old(Path(path)):
        return None
    return function(path, *args, **kwargs)


def _is_old(path: Path) -> bool:
    """Whether a file, or one in a folder, was written before any trial began."""
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return any(one.lstat().st_mtime < _BEGUN_S for one in (path, *inside) if one.is_symlink() or one.exists())


def _is_there(file: Any) -> bool:
    return isinstance(file, str | os.PathLike) and Path(file).is_file()


_WRITERS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch, "save", save_over_nothing),
    (builtins, "open", _open_over_nothing),
    (io, "open", _open_over_nothing),
    (os, "replace", _move_over_nothing),
    (os, "rename", _move_over_nothing),
    (shutil, "copyfile", _copy_over_nothing),
    (shutil, "rmtree", _remove_nothing_old),
    *((os, name, _remove_nothing_old) for name in ("remove", "unlink", "rmdir")),
)


def _writers() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    yield from _WRITERS
    if safetensors := sys.modules.get("safetensors.torch"):
        yield safetensors, "serialize_file", _tensors_over_nothing


@contextlib.contextmanager
def writing_over_nothing() -> Iterator[None]:
    """Have the script leave the files that there are as they are. The caches of PyTorch's compilers go on."""
    with contextlib.ExitStack() as stack:
        for owner, name, guarded in _writers():
            stack.enter_context(replaced(owner, name, _for_scripts(getattr(owner, name), guarded)))
        yield


def _for_scripts(original: Callable[..., Any], guarded: Callable[..., Any]) -> Callable[..., Any]:
    """A function that acts as ``guarded`` for all but PyTorch's own code and ours, also through Python's modules."""

    def call(*args: Any, **kwargs: Any) -> Any:
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and is_pythons_own(caller.f_code.co_filename):
            caller = caller.f_back
        goes_on = caller is None or any(part in caller.f_code.co_filename for part in (*_WITH_CACHES, str(PACKAGE)))
        return original(*args, **kwargs) if goes_on else guarded(original, *args, **kwargs)

    return call
