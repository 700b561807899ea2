"""The threads that building a model has started: the name, the origin, and whether each is idle.

Only the thread that forks goes on in a fork. An idle thread is no loss there unless somebody waits for its answer; one
that is at work may hold a lock that nobody releases any more.
"""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_TASKS = Path("/proc/self/task")
# Pools spin for a while after their last task, before they sleep. Seconds; OpenBLAS took 0.03 s on two cores.
_SETTLES_WITHIN_S = 0.5
_LOOK_EVERY_S = 0.02
# Functions of the standard library in which a thread waits for something to do: file, function.
_WAITS = frozenset(
    {
        ("threading.py", "wait"),
        ("queue.py", "get"),
        ("thread.py", "_worker"),  # concurrent.futures
        ("selectors.py", "select"),
    }
)


@dataclass(frozen=True, slots=True)
class StartedThread:
    """A thread beside the main one.

    ``origin`` is the module that it runs, empty for one that is not Python's. ``idle``: it waits for something to do.
    """

    name: str
    origin: str
    idle: bool

    def __str__(self) -> str:
        return f"{self.name} of {self.origin}" if self.origin else self.name


def thread_ids() -> frozenset[int]:
    """The system's numbers of this process's threads."""
    return frozenset(int(task.name) for task in _TASKS.iterdir())


def started_since(before: frozenset[int]) -> tuple[StartedThread, ...]:
    """The threads that have started since. Busy ones get half a second to become idle."""
    until = time.monotonic() + _SETTLES_WITHIN_S
    while True:
        found = _look_at(thread_ids() - before)
        if all(thread.idle for thread in found) or time.monotonic() > until:
            return found


def _look_at(ids: frozenset[int]) -> tuple[StartedThread, ...]:
    used = {number: _cpu_ticks(number) for number in ids}
    if used:
        time.sleep(_LOOK_EVERY_S)
    pythons = {thread.native_id: thread for thread in threading.enumerate()}
    frames = sys._current_frames()
    found = []
    for number, ticks in sorted(used.items()):
        own = pythons.get(number)
        if own is not None:
            found.append(_python_thread(own, frames))
        elif (now := _cpu_ticks(number)) is not None:  # one that has ended meanwhile is gone
            idle = now == ticks and _fields(number)[:1] == ["S"]
            found.append(StartedThread(_read(number, "comm").strip(), "", idle))
    return tuple(found)


# --- Python's threads -----------------------------------------------------------------------------------------


def _python_thread(thread: threading.Thread, frames: Mapping[int, FrameType]) -> StartedThread:
    stack = list(_outwards(frames.get(thread.ident or 0)))
    return StartedThread(thread.name, _module_of(thread, stack), _waits(stack))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits(stack: list[FrameType]) -> bool:
    """Whether the innermost function waits for something to do; one that waits to hand a result over does not."""
    places = [(Path(frame.f_code.co_filename).name, frame.f_code.co_name) for frame in stack]
    return bool(places) and places[0] in _WAITS and ("queue.py", "put") not in places


def _module_of(thread: threading.Thread, stack: list[FrameType]) -> str:
    if type(thread).__module__ != "threading":
        return type(thread).__module__
    modules = [str(frame.f_globals.get("__name__", "")) for frame in reversed(stack)]
    return next((module for module in modules if module != "threading"), "")


# --- others ---------------------------------------------------------------------------------------------------


def _read(number: int, file: str) -> str:
    try:
        return (_TASKS / str(number) / file).read_text()
    except OSError:
        return ""


def _cpu_ticks(number: int) -> tuple[str, str] | None:
    """The thread's CPU time so far, in user and system ticks; None when it is gone."""
    fields = _fields(number)
    return (fields[11], fields[12]) if fields else None


def _fields(number: int) -> list[str]:
    """The fields of the thread's ``stat``, from its state on: its name, which comes before, may hold anything."""
    return _read(number, "stat").rpartition(")")[2].split()
