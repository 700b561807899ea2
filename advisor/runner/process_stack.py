"""The reasons why a process was killed or given up, as its parent can tell them."""

import contextlib
from pathlib import Path

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


def out_of_memory_kills() -> int | None:
    """Count of processes killed by the kernel for lack of memory since it started; None where it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def advice(calls: str, hint: str) -> tuple[str, str]:
    """The hint for a process that was given up in these calls, with the calls where they help.

    ``hint`` is that of a process that did not wait for another machine.
    """
    if any(part in calls for part in _NETWORK):
        return _NO_NETWORK, ""
    return (_NO_PROCESSES, calls) if any(part in calls for part in _PROCESSES) else (hint, calls)
