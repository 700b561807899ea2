"""The journal: a session's events on disk, one JSON line each, flushed as they happen. Nothing measured is lost."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from advisor.errors import UsageError
from advisor.experiment.events import Event, Held, ProgressMade, TrialActivity
from advisor.experiment.request import Request
from advisor.state_folder import state_folder

SCHEMA = 1
_EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
# Of interest only while they happen.
_UNRECORDED = (Held, ProgressMade, TrialActivity)


def sessions_folder() -> Path:
    """Where the journals are: in the state folder."""
    return state_folder() / "sessions"


class Journal:
    """One session's journal, open for appending, from any thread."""

    def __init__(self, path: Path, request: Request) -> None:
        self.path = path
        self.request = request
        _drop_cut_line(path)
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    @classmethod
    def create(cls, request: Request) -> Journal:
        """A new journal with a name from the date and the time. Raises UsageError when the folder is not writable."""
        folder = sessions_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = _free_path(folder)
            journal = cls(path, request)
        except OSError as error:
            raise UsageError(
                f"the session's journal cannot be written to {folder}: {error.strerror}",
                "Set PERF_ADVISOR_STATE to a folder that is writable.",
            ) from error
        journal._write({"schema": SCHEMA, "started": time.time(), "request": msgspec.to_builtins(request)})
        return journal

    @property
    def session_id(self) -> str:
        """The name by which ``--resume``, ``report`` and ``export`` find the session."""
        return self.path.stem

    def log_path(self, trial: str) -> str:
        """Where a trial's output goes."""
        safe = "".join(c if c.isalnum() or c in "=-._" else "_" for c in trial)[:100]
        return str(self.path.with_suffix("") / f"{safe}.log")

    def record(self, event: Event) -> None:
        """Append an event, with the time in seconds since 1970, and flush it to the disk's cache."""
        if not isinstance(event, _UNRECORDED):
            at = round(time.time(), 3)
            self._write({"event": type(event).__name__, "at": at, "data": msgspec.to_builtins(event)})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        # The standard library writes NaN, which a diverged loss may be; msgspec would write null.
        text = json.dumps(line, separators=(",", ":")) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(text)
                self._file.flush()


@dataclass(frozen=True, slots=True)
class PastSession:
    """A session read back: its request and its events, as far as they were written."""

    session_id: str
    path: Path
    started: datetime
    request: Request
    events: tuple[Event, ...]


def open_session(session_id: str | None = None) -> PastSession:
    """A past session by its id (or its unique beginning), the latest when None. Raises UsageError."""
    paths = _journals()
    matching = [path for path in paths if session_id is None or path.stem.startswith(session_id)]
    if not matching:
        wanted = f"there is no session {session_id!r}." if session_id else "there is no session yet."
        raise UsageError(wanted, "`perf-advisor sessions` lists them.")
    exact = [path for path in matching if path.stem == session_id]
    if session_id is not None and len(matching) > 1 and not exact:
        raise UsageError(f"{session_id!r} is the beginning of {len(matching)} sessions.", "Give more of the name.")
    return _read(exact[0] if exact else matching[-1])


def list_sessions() -> Iterator[PastSession]:
    """Every session that can be read, the latest first."""
    for path in reversed(_journals()):
        try:
            yield _read(path)
        except UsageError:
            continue


def _journals() -> list[Path]:
    return sorted(sessions_folder().glob("*.jsonl"))


def _drop_cut_line(path: Path) -> None:
    """Cut off a last line that a crash left unfinished: what is appended to it could never be read."""
    if not path.is_file():
        return
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(path, whole)


def _free_path(folder: Path) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = folder / (f"{stamp}.jsonl" if number == 0 else f"{stamp}-{number}.jsonl")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise OSError(f"no free name in {folder}")


def _read(path: Path) -> PastSession:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(lines[0])
        request = msgspec.convert(header["request"], Request)
        started = datetime.fromtimestamp(header["started"])
    except (OSError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"the session {path.stem} cannot be read: {error}", "It may be from another version."
        ) from error
    return PastSession(path.stem, path, started, request, tuple(_events(lines[1:])))


def _events(lines: list[str]) -> Iterator[Event]:
    """The events of a journal; a last line that was cut short by a crash ends them."""
    for line in lines:
        try:
            entry = json.loads(line)
            yield msgspec.convert(entry["data"], _EVENTS[entry["event"]])
        except (KeyError, TypeError, ValueError):
            return
