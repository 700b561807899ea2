"""The files of a script: changed source files are run in their place, and its existing files are not overwritten."""

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

# Code that may write files, since it writes compiled code. PyTorch's other writes (torch.save) are the script's.
_COMPILERS = tuple(f"{folder}{part}" for folder in INSTALLED for part in ("torch/_", "torch/utils/cpp_ext", "triton/"))
_BEGUN_S = time.time()  # when this process began, in seconds since the epoch: no trial made an older file
_MOST_COPIED = 2**28  # bytes: before a script appends to a file or changes it in place, smaller files are copied

_run_in_place: dict[str, str] = {}


def run_in_place(read_as: Mapping[str, str]) -> None:
    """From now on, run other source files in place of the user's, under the names of the user's files."""
    _run_in_place.update(read_as)
    if read_as:
        get_code = compiled_by(lambda source, file: compile(source, file, "exec"))
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def compiled_by(compiled: Callable[[bytes, str], CodeType]) -> Callable[[SourceFileLoader, str], CodeType | None]:
    """Return a ``get_code`` for Python's source loader that compiles the user's modules with this function."""
    original: Callable[[SourceFileLoader, str], CodeType | None] = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        return original(loader, name) if is_library(path) else compiled(source_of(Path(path)), path)

    return get_code


def source_of(path: Path) -> bytes:
    """The text of a user's file, or of the file that is run in its place."""
    source = Path(_run_in_place.get(str(path), path)).read_bytes()
    if str(path) in _run_in_place:  # tracebacks and inspect then show these lines
        with tokenize.open(_run_in_place[str(path)]) as file:
            linecache.cache[str(path)] = (len(source), None, file.readlines(), str(path))
    return source


# Maps each path that a script wrote to the temporary file with its content. The user's files are not changed.
_written: dict[Path, str] = {}
_numbers = itertools.count()
_removed: set[Path] = set()  # folders of the user's that the script removed or moved, which stay too
# Folders that the script made, with the process that did; one that is forked leaves those of its parent.
_made: list[tuple[int, Path]] = []


def _aside(file: Any) -> str | None:
    """The temporary file with the content that the script wrote to this path; None if it did not write there."""
    return _written.get(Path(file).absolute()) if _written and isinstance(file, str | os.PathLike) else None


def _put_aside(file: Any) -> Any:
    """The path to write to: a temporary file if the file exists, or if new files go aside too and its folder exists."""
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
    """Move a file that the script made. Old files are copied instead, and old folders stay."""
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
    """Remove a file or a folder that is not old. Paths with ``dir_fd`` were checked together with their folder."""
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
    """Remove the folders that the script made in this process (a tracker's run folder, for example)."""
    for process, folder in reversed(_made):
        if process == os.getpid() and not _is_old(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_old(file: Any) -> bool:
    """Whether a file, or any file in a folder, is older than this process."""
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
        (torch.serialization, "_open_zipfile_writer", functools.partial(_write_aside, 0)),  # torch.save calls it
        (torch._C.ScriptModule, "save", functools.partial(_write_aside, 1)),
        *((sys.modules[one], name, functools.partial(_write_aside, at)) for one, name, at in imported),
    ]
    return tuple((owner, name, _for_scripts(getattr(owner, name), guarded)) for owner, name, guarded in writers)


@contextlib.contextmanager
def writing_aside(*, new_ones_too: bool) -> Iterator[None]:
    """Redirect a script's writes to existing files: it writes to copies, and later reads the copies.

    With ``new_ones_too``, new files are redirected as well. The compilers of PyTorch still write to their caches.
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
    """A function that calls ``guarded`` for a script, and ``original`` for PyTorch's compilers and for this package."""

    def call(*args: Any, **kwargs: Any) -> Any:
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and is_pythons_own(caller.f_code.co_filename):
            caller = caller.f_back
        goes_on = caller is None or any(part in caller.f_code.co_filename for part in (*_COMPILERS, str(PACKAGE)))
        return original(*args, **kwargs) if goes_on else guarded(original, *args, **kwargs)

    return call
