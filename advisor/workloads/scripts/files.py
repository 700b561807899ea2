"""The files of a script: run from others in their place, and not written over once its step was seen."""

import builtins
import contextlib
import functools
import io
import linecache
import os
import shutil
import sys
import time
import tokenize
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from advisor.files.paths import INSTALLED, PACKAGE, is_library, is_pythons_own
from advisor.process.meanwhile import replaced

_WITH_CACHES = tuple(f"{folder}{package}/" for folder in INSTALLED for package in ("torch", "triton"))
# Times of change before this one are those of files that no trial has made. Seconds since the epoch.
_BEGUN_S = time.time()


_run_in_place: dict[str, str] = {}


def run_in_place(read_as: Mapping[str, str]) -> None:
    """From now on, have other files run in the place of the user's, under the names of those."""
    _run_in_place.update(read_as)
    if read_as:
        get_code = _compiling(lambda source, file: compile(source, file, "exec"))
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


@contextlib.contextmanager
def imported_by(compiled: Callable[[bytes, str], CodeType]) -> Iterator[None]:
    """Have modules of the user's compiled by another function where they are imported inside this context."""
    with replaced(SourceFileLoader, "get_code", _compiling(compiled)):
        yield


def _compiling(compiled: Callable[[bytes, str], CodeType]) -> Callable[[SourceFileLoader, str], CodeType | None]:
    original: Callable[[SourceFileLoader, str], CodeType | None] = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        return original(loader, name) if is_library(path) else compiled(source_of(Path(path)), path)

    return get_code


def source_of(path: Path) -> bytes:
    """The text of a file of the user's, or of the one that is run in its place."""
    source = Path(_run_in_place.get(str(path), path)).read_bytes()
    if str(path) in _run_in_place:  # what looks at the lines of the code finds those
        lines = io.TextIOWrapper(
            io.BytesIO(source), tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        ).readlines()
        linecache.cache[str(path)] = (len(source), None, lines, str(path))
    return source


def _write_over_nothing(function: Callable[..., Any], file: Any) -> Any:
    """Open a file for torch.save; one that exists is spared, and the weights go to memory instead."""
    return function(io.BytesIO() if _is_there(file) else file)


def _open_over_nothing(function: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    is_users = _is_there(file) and ("w" in mode or ("a" in mode and _is_old(Path(file))))
    return function(os.devnull if is_users else file, mode, *args, **kwargs)


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
    (builtins, "open", _open_over_nothing),
    (io, "open", _open_over_nothing),
    (os, "replace", _move_over_nothing),
    (os, "rename", _move_over_nothing),
    (shutil, "copyfile", _copy_over_nothing),
    (shutil, "rmtree", _remove_nothing_old),
    *((os, name, _remove_nothing_old) for name in ("remove", "unlink", "rmdir")),
)


# Those of torch.save, which scripts may have imported by its name.
_OF_TORCH: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch.serialization, "_open_zipfile_writer", _write_over_nothing),
    (torch.serialization, "_open_file_like", _open_over_nothing),
)


@functools.cache
def _guarded(*, safetensors: bool) -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    """The functions that write files, each with its replacement; those of safetensors too once it is imported."""
    writers = [*_WRITERS]
    if safetensors:
        writers.append((sys.modules["safetensors.torch"], "serialize_file", _tensors_over_nothing))
    found = [(owner, name, _for_scripts(getattr(owner, name), guarded)) for owner, name, guarded in writers]
    return (*found, *((owner, name, functools.partial(one, getattr(owner, name))) for owner, name, one in _OF_TORCH))


@contextlib.contextmanager
def writing_over_nothing() -> Iterator[None]:
    """Have the script leave the files that there are as they are. The caches of PyTorch's compilers go on."""
    guarded = _guarded(safetensors="safetensors.torch" in sys.modules)
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in guarded]
    for owner, name, guard in guarded:
        setattr(owner, name, guard)
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _for_scripts(original: Callable[..., Any], guarded: Callable[..., Any]) -> Callable[..., Any]:
    """A function that acts as ``guarded`` for all but PyTorch's own code and ours, also through Python's modules."""

    def call(*args: Any, **kwargs: Any) -> Any:
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and is_pythons_own(caller.f_code.co_filename):
            caller = caller.f_back
        goes_on = caller is None or any(part in caller.f_code.co_filename for part in (*_WITH_CACHES, str(PACKAGE)))
        return original(*args, **kwargs) if goes_on else guarded(original, *args, **kwargs)

    return call
