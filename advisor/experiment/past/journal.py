"""The journal: a session's events on disk, one JSON line each, flushed as they happen. No measurement is lost.

One process writes to it at a time. Lines that are damaged or from another version are left out and counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from pprint import pformat
from typing import Any, TextIO

import msgspec

from advisor.errors import UsageError, refusal_of
from advisor.experiment.events import FORMER_KINDS, KINDS, BlockTimed, Event, Paused, ProgressMade, Said, TrialActivity
from advisor.experiment.request import Request
from advisor.figures.formatting import counted
from advisor.files.folders import make_private, state_folder
from advisor.files.paths import content_of, is_file
from advisor.recipe.settings import Settings
from advisor.records.secrets import arguments_without_secrets

SCHEMA = 1
_UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError, OSError)
_LOCK = "lock"
# A larger journal is not read; an hour's session has a few million bytes.
_LARGEST_BYTES = 256 * 2**20
# Fields of events that name a file of the session.
_FILES = frozenset({"log_path", "trace_path"})
_UNRECORDED = (BlockTimed, Paused, ProgressMade, TrialActivity)  # of interest only while they happen
_FORMER_NAME = re.compile(rb'(?<=")stack(?=: |, | with)|(?<=the |its )stack\b')  # combinations in older journals


def sessions_folder() -> Path:
    """The folder of the journals, inside the state folder."""
    return state_folder() / "sessions"


class Journal:
    """One session's journal, open for appending from any thread. Raises UsageError if another process writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holds = _locked(path)
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")
        if path.stat().st_size:  # a crash may have cut the last line short
            self._file.write("\n")

    @classmethod
    def create(cls, request: Request) -> Journal:
        """A new journal named by the date and time. Raises UsageError if the folder is not writable."""
        folder = sessions_folder()
        try:
            make_private(folder)
            path = _free_path(folder)
            journal = cls(path)
        except OSError as error:
            raise _unwritable(folder, error.strerror) from error
        arguments, withheld = arguments_without_secrets(request.target.arguments)
        kept = replace(request, target=replace(request.target, config=None, arguments=arguments))
        fingerprint = fingerprint_of(request.target.config)
        header = _Header(kept, config_fingerprint=fingerprint, withheld_arguments=withheld)
        if problem := journal._write(msgspec.to_builtins(header)):
            path.unlink()  # half a line, which would be the latest session
            raise _unwritable(folder, problem)
        return journal

    @property
    def session_id(self) -> str:
        """The name by which ``--resume``, ``report`` and ``export`` find the session."""
        return self.path.stem

    def log_path(self, trial: str) -> str:
        """The path of the file for a trial's output."""
        safe = "".join(c if c.isalnum() or c in "=-._" else "_" for c in trial)[:100]
        return str(self.path.with_suffix("") / f"{safe}.log")

    def record(self, event: Event) -> str:
        """Append an event, with the time in seconds since 1970. Returns the reason if it fails for the first time."""
        if isinstance(event, _UNRECORDED):
            return ""
        at = round(time.time(), 3)
        return self._write({"event": type(event).__name__, "at": at, "data": msgspec.to_builtins(event)})

    def close(self) -> None:
        """Close the file and let other processes write to it."""
        self._file.close()
        self._holds.close()

    def _write(self, line: dict[str, Any]) -> str:
        # The standard library writes NaN, which a diverged loss may be; msgspec would write null.
        text = json.dumps(line, separators=(",", ":"))
        with self._lock:
            if self._file.closed:
                return ""
            try:
                self._file.write(f"{text}\n")
                self._file.flush()
            except OSError as error:  # such as a full disk; a half-written line ends the file
                with contextlib.suppress(OSError):
                    self._file.close()
                return error.strerror or str(error)
        return ""


def _unwritable(folder: Path, reason: str | None) -> UsageError:
    return UsageError(
        f"the session's journal cannot be written to {folder}: {reason}.",
        "Make room, or set PERF_ADVISOR_STATE to a folder that is writable.",
    )


@dataclass(frozen=True, slots=True)
class PastSession:
    """A session read from disk: its request and the events that were written."""

    session_id: str
    path: Path
    started: datetime
    request: Request
    events: tuple[Event, ...]
    damage: str = ""  # a sentence on unreadable lines; the first event says it too
    config_fingerprint: str = ""  # replaces the config, which is not recorded
    withheld_arguments: tuple[str, ...] = ()  # names of arguments that look like secrets

    def check_arguments(self) -> None:
        """Raise UsageError if some of the target's arguments are not known."""
        if self.withheld_arguments:
            names = ", ".join(self.withheld_arguments)
            raise UsageError(
                f"the target's arguments held secrets ({names}), which a session does not keep.",
                f"Give them again: `perf-advisor {self.request.target.target} --resume -- …`.",
            )


