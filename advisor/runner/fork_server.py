"""The fork server, seen from the session's process: started, and started again where it died or does not answer.

Never imports torch. What runs in the fork server itself is ``trial/preload.py``.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, process, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from advisor.files.scratch import scratch_folder
from advisor.process import household
from advisor.process.meanwhile import environment

CONTEXT = multiprocessing.get_context("forkserver")
_PRELOAD = ["advisor.trial.preload"]
# A fork server that has imported torch answers in milliseconds; one that does not for this long hangs. Seconds.
_ANSWERS_WITHIN_S = 120.0
# An import gets this long also beyond a short budget: without it there is no result. Seconds.
_IMPORTS_AT_LEAST_S = 120.0
# Importing torch takes a few seconds; from a slow network disk it may take minutes, which is said then. Seconds.
_IMPORTS_SLOWLY_S = 20.0
_LOOK_EVERY_S = 0.05
# Interval and duration of looking for processes that left their trial; each that is ended may leave more. Seconds.
_SWEEPS = 20
_SWEEP_EVERY_S = 0.02


class StartError(OSError):
    """The fork server could not start a process."""


class ImportsTooLongError(StartError):
    """PyTorch was not imported within the time that there was."""


class _Serves:
    """The fork server that has started a process, by its id: it has imported torch."""

    pid: int | None = None


_SERVES = _Serves()


def prepare() -> None:
    """Start the fork server unless it is running. Returns before torch is imported.

    Must come before an app takes the terminal. Raises UsageError when there is no room for temporary files.
    """
    folder = str(scratch_folder())
    # A socket.py or a torch.py in the working directory is none of Python's or PyTorch's.
    safe = {} if household.SAFE_PATH in os.environ else {household.SAFE_PATH: household.OURS}
    # Later the app may be on the screen: its sys.stderr has no descriptor that another resource tracker could inherit.
    aside = _quiet() if _pid() is None else contextlib.redirect_stderr(None)
    with aside, environment(safe):
        resource_tracker.ensure_running()
    if _is_running():
        return
    process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # where sockets are made
    CONTEXT.set_forkserver_preload(_PRELOAD)
    ours = {household.SCRATCH: f"{os.getpid()}:{folder}"}
    with environment(ours | safe), _interruptions_blocked():
        forkserver.ensure_running()


def start(
    made: BaseProcess,
    give_up: Callable[[], bool] = lambda: False,
    *,
    within_s: float = math.inf,
    imports_slowly: Callable[[], None] = lambda: None,
) -> None:
    """Have the fork server start a process; a server that died or does not answer is started again once.

    The first process waits until the fork server has imported torch: at most ``within_s``, or two minutes where that
    is less. ``imports_slowly`` is called when it takes long. Raises ImportsTooLongError; StartError when a second fork
    server does not help either, or when the start is given up.
    """
    until = time.monotonic() + max(within_s, _IMPORTS_AT_LEAST_S)
    for last in (False, True):
        try:
            prepare()
            _start(made, give_up, until, imports_slowly)
        except ImportsTooLongError:
            raise
        except (EOFError, OSError) as error:
            if not give_up():
                _kill()
            if last or give_up():
                raise StartError(_why(error)) from error
        else:
            return


def end_strays(known: set[int]) -> None:
    """End processes that the fork server adopted: they outlived their trial outside its process group, as daemons do.

    ``known`` are the ids of its children to keep.
    """
    for _ in range(_SWEEPS):
        strays = [child for child in children() if child not in known]
        for stray in strays:
            household.kill(stray)
        if not strays:
            return
        time.sleep(_SWEEP_EVERY_S)


def children() -> set[int]:
    """The ids of the fork server's children that have not ended."""
    pid = _pid()
    return set() if pid is None else {child for child in descendants(pid, recursive=False) if not _has_ended(child)}


def descendants(pid: int, *, recursive: bool = True) -> set[int]:
    """The ids of a process's children; of all descendants unless ``recursive`` is false."""
    with contextlib.suppress(psutil.Error):
        return {child.pid for child in psutil.Process(pid).children(recursive=recursive)}
    return set()


def _has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _pid() -> int | None:
    pid: int | None = getattr(forkserver, "_forkserver")._forkserver_pid  # noqa: B009 - it has no public name
    return pid


def _is_running() -> bool:
    with contextlib.suppress(ChildProcessError):
        return _pid() is not None and _end() is None
    return False


def _end() -> os.waitid_result | None:
    """The fork server's exit status; None while it runs. The process stays for multiprocessing to wait for."""
    return os.waitid(os.P_PID, _pid() or 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _start(made: BaseProcess, give_up: Callable[[], bool], until: float, imports_slowly: Callable[[], None]) -> None:
    """Start the process in a thread, since the fork server may not answer and the caller must not wait for ever."""
    start = _Start(made)
    began, imports, told = time.monotonic(), _pid() != _SERVES.pid, False
    if not imports:
        until = began + _ANSWERS_WITHIN_S
    while not start.done.wait(_LOOK_EVERY_S):
        if give_up():
            raise StartError("given up")
        if time.monotonic() > until:
            _kill()  # then the thread's own wait ends
            if imports:
                raise ImportsTooLongError(f"PyTorch was not imported within {time.monotonic() - began:.0f} s")
            if not start.done.wait(1.0) or start.error:
                raise StartError("it does not answer")
        if imports and not told and time.monotonic() - began > _IMPORTS_SLOWLY_S:
            told = True
            imports_slowly()
    if start.error is not None:
        raise start.error
    _SERVES.pid = _pid()


class _Start:
    """Starts a process in a separate thread. ``done`` is set at the end; ``error`` is the exception, if any."""

    def __init__(self, made: BaseProcess) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._made = made
        threading.Thread(target=self._run, name="process-start", daemon=True).start()

    def _run(self) -> None:
        try:
            self._made.start()
        except BaseException as error:  # for the thread that waits
            self.error = error
        finally:
            self.done.set()


def _kill() -> None:
    pid = _pid()
    if pid is not None:
        household.kill(pid)
        until = time.monotonic() + 1.0
        while _is_running() and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S / 5)


def _why(error: OSError | EOFError) -> str:
    """The reason that no process could be started, such as an abort of PyTorch's import."""
    by_itself = _pid() not in (None, _SERVES.pid) and not isinstance(error, StartError)
    if by_itself and (found := _end()) and found.si_code != os.CLD_EXITED:
        name = signal.Signals(found.si_status).name
        return f"importing PyTorch ended Python by {name}, as `python -c 'import torch'` shows"
    return f"the fork server could not start a process: {type(error).__name__} {error}".rstrip()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """In this context, discard the standard error of a process that is started.

    A target may write to the resource tracker's descriptor, and the tracker prints a traceback for each such line. It
    also warns on the user's terminal about semaphores of killed trials, which it cleans up.
    """
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _interruptions_blocked() -> Iterator[None]:
    """In this context processes start with SIGINT blocked, until they handle it themselves."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
