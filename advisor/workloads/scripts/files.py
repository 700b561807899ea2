"""The files of a script: run from others in their place, and not written over once its step was seen."""

import builtins
import contextlib
import functools
import io
import itertools
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
from types import CodeType, FrameType
from typing import Any

import torch

from advisor.files.paths import INSTALLED, PACKAGE, is_library, is_pythons_own
from advisor.process.household import SOCKETS
from advisor.process.meanwhile import replaced

# Code that writes what it compiles. What else PyTorch writes is the script's, as by torch.save.
_COMPILERS = tuple(f"{folder}{part}" for folder in INSTALLED for part in ("torch/_", "torch/utils/cpp_ext", "triton/"))
_BEGUN_S = time.time()  # seconds since the epoch: no trial made a file that is older
_MOST_COPIED = 2**28  # bytes: a larger file that a script appends to, or changes in place, is not copied first

_run_in_place: dict[str, str] = {}


def run_in_place(read_as: Mapping[str, str]) -> None:
    """Run other files in place of the user's from now on, under the names of the user's files."""
    _run_in_place.update(read_as)
    if read_as:
        get_code = compiled_by(lambda source, file: compile(source, file, "exec"))
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def compiled_by(compiled: Callable[[bytes, str], CodeType]) -> Callable[[SourceFileLoader, str], CodeType | None]:
    """Return a ``get_code`` of Python's loader that compiles the user's modules with another function."""
    original: Callable[[SourceFileLoader, str], CodeType | None] = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        return original(loader, name) if is_library(path) else compiled(source_of(Path(path)), path)

    return get_code


def source_of(path: Path) -> bytes:
    """The text of a file of the user's, or of the one that is run in its place."""
    source = Path(_run_in_place.get(str(path), path)).read_bytes()
    if str(path) in _run_in_place:  # what looks at the lines of the code finds those
        with tokenize.open(_run_in_place[str(path)]) as file:
            linecache.cache[str(path)] = (len(source), None, file.readlines(), str(path))
    return source


# Files that a script wrote, by where it looks for them, with where they lie: those of the user's stay as they are.
_written: dict[Path, str] = {}
_numbers = itertools.count()
_removed: set[Path] = set()  # folders of the user's that the script removed or moved, which stay too
# Folders that the script made, with the process that did; one that is forked leaves those of its parent.
_made: list[tuple[int, Path]] = []


def _aside(file: Any) -> str | None:
    """Where a file lies that the script wrote; None for another one."""
    return _written.get(Path(file).absolute()) if _written and isinstance(file, str | os.PathLike) else None


def _put_aside(file: Any) -> Any:
    """The path to write a file to: a temporary file if it exists already; for rounds, also if its folder exists."""
    if not isinstance(file, str | os.PathLike):
        return file
    path, folder = Path(file).absolute(), _folder()
    goes_aside = path.is_file() or (_new_ones_too and not path.exists() and path.parent.is_dir())
    aside = f"{folder}/{os.getpid()}-{next(_numbers)}-{path.name}"
    return _written.setdefault(path, aside) if goes_aside and not path.is_relative_to(folder.parent) else file


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="written-", dir=os.environ.get(SOCKETS)))