def open_session(session_id: str | None = None) -> PastSession:
    """A past session by its id or unique prefix, or the latest session for None. Raises UsageError."""
    paths = _journals()
    exact = [path for path in paths if path.stem == session_id]
    matching = exact or [path for path in paths if session_id is None or path.stem.startswith(session_id)]
    if not matching:
        wanted = f"there is no session {session_id!r}." if session_id else "there is no session yet."
        raise UsageError(wanted, "`perf-advisor sessions` lists them.")
    if session_id is not None and len(matching) > 1:
        raise UsageError(f"{session_id!r} is the beginning of {len(matching)} sessions.", "Give more of the name.")
    return _read(matching[-1])


def list_sessions() -> Iterator[PastSession]:
    """Every session that can be read, the latest first."""
    for path in reversed(_journals()):
        with contextlib.suppress(UsageError):
            yield _read(path)


def session_ids() -> list[str]:
    """The ids of all sessions, the oldest first, including those that cannot be read."""
    return [path.stem for path in _journals()]


def _journals() -> list[Path]:
    """Every journal, sorted by the date in its name, the oldest first. Raises OSError."""
    try:
        found = [path for path in sessions_folder().iterdir() if path.suffix == ".jsonl" and is_file(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.stem)])


def _locked(path: Path) -> TextIO:
    """The open file that locks the journal for this process. Raises OSError; UsageError if another process has it."""
    folder = path.with_suffix("")
    make_private(folder)
    lock = os.fdopen(os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = lock.read() or "unknown"
        lock.close()
        raise UsageError(
            f"the session {path.stem} is being written by another process, {holder}.",
            f"Wait for its end, or end it: `kill {holder}`.",
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _free_path(folder: Path) -> Path:
    """An empty file named by the date and time; with a number if two sessions began in the same second."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in itertools.count():
        path = folder / f"{stamp}{f'-{number}' if number else ''}.jsonl"
        with contextlib.suppress(FileExistsError):
            path.touch(mode=0o600, exist_ok=False)
            break
    return path


@dataclass(frozen=True, slots=True)
class _Header:
    """The first line of a journal: the request without its config and without arguments that look like secrets."""

    request: Request
    schema: int = SCHEMA
    started: float = field(default_factory=time.time)
    config_fingerprint: str = ""
    withheld_arguments: tuple[str, ...] = ()
    config: Any = None  # of older journals


def fingerprint_of(config: Any) -> str:
    """A text that is different for different configs: values and their types count."""
    return "" if config is None else hashlib.sha256(pformat(config).encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> PastSession:
    try:
        first, *lines = content_of(path, _LARGEST_BYTES).split(b"\n")
    except OSError as error:
        refused = refusal_of(error)
        raise UsageError(
            f"the session {path.stem} cannot be read: {error.strerror or error}.",
            refused.hint if refused else "`perf-advisor sessions` lists those that can be read.",
        ) from error
    try:
        line = json.loads(first)
        if line["schema"] != SCHEMA:
            raise UsageError(
                f"the session {path.stem} cannot be read: it has the form {line['schema']!r}, and not {SCHEMA}.",
                "Read it with the version of perf-advisor that wrote it.",
            )
        header = msgspec.convert(line, _Header)
        started = datetime.fromtimestamp(header.started)
    except _UNREADABLE as error:
        raise UsageError(
            f"the session {path.stem} cannot be read: the first line of its journal is damaged.",
            f"Restore {path}; `perf-advisor sessions` lists those that can be read.",
        ) from error
    events, damaged, damage = list[Event](), 0, ""
    for text in filter(None, lines):
        try:
            entry = json.loads(_FORMER_NAME.sub(b"combination", text))
            if (name := entry["event"]) not in FORMER_KINDS:
                # A journal may only name the session's own files; no other file is shown or copied because of it.
                events.append(msgspec.convert(_with_own_files(entry["data"], path.with_suffix("")), KINDS[name]))
        except (*_UNREADABLE, UsageError):
            damaged += 1
    if damaged:
        damage = f"{counted(damaged, 'line')} of the journal of {path.stem} cannot be read; measurements may be missing"
        events.insert(0, Said(damage, "warning"))
    fingerprint = header.config_fingerprint or ("unknown" if header.config is not None else "")
    withheld = header.withheld_arguments
    return PastSession(path.stem, path, started, header.request, tuple(events), damage, fingerprint, withheld)


def _with_own_files(value: Any, folder: Path) -> Any:
    """An event's data with the paths of its files moved to the session's present folder."""
    if isinstance(value, list):
        return [_with_own_files(inner, folder) for inner in value]
    if not isinstance(value, dict):
        return value
    data = {key: _with_own_files(inner, folder) for key, inner in value.items()}
    Settings(data.get("settings"))  # raises UsageError for a damaged key
    for key in _FILES & data.keys():
        own = folder / str(data[key]).rpartition("/")[2]
        data[key] = "" if own == folder or own.is_symlink() else str(own)  # a link may lead away
    return data
