"""Lanes: work on several GPUs at a time.

A lane has one GPU and its share of the cores, and takes one piece of work after the other from a common queue. Its
commands run one at a time, each in an interpreter of its own: settings change a process's global state.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from catalogue import ROOT


@dataclass(frozen=True, slots=True)
class Lane:
    """One of several lanes, by its number."""

    number: int
    of: int

    @property
    def prefix(self) -> list[str]:
        """The words before a command that limit it to this lane's cores; empty if there are fewer cores than lanes."""
        cores = sorted(os.sched_getaffinity(0))
        each = len(cores) // self.of
        own = cores[self.number * each : (self.number + 1) * each] if self.of > 1 else []
        return ["taskset", "--cpu-list", ",".join(map(str, own))] if own else []

    @property
    def environment(self) -> dict[str, str]:
        """The lane's GPU: the visible one with the lane's number; any GPU for a single lane."""
        if self.of == 1:
            return {}
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        return {"CUDA_VISIBLE_DEVICES": visible[self.number] if visible else str(self.number)}

    def say(self, what: str, text: str) -> None:
        """Print one line of progress."""
        print(f"{time.strftime('%H:%M:%S')} lane {self.number} {what}: {text}", file=sys.stderr, flush=True)


def run_lanes(work: Sequence[Callable[[Lane], None]], lanes: int) -> None:
    """Do all work on a list; each piece gets the lane that does it."""
    left, lock = list(work), threading.Lock()

    def empty(lane: Lane) -> None:
        while True:
            with lock:
                if not left:
                    return
                task = left.pop(0)
            task(lane)

    threads = [threading.Thread(target=empty, args=(Lane(number, lanes),), daemon=True) for number in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interruption
        for child in psutil.Process().children():
            end_with_children(child.pid)
        raise


class FailedError(Exception):
    """A command gave no result; the text says why."""


class TooSlowError(FailedError):
    """A command gave no result in time."""


def run_command(
    command: Sequence[str], environment: Mapping[str, str], log: Path, limit_s: float, fine: Sequence[int] = (0,)
) -> None:
    """Run a command from the repository's root, in this environment with ``environment`` added.

    Raises FailedError where its exit code is not one of ``fine``, TooSlowError where it takes longer than ``limit_s``.
    """
    environment = {**os.environ, **environment}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # ends as for a user's Ctrl-C, with its trials
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            raise TooSlowError(f"the command took longer than {limit_s:.0f} s, see {log.name}") from None
        finally:
            end_with_children(process.pid)
            process.wait()
    if code not in fine:
        last = ["no output", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()][-1]
        raise FailedError(f"the command ended with exit code {code}, see {log.name}: {last}")


def in_one_line(error: Exception) -> str:
    """An exception as its class and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def end_with_children(pid: int) -> None:
    """Kill a process and all that it has started, also in sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