def _open_aside(function: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    grows = not {*mode} & {*"wx"} and isinstance(file, str | os.PathLike) and Path(file).is_file()
    large = grows and Path(file).stat().st_size > _MOST_COPIED
    if {*mode} & {*"wxa+"} and not _aside(file) and not (large and "r" in mode):
        before, file = file, _put_aside(file)
        if grows and not large and file is not before:
            shutil.copyfile(before, file)
    return function(_aside(file) or file, mode, *args, **kwargs)


def _move_aside(function: Callable[..., Any], src: Any, dst: Any, **kwargs: Any) -> Any:
    """Move a file, unless a file is in the way. Folders, and files that were there before, stay."""
    if _aside(src):
        _written[Path(dst).absolute()] = _written.pop(Path(src).absolute())
    elif not _is_old(src):
        return function(src, _put_aside(dst) if Path(src).is_file() else dst, **kwargs)
    elif Path(src).is_file():
        return shutil.copy2(src, _put_aside(dst))
    else:
        _removed.add(Path(src).absolute())
    return None


def _copy_aside(function: Callable[..., Any], src: Any, dst: Any, **kwargs: Any) -> Any:
    function(_aside(src) or src, _put_aside(Path(dst, Path(src).name) if Path(dst).is_dir() else dst), **kwargs)
    return dst


def _remove_nothing_old(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    """Remove a file or a folder, unless it was there before. The content of ``dir_fd`` was checked with its folder."""
    if kwargs.get("dir_fd") is None and isinstance(path, str | os.PathLike):
        if _written.pop(Path(path).absolute(), None):
            return None
        if _is_old(path):
            return _removed.add(Path(path).absolute())
    return function(path, *args, **kwargs)


def _make_folder(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    if not (_removed and Path(path).absolute() in _removed):
        function(path, *args, **kwargs)
        if kwargs.get("dir_fd") is None:
            _made.append((os.getpid(), Path(os.fsdecode(path)).absolute()))


def remove_made_folders() -> None:
    """Remove the folders that the script made in this process, such as a tracker's for its run, and their files."""
    for process, folder in reversed(_made):
        if process == os.getpid() and not _is_old(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_old(file: Any) -> bool:
    """Whether a file, or one in a folder, was written before any trial began."""
    if not isinstance(file, str | os.PathLike):
        return False
    path = Path(file)
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return any(one.lstat().st_mtime < _BEGUN_S for one in (path, *inside) if one.is_symlink() or one.exists())


_new_ones_too = False
# Functions of libraries that write files themselves, by their modules, with the place of the file in their arguments.
_WRITE = {"cv2": ("imwrite", 0), "safetensors.torch": ("serialize_file", 1), "torchvision.io.image": ("write_file", 0)}


def _write_aside(at: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args[:at], *map(_put_aside, args[at : at + 1]), *args[at + 1 :], **kwargs)


@functools.cache
def _guarded(*imported: tuple[str, str, int]) -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    """The functions that write files, each with its replacement; those of libraries too that are imported."""
    writers: list[tuple[Any, str, Callable[..., Any]]] = [
        *((owner, "open", _open_aside) for owner in (builtins, io)),
        *((os, name, _move_aside) for name in ("replace", "rename")),
        (os, "stat", lambda stat, path, **options: stat(_aside(path) or path, **options)),
        (os, "mkdir", _make_folder),
        (shutil, "rmtree", _remove_nothing_old),
        *((shutil, name, _copy_aside) for name in ("copyfile", "copy", "copy2")),
        *((os, name, _remove_nothing_old) for name in ("remove", "unlink", "rmdir")),
        (torch.serialization, "_open_zipfile_writer", functools.partial(_write_aside, 0)),  # of any torch.save
        (torch._C.ScriptModule, "save", functools.partial(_write_aside, 1)),
        *((sys.modules[one], name, functools.partial(_write_aside, at)) for one, name, at in imported),
    ]
    return tuple((owner, name, _for_scripts(getattr(owner, name), guarded)) for owner, name, guarded in writers)


@contextlib.contextmanager
def writing_aside(*, new_ones_too: bool) -> Iterator[None]:
    """Redirect a script's writes to existing files: it writes copies instead, and later reads find the copies.

    Its new files are made where it makes them, unless they are to lie aside too. The compilers' caches are written.
    """
    guarded = _guarded(*((one, *function) for one, function in _WRITE.items() if one in sys.modules))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in guarded]
    for owner, name, guard in guarded:
        setattr(owner, name, guard)
    try:
        with replaced(sys.modules[__name__], "_new_ones_too", new_ones_too):
            yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _for_scripts(original: Callable[..., Any], guarded: Callable[..., Any]) -> Callable[..., Any]:
    """A function that acts as ``guarded``, except for compilers and ours, also when called by Python's modules."""

    def call(*args: Any, **kwargs: Any) -> Any:
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and is_pythons_own(caller.f_code.co_filename):
            caller = caller.f_back
        goes_on = caller is None or any(part in caller.f_code.co_filename for part in (*_COMPILERS, str(PACKAGE)))
        return original(*args, **kwargs) if goes_on else guarded(original, *args, **kwargs)

    return call
