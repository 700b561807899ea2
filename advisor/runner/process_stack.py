"""Finds, from the parent, the user's code that a slow process is in: the process writes its stack to its log."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil

from advisor.process.streams import STACK_BEGINS, TELL_WHERE

LOG_TAIL_BYTES = 2000
# Limits of a stack: bytes that are read, calls that are told, and seconds of waiting for it.
_STACK_BYTES = 2**16
_CALLS_TOLD = 8
_WAIT_S = 1.0
_LOOK_EVERY_S = 0.05
# Files, in the calls of a stack, of what speaks to other machines.
_NETWORK = (
    "/huggingface_hub/",
    "/httpx/",
    "/httpcore/",
    "/urllib3/",
    "/urllib/",
    "/http/client.py",
    "/requests/",
    "/ssl.py",
)
_NO_NETWORK = (
    "It waited for the network: fetch what it needs first (`hf download NAME`) and set HF_HUB_OFFLINE=1, or see why "
    "there is no answer."
)
# Files, in the calls of a stack, of what waits for another process.
_PROCESSES = ("/multiprocessing/popen_", "/multiprocessing/spawn.py")
_NO_PROCESSES = "It waited for a process that it had started, in which nothing is measured: let this one do the work."
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def stands_still(pid: int | None) -> bool:
    """Whether a process was stopped by a signal, as by itself, and so takes no other but SIGKILL."""
    with contextlib.suppress(psutil.Error):
        return pid is not None and psutil.Process(pid).status() in _STOPPED
    return False


def out_of_memory_kills() -> int | None:
    """Count of processes killed by the kernel for lack of memory since it started; None where it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def innermost_calls(pid: int, log_path: str) -> str:
    """The innermost calls that a process is in, by asking it; empty for one that cannot tell."""
    if stands_still(pid):
        return ""
    told, until = last_stack(log_path), time.monotonic() + _WAIT_S
    before = told
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, TELL_WHERE)
        while told == before and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
            told = last_stack(log_path)
        time.sleep(_LOOK_EVERY_S)  # the rest of it
        told = last_stack(log_path)
    return told if told != before else ""


def last_stack(log_path: str) -> str:
    """The innermost calls of the last stack in a log, after a line that introduces them; empty when there is none."""
    calls = tail(log_path, _STACK_BYTES).rpartition(STACK_BEGINS)
    innermost = "\n".join(calls[2].splitlines()[:_CALLS_TOLD])
    return f"When its time was over it was here, the innermost call first:\n{innermost}" if calls[1] else ""


def advice(calls: str, hint: str) -> tuple[str, str]:
    """The hint for a process that was given up in these calls, with the calls where they help.

    ``hint`` is that of a process that did not wait for another machine.
    """
    if any(part in calls for part in _NETWORK):
        return _NO_NETWORK, ""
    return (_NO_PROCESSES, calls) if any(part in calls for part in _PROCESSES) else (hint, calls)


def tail(path: str, length: int = LOG_TAIL_BYTES) -> str:
    """The end of a log, which may be of any size; ``length`` in bytes."""
    try:
        with Path(path).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - length))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""
