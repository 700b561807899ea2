"""The fork server as the session's process sees it: started, and started again if it died.

Never imports torch. The code that runs in the fork server itself is ``trial/preload.py``.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from multiprocessing import forkserver, process, resource_tracker
from multiprocessing.process import BaseProcess

import psutil

from advisor.files.folders import scratch_folder
from advisor.process import household
from advisor.process.meanwhile import environment, replaced

CONTEXT = multiprocessing.get_context("forkserver")
_PRELOAD = ["advisor.trial.preload"]
# The import of torch gets this long even beyond a short budget: without it there is no result. Seconds.
_IMPORTS_AT_LEAST_S = 120.0
_LOOK_EVERY_S = 0.05


def prepare() -> None:
    """Start the fork server, before an app takes the terminal, unless it is running. It imports torch by itself.

    Raises UsageError if there is no space for temporary files.
    """
    folder = str(scratch_folder())
    # A socket.py or torch.py in the working directory must not replace Python's or PyTorch's.
    safe = {} if household.SAFE_PATH in os.environ else {household.SAFE_PATH: household.OURS}
    # In a running app, sys.stderr has no descriptor that the resource tracker could inherit. The tracker would also
    # warn on the terminal about semaphores of killed trials, which it cleans up. The last of the options counts.
    quiet = replaced(sys, "warnoptions", [*sys.warnoptions, "ignore"])
    with contextlib.redirect_stderr(None), quiet, environment(safe):
        resource_tracker.ensure_running()
    if _running() is not None:
        return
    process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # where sockets are made
    CONTEXT.set_forkserver_preload(_PRELOAD)
    # It starts with SIGINT blocked, until it has its own handler.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        scratch = {household.SCRATCH: f"{os.getpid()}:{folder}"}
        with environment(scratch | safe | household.without_runs(folder)):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(made: BaseProcess, give_up: Callable[[], bool] = lambda: False, *, within_s: float = math.inf) -> None:
    """Have the fork server start a process. A thread waits for it, since it may never answer.

    The first process waits until the fork server has imported torch: at most ``within_s``, but at least two minutes.
    Then it raises TimeoutError. Raises OSError if no process was started or the start is given up.
    """
    prepare()
    started: Future[None] = Future()

    def run() -> None:
        try:
            made.start()
            started.set_result(None)
        except BaseException as error:  # passed on to the waiting thread
            started.set_exception(error)

    threading.Thread(target=run, name="process-start", daemon=True).start()
    began = time.monotonic()
    while not wait([started], _LOOK_EVERY_S).done:
        elapsed_s = time.monotonic() - began
        if give_up():
            raise OSError("given up")
        if elapsed_s > max(within_s, _IMPORTS_AT_LEAST_S):
            _kill()  # ends the thread's own wait
            raise TimeoutError(f"PyTorch was not imported within {elapsed_s:.0f} s")
    if error := started.exception():
        _kill()
        reason = f"{type(error).__name__} {error}".rstrip()
        advice = ": see `python -c 'import torch'`" if isinstance(error, EOFError | ConnectionError) else ""
        raise OSError(f"the fork server could not start a process ({reason}){advice}") from error


def _running() -> psutil.Process | None:
    """The fork server's process; None if there is none or it has died."""
    pid: int | None = getattr(forkserver, "_forkserver")._forkserver_pid  # noqa: B009 - it has no public name
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(pid) if pid is not None else None
        return server if server is not None and server.status() != psutil.STATUS_ZOMBIE else None
    return None


def _kill() -> None:
    """End the fork server. The next call starts another."""
    until = time.monotonic() + 1.0
    while (server := _running()) is not None and time.monotonic() < until:
        household.kill(server.pid)
        time.sleep(_LOOK_EVERY_S / 5)
