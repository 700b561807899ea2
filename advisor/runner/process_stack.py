"""The reasons why a process was killed or given up, as its parent can tell them."""

import contextlib
import resource
from pathlib import Path

import psutil

from advisor.figures.formatting import format_bytes, format_seconds

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
# Limits that end a process before it can say so, by the letter of `ulimit`, each with a text of the most it allows.
_LIMITS = {
    "t": (resource.RLIMIT_CPU, lambda most: f"{format_seconds(most)} of processor time"),
    "v": (resource.RLIMIT_AS, lambda most: f"{format_bytes(most)} of address space"),
    "d": (resource.RLIMIT_DATA, lambda most: f"{format_bytes(most)} of data"),
}
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


def limits(letters: str = "".join(_LIMITS)) -> str:
    """A hint that names limits of this process, which its children have too; empty where it has none of these."""
    most = {letter: _LIMITS[letter][1](allowed) for letter in letters if (allowed := _allowed(letter)) is not None}
    if not most:
        return ""
    commands = "; ".join(f"ulimit -{letter} unlimited" for letter in most)
    return f"Here a process may take {' and '.join(most.values())}: allow more with `{commands}`."


def _allowed(letter: str) -> int | None:
    most, _ = resource.getrlimit(_LIMITS[letter][0])
    return None if most == resource.RLIM_INFINITY else most


def advice(calls: str, hint: str) -> tuple[str, str]:
    """The hint for a process that was given up in these calls, with the calls where they help.

    ``hint`` is that of a process that did not wait for another machine.
    """
    if any(part in calls for part in _NETWORK):
        return _NO_NETWORK, ""
    return (_NO_PROCESSES, calls) if any(part in calls for part in _PROCESSES) else (hint, calls)
