"""Commands run one at a time on a lane, each in an interpreter of its own: settings change a process's global state."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from catalogue import ROOT


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
