"""The journal: a session's events on disk, one JSON line each, flushed as they happen. Nothing measured is lost.

One process writes to it at a time. A line that is damaged, or that another version wrote, is left out and counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import UsageError, refusal_of
from advisor.experiment.events import KINDS, BlockTimed, Event, Held, ProgressMade, Said, TrialActivity
from advisor.experiment.past.kept_config import from_json, to_json
from advisor.experiment.request import Request
from advisor.figures.formatting import counted
from advisor.files.paths import content_of, is_file
from advisor.files.state_folder import make_private, state_folder
from advisor.recipe.settings import Settings
from advisor.records.secrets import arguments_without_secrets, without_secrets

SCHEMA = 1
# What a warning about damaged lines is about.
ABOUT_DAMAGE = "journal"
_FACTS = frozenset({"facts", "hardware", "profile", "workload"})
# Times and sizes by the units in their names: none is without end, as a loss may be.
_UNITS = ("_ms", "_s", "_bytes", "_per_sample", "seconds")
# Figures that something is divided by, beside the field that tells whose they are: a block's and a profile's.
_ABOVE_ZERO = (("samples", ("steps", "seconds")), ("phases", ("step_ms",)))
# Digits of the longest whole number in a line: bytes, nanoseconds and operations of a session have fewer.
_MOST_DIGITS = 24
_UNREADABLE = (OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_LOCK = "lock"
# A larger journal is not read: one of an hour's session has a few million bytes.
_LARGEST_BYTES = 256 * 2**20
# Fields of events that name a file of the session.
_FILES = frozenset({"log_path", "trace_path"})
_LONGEST_PID = 20
# Of interest only while they happen.
_UNRECORDED = (BlockTimed, Held, ProgressMade, TrialActivity)


def sessions_folder() -> Path:
    """The folder of the journals, inside the state folder."""
    return state_folder() / "sessions"


class Journal:
    """One session's journal, open for appending, from any thread. Raises UsageError while another process writes it."""

    def __init__(self, path: Path, request: Request) -> None:
        self.path = path
        self.request = request
        self._held = _hold(path)
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")
        if _ends_within_a_line(path):  # a crash cut it short: what follows is a line of its own
            self._file.write("\n")

    @classmethod
    def create(cls, request: Request) -> Journal:
        """A new journal with a name from the date and the time. Raises UsageError when the folder is not writable."""
        folder = sessions_folder()
        try:
            make_private(folder)
            path = _free_path(folder)
            journal = cls(path, request)
        except OSError as error:
            raise _unwritable(folder, error.strerror) from error
        if problem := journal._write(_header(request)):
            path.unlink()  # half a line, which would be the latest session
            raise _unwritable(folder, problem)
        return journal

    @property
    def session_id(self) -> str:
        """The name by which ``--resume``, ``report`` and ``export`` find the session."""
        return self.path.stem

    def log_path(self, trial: str) -> str:
        """The path of the file that gets a trial's output."""
        safe = "".join(c if c.isalnum() or c in "=-._" else "_" for c in trial)[:100]
        return str(self.path.with_suffix("") / f"{safe}.log")

    def record(self, event: Event) -> str:
        """Append an event, with the time in seconds since 1970, and flush it to the disk's cache.

        Returns why it could not be written, once; from then on nothing is.
        """
        if isinstance(event, _UNRECORDED):
            return ""
        at = round(time.time(), 3)
        return self._write({"event": type(event).__name__, "at": at, "data": msgspec.to_builtins(event)})

    def close(self) -> None:
        """Close the file, and let others write to it."""
        self._file.close()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _write(self, line: dict[str, Any]) -> str:
        # The standard library writes NaN, which a diverged loss may be; msgspec would write null.
        text = json.dumps(line, separators=(",", ":")) + "\n"
        with self._lock:
            if self._file.closed:
                return ""
            try:
                self._file.write(text)
                self._file.flush()
            except OSError as error:  # such as a full disk; what is half written ends the file
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
    """A session read back: its request and its events, as far as they were written.

    ``damaged`` counts the lines that could not be read. ``withheld`` names the values of the config that were not
    recorded, because they look like secrets, and ``withheld_arguments`` the target's arguments of that kind.
    """

    session_id: str
    path: Path
    started: datetime
    request: Request
    events: tuple[Event, ...]
    damaged: int = 0
    withheld: tuple[str, ...] = ()
    withheld_arguments: tuple[str, ...] = ()

    @property
    def damage(self) -> str:
        """A sentence on the lines that could not be read; empty where all could."""
        lost = f"{counted(self.damaged, 'line')} of the journal of {self.session_id} cannot be read"
        return f"{lost}; measurements may be missing" if self.damaged else ""

    def told(self) -> tuple[Event, ...]:
        """The events, and a warning where some could not be read."""
        return (*self.events, Said(self.damage, "warning", ABOUT_DAMAGE)) if self.damaged else self.events

    def check_arguments(self) -> None:
        """Raise UsageError where the target's arguments are not all known."""
        if self.withheld_arguments:
            names = ", ".join(self.withheld_arguments)
            raise UsageError(
                f"the target's arguments held secrets ({names}), which a session does not keep.",
                f"Give them again: `perf-advisor {self.request.target.target} --resume -- …`.",
            )


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


def session_ids() -> list[str]:
    """The ids of all sessions, the oldest first, also of those that cannot be read."""
    return [path.stem for path in _journals()]


