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
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil

# Set, torch.cuda.is_available() asks NVML and leaves CUDA alone.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
# The words of CUDA in a fork of a process in which its driver was started.
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
        if not wait([here, process.sentinel], limit_s):
            raise TooSlowError(f"took longer than {limit_s:.0f} s")
        failure, result = here.recv()
        process.join(ENDING_S)
    except EOFError:
        process.join()
        raise FailedError(f"ended with exit code {process.exitcode}, see {log.name}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the loaders' workers and the compilers
        process.join()
    if failure:
        raise FailedError(failure)
    return result


def _answer(there: Any, log: Path, environment: dict[str, str], function: Any, arguments: Any) -> None:
    os.setsid()
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.__stdout__.fileno())
        os.dup2(file.fileno(), sys.__stderr__.fileno())
    os.environ.update(environment)
    try:
        answer = ("", function(*arguments))
    except Exception as error:
        traceback.print_exc()
        answer = (in_one_line(error), None)
    sys.stdout.flush()
    sys.stderr.flush()
    there.send(answer)


def in_one_line(error: Exception) -> str:
    """An exception as its class and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


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


def end_with_children(pid: int) -> None:
    """Kill a process and all that it has started, also in sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
