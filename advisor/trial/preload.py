"""The fork server's process: it imports once what all trials need, and adopts processes that trials leave behind.

Nothing here may initialise CUDA or start threads: the fork server forks after it. The fork server ignores Ctrl+C, which
is meant for the session; so do its children until each leads its own process group. Processes that leave their trial's
group, as daemons do, become the fork server's children (on Linux) and end with it. When the session's process dies, the
kernel tells the fork server.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import shutil
import signal
import time
import warnings
from types import FrameType
from typing import NoReturn

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it is started with the signal blocked

import psutil  # noqa: E402

from advisor.process import household  # noqa: E402
from advisor.process.meanwhile import collector_waits  # noqa: E402

_SERVER, _SESSION = os.getpid(), os.getppid()
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 50
_ROUND_S = 0.02
_MODULES = (
    "torch",
    "torch._dynamo",  # every optimizer's constructor imports it: a second in each trial
    "torchvision",
    "advisor.trial.main",
)


def _keep() -> bool:
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


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End with all descendants; a child that has not yet its own handlers ends by the signal."""
    _end_descendants()
    if os.getpid() == _SERVER and os.getppid() != _SESSION:  # which can no longer remove its folder
        shutil.rmtree(os.environ[household.SOCKETS], ignore_errors=True)
    os._exit(128 + number)


def _end_descendants() -> None:
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


_SERVES = _keep()
FAILURE: BaseException | None = None
try:
    with collector_waits():
        for module in _MODULES:
            importlib.import_module(module)
        import torch

        from advisor.recipe.catalog import load_catalog

        load_catalog()
        assert not torch.cuda.is_initialized(), "the fork server must not hold a CUDA context"
        gc.freeze()  # until its first step a trial need not look at all that was imported here
except Exception as error:  # each trial reports it: PyTorch cannot be imported a second time after a failure
    FAILURE = error
if _SERVES:
    for number in (signal.SIGTERM, signal.SIGHUP):  # until here a signal ends it at once
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)
    atexit.register(_end_descendants)
atexit.register(gc.unfreeze)  # what is never collected, libraries take for leaked when the fork server ends