def _journals() -> list[Path]:
    """Every journal, the oldest first; of those of one second the names sort otherwise. Raises OSError."""
    try:
        found = [path for path in sessions_folder().iterdir() if path.suffix == ".jsonl" and is_file(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=_started)


def _started(path: Path) -> tuple[float, str]:
    """The start of a journal's session, in seconds since 1970; of a damaged one its last change."""
    try:
        with path.open("rb") as file:
            return float(json.loads(file.readline(_LARGEST_BYTES))["started"]), path.stem
    except _UNREADABLE:
        return path.stat().st_mtime if path.exists() else 0.0, path.stem


def _hold(path: Path) -> int | None:
    """Hold the journal for this process; None where this process holds it already. Raises UsageError and OSError."""
    lock = path.with_suffix("") / _LOCK
    make_private(lock.parent)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(handle, _LONGEST_PID, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        if holder == str(os.getpid()):
            return None
        raise UsageError(
            f"the session {path.stem} is being written by another process, {holder}.",
            f"Wait for its end, or end it: `kill {holder}`.",
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def _ends_within_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _free_path(folder: Path) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = folder / (f"{stamp}.jsonl" if number == 0 else f"{stamp}-{number}.jsonl")
        try:
            path.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise OSError(f"no free name in {folder}")


def _read(path: Path) -> PastSession:
    try:
        first, *lines = content_of(path, _LARGEST_BYTES).split(b"\n")
        header = json.loads(first)
        schema = header["schema"]
        if schema != SCHEMA:
            raise UsageError(
                f"the session {path.stem} cannot be read: it has the form {schema!r}, and this version reads {SCHEMA}.",
                "Read it with the version of perf-advisor that wrote it.",
            )
        request = _request(header)
        withheld = msgspec.convert(header.get("withheld", ()), tuple[str, ...])
        withheld_arguments = msgspec.convert(header.get("withheld_arguments", ()), tuple[str, ...])
        started = datetime.fromtimestamp(header["started"])
    except OSError as error:
        refused = refusal_of(error)
        raise UsageError(
            f"the session {path.stem} cannot be read: {error.strerror or error}.",
            refused.hint if refused else "`perf-advisor sessions` lists those that can be read.",
        ) from error
    except _UNREADABLE as error:
        raise UsageError(
            f"the session {path.stem} cannot be read: the first line of its journal is damaged.",
            f"Restore {path}; `perf-advisor sessions` lists those that can be read.",
        ) from error
    if lines and not lines[-1]:
        lines.pop()  # nothing follows the last line's end
    events = [_event(line, path.with_suffix("")) for line in lines]
    whole = tuple(event for event in events if event is not None)
    return PastSession(path.stem, path, started, request, whole, len(events) - len(whole), withheld, withheld_arguments)


def _header(request: Request) -> dict[str, Any]:
    """The first line of a journal: the request, with the config's types and without probable secrets."""
    config, withheld = without_secrets(request.target.config)
    arguments, withheld_arguments = arguments_without_secrets(request.target.arguments)
    target = replace(request.target, config=None, arguments=arguments)
    return {
        "schema": SCHEMA,
        "started": time.time(),
        "request": msgspec.to_builtins(replace(request, target=target)),
        "config": to_json(config),
        "withheld": withheld,
        "withheld_arguments": withheld_arguments,
    }


def _request(header: dict[str, Any]) -> Request:
    request = msgspec.convert(header["request"], Request)
    if header.get("config") is None:
        return request
    config = msgspec.convert(from_json(header["config"]), dict[str, Any])
    return replace(request, target=replace(request.target, config=config))


def _event(line: bytes, folder: Path) -> Event | None:
    """The event of a line; None where it is damaged, cut short, or of another version.

    The files that it names lie in the session's own folder: no other is shown or copied because a journal says so.
    """
    try:
        entry = json.loads(line, parse_int=_whole_number)
        for mapping in _mappings(entry["data"]):
            _check_mapping(mapping)
            mapping |= {key: _own_file(text, folder) for key in _FILES if isinstance(text := mapping.get(key), str)}
        _check_figures(entry["data"])
        event: Event = msgspec.convert(entry["data"], KINDS[entry["event"]])
    except (*_UNREADABLE, UsageError):
        return None
    return event


def _whole_number(digits: str) -> int:
    """Return the number of these digits. Raises ValueError for one that nothing measured can be."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a line's data."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(inner)


def _check_mapping(mapping: dict[str, Any]) -> None:
    """Raise UsageError for a key that no setting can have, and ValueError for no time or no steps.

    A report would stumble over either.
    """
    if isinstance(settings := mapping.get("settings"), dict):
        Settings(settings)
    if "recipe" in mapping and isinstance(key := mapping.get("key"), str):  # a candidate
        Settings({key: True})
    for beside, keys in _ABOVE_ZERO:
        if beside in mapping and any(mapping.get(key, 1) <= 0 for key in keys):
            raise ValueError(f"{' or '.join(keys)} of none")


def _check_figures(value: Any, *, finite: bool = False) -> None:
    """Raise ValueError for an infinite figure that has a unit."""
    if isinstance(value, float) and finite and not math.isfinite(value):
        raise ValueError(f"a figure of {value}")
    if isinstance(value, list):
        for inner in value:
            _check_figures(inner, finite=finite)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_figures(inner, finite=finite or key in _FACTS or key.endswith(_UNITS))


def _own_file(text: str, folder: Path) -> str:
    """The file of that name in the session's folder, wherever that lies now; empty for a link, which may lead away."""
    name = text.rpartition("/")[2]
    own = folder / name
    return str(own) if name and not own.is_symlink() else ""
