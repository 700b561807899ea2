"""Processes and their groups: one killed, a trial's own, and the fork server's.

The fork server ends with its session, whose death the kernel tells it. Processes that leave their trial's group, as
daemons do, become the fork server's children and end with it.
"""

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import time
import warnings
from multiprocessing import forkserver
from types import FrameType
from typing import NoReturn

import psutil

# The session tells the fork server its process and its folder for sockets, as `id:folder`, and that module names of the
# working directory do not count for it (with a value by which the fork server knows that the user did not set that).
SCRATCH = "PERF_ADVISOR_SCRATCH"
SOCKETS = "PERF_ADVISOR_SOCKETS"  # that folder, whose path is short, for the fork server and its children
SAFE_PATH = "PYTHONSAFEPATH"
OURS = "perf-advisor"
_SERVER, _SESSION = os.getpid(), os.getppid()  # in the fork server, and inherited by its children
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_ROUNDS, _ROUND_S = 50, 0.02


def kill(pid: int, *, group: bool = False) -> None:
    """Kill a process, or the group that it leads. Nothing happens where it has ended, or is somebody else's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def lead_own_group() -> None:
    """Leave the terminal's process group: Ctrl+C is for the session, which ends its trials itself.

    Signals do what they usually do again. The fork server's files are closed, for the user's output must not reach it.
    Its start method is put back to Python's own; a target that chooses it gets a fork server of its own.
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


def without_runs(folder: str) -> dict[str, str]:
    """Variables with which experiment trackers record no run of a trial; MLflow's are made in a temporary folder."""
    mlflow = {"MLFLOW_TRACKING_URI": f"file:{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    return {"WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled", **mlflow}


def end_with_session() -> bool:
    """Make the fork server end with its session, before it imports anything large. False in a fresh interpreter."""
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]  # for the fork server alone
    session, _, folder = os.environ.pop(SCRATCH, "").partition(":")
    if not folder:
        return False
    os.environ[SOCKETS] = folder
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(session):  # it has ended meanwhile
        os._exit(1)
    warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")  # one adopted
    return True


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End with all descendants; a child that has not yet its own handlers ends by the signal."""
    end_descendants()
    if os.getpid() == _SERVER and os.getppid() != _SESSION:  # which can no longer remove its folder
        shutil.rmtree(os.environ[SOCKETS], ignore_errors=True)
    os._exit(128 + number)


def end_descendants() -> None:
    """End the fork server's descendants. Each that ends may leave children, which it adopts."""
    if os.getpid() != _SERVER:
        return
    for _ in range(_ROUNDS):
        with contextlib.suppress(psutil.Error):
            left = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
            if not left:
                return
            for one in left:
                kill(one.pid)
        time.sleep(_ROUND_S)
