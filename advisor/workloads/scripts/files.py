"""The files of a script: run from others in their place, and written elsewhere once its step was seen."""

import builtins
import contextlib
import functools
import io
import linecache
import os
import shutil
import sys
import tempfile
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
_WRITING = frozenset("wax+")
_PREFIX = "perf-advisor-files-"


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


class _Elsewhere:
    """Files of the trial's own in place of those that the script would write to."""

    def __init__(self) -> None:
        self._folder, self._pid = Path(), 0

    def path(self, path: Any, mode: str = "r") -> Any:
        """The path that is opened in this mode: of the trial's own file where that is written to, or has been."""
        if not isinstance(path, str | os.PathLike) or _is_special(Path(path).absolute()):
            return path
        own = self._own_folder().joinpath(*Path(os.path.normpath(Path(path).absolute())).parts[1:])
        if _WRITING.isdisjoint(mode):
            return str(own) if own.exists() else path
        if not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            if "w" not in mode and Path(path).is_file():
                shutil.copyfile(path, own)
        return str(own)

    def is_own(self, path: Any) -> bool:
        """Whether a path has been written to."""
        return self.path(path) is not path

    def _own_folder(self) -> Path:
        """The folder of this process. A forked one begins with the files of its parent."""
        if self._pid != os.getpid():
            before, self._pid = self._folder, os.getpid()
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=os.environ.get("TMPDIR")))  # which is removed
            if before.name:
                shutil.copytree(before, self._folder, dirs_exist_ok=True)
        return self._folder


def _is_special(path: Path) -> bool:
    """Whether a path is a device's, or in such a folder or the process's own one for temporary files already."""
    own = os.environ.get("TMPDIR", "")
    return str(path).startswith(("/dev/", "/proc/", f"{tempfile.gettempdir()}/{_PREFIX}", *filter(None, [own])))


_ELSEWHERE = _Elsewhere()


def _open_elsewhere(function: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    return function(_ELSEWHERE.path(file, mode), mode, *args, **kwargs)


def _write_elsewhere(function: Callable[..., Any], file: Any) -> Any:
    return function(_ELSEWHERE.path(file, "w"))


def _tensors_elsewhere(function: Callable[..., Any], tensors: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    return function(tensors, _ELSEWHERE.path(file, "w"), *args, **kwargs)


def _move_elsewhere(function: Callable[..., Any], src: Any, dst: Any, **kwargs: Any) -> Any:
    """Move a file of the trial's own; one of the user's is copied, and stays where it is."""
    to = _ELSEWHERE.path(dst, "w")
    return function(_ELSEWHERE.path(src), to, **kwargs) if _ELSEWHERE.is_own(src) else shutil.copy2(src, to)


def _leave_mode(function: Callable[..., Any], *_: Any, **__: Any) -> None:
    """Copy no mode to a file: its content has gone elsewhere."""


def _make_elsewhere(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a folder for the files that come to be in it."""
    if Path(path).exists():
        return function(path, *args, **kwargs)
    return Path(_ELSEWHERE.path(path, "w")).mkdir(exist_ok=True)


def _remove_elsewhere(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    """Remove a file or a folder of the trial's own. What is in ``dir_fd`` was looked at with its folder."""
    is_users = kwargs.get("dir_fd") is None and not _ELSEWHERE.is_own(path) and Path(path).exists()
    return None if is_users else function(_ELSEWHERE.path(path), *args, **kwargs)


_WRITERS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (builtins, "open", _open_elsewhere),
    (io, "open", _open_elsewhere),
    (os, "replace", _move_elsewhere),
    (os, "rename", _move_elsewhere),
    (os, "mkdir", _make_elsewhere),
    *((shutil, name, _leave_mode) for name in ("copymode", "copystat")),
    (shutil, "rmtree", _remove_elsewhere),
    *((os, name, _remove_elsewhere) for name in ("remove", "unlink", "rmdir")),
)


# Those of torch.save and torch.load, which scripts may have imported by their names.
_OF_TORCH: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch.serialization, "_open_zipfile_writer", _write_elsewhere),
    (torch.serialization, "_open_file_like", _open_elsewhere),
)


@functools.cache
def _guarded(*, safetensors: bool) -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    """What writes, with the function in its place; of safetensors too, where the script has imported that."""
    writers = [*_WRITERS]
    if safetensors:
        writers.append((sys.modules["safetensors.torch"], "serialize_file", _tensors_elsewhere))
    found = [(owner, name, _for_scripts(getattr(owner, name), guarded)) for owner, name, guarded in writers]
    return (*found, *((owner, name, functools.partial(one, getattr(owner, name))) for owner, name, one in _OF_TORCH))


@contextlib.contextmanager
def writing_elsewhere() -> Iterator[None]:
    """Have the script write to files of the trial's own and leave the user's. PyTorch's caches stay where they are."""
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
