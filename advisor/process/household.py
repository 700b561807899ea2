"""Processes and their groups: killing them, a trial's own group, and the end of the fork server.

The fork server ends with its session, since the kernel signals it when the session dies. Processes that leave their
trial's group, as daemons do, become children of the fork server and end with it.
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

# By these variables the session tells the fork server the session's process and the folder for sockets (`id:folder`),
# and keeps modules of the working directory out. `SAFE_PATH` is `OURS` if the user did not set it.
SCRATCH = "PERF_ADVISOR_SCRATCH"
SOCKETS = "PERF_ADVISOR_SOCKETS"  # a folder with a short path, for the fork server and its children
SAFE_PATH = "PYTHONSAFEPATH"
OURS = "perf-advisor"
_SERVER, _SESSION = os.getpid(), os.getppid()  # set in the fork server and inherited by its children
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_ROUNDS, _ROUND_S = 50, 0.02


def kill(pid: int, *, group: bool = False) -> None:
    """Kill a process, or the group that it leads. Does nothing if it has ended or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def lead_own_group() -> None:
    """Leave the terminal's process group, since Ctrl+C is for the session, which ends its trials itself.

    Signals get their usual handlers again. The fork server's files are closed, so that the user's output cannot reach
    it. The start method is Python's default again; a target that chooses the fork server gets a new one.
    """
    if os.getpgid(0) != os.getpid():  # a fresh interpreter leads its group already
        os.setsid()
    server = getattr(forkserver, "_forkserver")  # noqa: B009 - it has no public name
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None
    multiprocessing.set_start_method(None, force=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # remove the fork server's handlers
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def without_runs(folder: str) -> dict[str, str]:
    """Variables that keep experiment trackers from recording trials. MLflow's runs go to a temporary folder."""
    mlflow = {"MLFLOW_TRACKING_URI": f"file:{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    return {"WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled", **mlflow}


def end_with_session() -> bool:
    """Make the fork server end with its session, before any large import. Returns False in a fresh interpreter."""
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]  # it is only for the fork server
    session, _, folder = os.environ.pop(SCRATCH, "").partition(":")
    if not folder:
        return False
    os.environ[SOCKETS] = folder
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(session):  # the session has ended meanwhile
        os._exit(1)
    warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")  # about an adopted process
    return True


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End with all descendants. A child that has no handlers of its own yet ends by the signal."""
    end_descendants()
    if os.getpid() == _SERVER and os.getppid() != _SESSION:  # the session can no longer remove its folder
        shutil.rmtree(os.environ[SOCKETS], ignore_errors=True)
    os._exit(128 + number)


def end_descendants() -> None:
    """End the fork server's descendants, and the children that they leave behind, which the fork server adopts."""
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
