"""Processes and their groups: one killed, and a trial's own; variables that the session gives its fork server."""

import contextlib
import multiprocessing
import os
import signal
from multiprocessing import forkserver

# The session tells the fork server its process and its folder for sockets, as `id:folder`, and that module names of the
# working directory do not count for it (with a value by which the fork server knows that the user did not set that).
SCRATCH = "PERF_ADVISOR_SCRATCH"
SOCKETS = "PERF_ADVISOR_SOCKETS"  # that folder, whose path is short, for the fork server and its children
SAFE_PATH = "PYTHONSAFEPATH"
OURS = "perf-advisor"


def kill(pid: int, *, group: bool = False) -> None:
    """Kill a process, or the group that it leads. Nothing happens where it has ended, or is somebody else's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def lead_own_group() -> None:
    """Leave the terminal's process group: Ctrl+C is for the session, which ends its trials itself.

    Until this call the fork server's children ignore Ctrl+C; afterwards it raises KeyboardInterrupt as usual. The fork
    server's files are closed, for the user's output must not reach it. Its start method, which is handed down, is put
    back to Python's own; a target that chooses it gets a fork server of its own, as in the user's program.
    """
    if os.getpgid(0) != os.getpid():  # a fresh interpreter leads its group already
        os.setsid()
    server = getattr(forkserver, "_forkserver")  # noqa: B009 - it has no public name
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None
    multiprocessing.set_start_method(None, force=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # not the fork server's
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
