"""The fork server's duties: it ends with its session, and adopts processes that trials leave behind.

Processes that leave their trial's group, as daemons do, become the fork server's children (on Linux) and end with it.
When the session's process dies, the kernel tells the fork server.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import time
import warnings
from types import FrameType
from typing import NoReturn

import psutil

from advisor.process import household

_SERVER, _SESSION = os.getpid(), os.getppid()
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 50
_ROUND_S = 0.02


def keep() -> bool:
    """Make the fork server end with its session. To be called before it imports anything large.

    Return False in a fresh interpreter, which imports the same modules but has no fork server.
    """
    if os.environ.get(household.SAFE_PATH) == household.OURS:
        del os.environ[household.SAFE_PATH]  # for the fork server alone
    session, _, folder = os.environ.pop(household.SCRATCH, "").partition(":")
    if not folder:
        return False
    os.environ[household.SOCKETS] = folder
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
        shutil.rmtree(os.environ[household.SOCKETS], ignore_errors=True)
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
                with contextlib.suppress(psutil.Error):
                    one.kill()
        time.sleep(_ROUND_S)
