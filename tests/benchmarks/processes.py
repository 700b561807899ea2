"""Functions run in processes of their own, one at a time: settings change the global state of a process.

A process is forked from this one, which has imported torch and holds no CUDA context; or it is a fresh interpreter,
where something has to be in the environment before Python starts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

# Set, torch.cuda.is_available() asks NVML and leaves CUDA alone.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
# What CUDA says in a fork of a process in which its driver was started.
_SPOILED = "initialization error"
# Seconds that a process may take to end after its answer, with its workers and compilers.
ENDING_S = 5.0


class FailedError(Exception):
    """A process gave no result; the text says why."""


class TooSlowError(FailedError):
    """A process gave no result in time."""


def run_apart(
    function: Callable[..., Any],
    *arguments: Any,
    environment: Mapping[str, str],
    fresh: bool = False,
    log: Path,
    limit_s: float,
) -> Any:
    """Return the result of ``function`` from a process of its own, whose output goes to ``log``.

    Where forks cannot use CUDA, since a library has started the driver in this process, it is run in a fresh one.
    Raises FailedError when it raises, dies, or takes longer than ``limit_s``.
    """
    try:
        return _run_once("spawn" if fresh else "fork", limit_s, log, dict(environment), function, arguments)
    except FailedError as error:
        if fresh or _SPOILED not in str(error):
            raise
    return _run_once("spawn", limit_s, log, dict(environment), function, arguments)


def _run_once(start: str, limit_s: float, log: Path, environment: dict[str, str], *call: Any) -> Any:
    context: Any = multiprocessing.get_context(start)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, log, environment, *call))
    with environment_with(environment):
        process.start()
    there.close()
    try:
        ready = wait([here, process.sentinel], limit_s)
        if not ready:
            raise TooSlowError(f"took longer than {limit_s:.0f} s")
        try:
            failure, result = here.recv()
        except EOFError:
            process.join()
            raise FailedError(f"ended with exit code {process.exitcode}, see {log.name}") from None
    finally:
        _end(process, ENDING_S if ready else 0.0)
    if failure:
        raise FailedError(failure)
    return result


def _answer(there: Connection, log: Path, environment: dict[str, str], function: Any, arguments: Any) -> None:
    os.setsid()
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.__stdout__.fileno())
        os.dup2(file.fileno(), sys.__stderr__.fileno())
    os.environ.update(environment)
    try:
        answer = ("", function(*arguments))
    except Exception as error:
        traceback.print_exc()
        answer = (f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}", None)
    sys.stdout.flush()
    sys.stderr.flush()
    there.send(answer)


@contextlib.contextmanager
def environment_with(wanted: Mapping[str, str]) -> Iterator[None]:
    """The variables of the environment with these added, until the end."""
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def end_children(pid: int, spared: Collection[psutil.Process] = ()) -> None:
    """Kill all that a process has started, also in sessions of their own, but those that are spared."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child not in spared:
                    child.kill()


def _end(process: BaseProcess, patience_s: float) -> None:
    """Wait for a process to end, then end what is left of it and of its group."""
    process.join(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
