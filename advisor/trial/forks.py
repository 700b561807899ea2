"""Forks of the builder, each of which becomes a trial once it is given a spec, and the loop that gives specs to them.

Starting CUDA's driver takes half a second on a host of several GPUs, and nothing of a GPU. So the next trial's process
may be forked, and its driver started, while one is still busy with its first steps.
"""

import contextlib
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle

import torch

from advisor.process.channel import send_message
from advisor.records import ForkAhead, Forked, ForkEnded, TrialSpec
from advisor.target.loop import Loop
from advisor.trial.forked_files import read_independently
from advisor.trial.main import trial_main

_TRIAL_WITH_COMPANY = 3
# Longest wait for a trial to end after its last message.
_ENDING_S = 5.0
_LOOK_EVERY_S = 0.02
_USABLE, _UNUSABLE = b"usable", b"unusable"


@dataclass(frozen=True, slots=True)
class Forks:
    """Makes forks of this process, which has built ``loop`` unless each trial builds it.

    ``connection`` is the builder's own, which forks leave alone; ``threads`` are PyTorch's in each of them. What is
    forked ahead of its spec calls ``can_use_cuda``, which starts the driver. ``go_ahead``: also while a trial runs.
    """

    connection: Connection
    loop: Loop | None
    threads: int
    can_use_cuda: Callable[[], bool]
    go_ahead: bool

    def first(self) -> "Fork":
        """The fork that waits for the first spec, and tells meanwhile whether forks can use CUDA."""
        return Fork(self, self.can_use_cuda)

    def ahead(self) -> "Fork | None":
        """The fork that waits for the next spec while a trial runs; None where that is no use."""
        if not self.go_ahead or self.loop is None:
            return None
        with contextlib.suppress(OSError):  # the fork for a spec meets and reports it
            return Fork(self, self.can_use_cuda)
        return None

    def begin(self, ahead: "Fork | None", spec: TrialSpec, asked_at: float, handle: int) -> "Fork":
        """Give a spec, and the trial's end of its channel, to the fork that waits, or to a new one."""
        with contextlib.suppress(OSError):  # it may have died while it waited
            if ahead is not None:
                ahead.begin(spec, asked_at, handle)
                return ahead
        fork = Fork(self)
        fork.begin(spec, asked_at, handle)
        return fork


class Fork:
    """A fork of this process, which becomes a trial once it is given a spec."""

    def __init__(self, forks: Forks, can_use_cuda: Callable[[], bool] | None = None) -> None:
        self._orders, theirs = multiprocessing.Pipe()
        self.process: BaseProcess = multiprocessing.get_context("fork").Process(
            target=_enter,
            args=(theirs, forks.loop, forks.threads, can_use_cuda),
            kwargs={"builders_ends": (forks.connection, self._orders)},
            name="trial",
        )
        self.process.start()
        theirs.close()

    def begin(self, spec: TrialSpec, asked_at: float, handle: int) -> None:
        """Have it run a trial. Raises OSError when it has died."""
        self._orders.send((spec, asked_at))
        send_handle(self._orders, handle, self.process.pid)

    def can_use_cuda(self, within_s: float) -> bool:
        """Wait until it has tried CUDA, and tell whether that worked."""
        with contextlib.suppress(EOFError, OSError):
            return self._orders.poll(within_s) and self._orders.recv_bytes() == _USABLE
        return False

    def let_take_memory(self) -> None:
        """Let it take memory of the device: the trial before has given its own back."""
        with contextlib.suppress(OSError):
            self._orders.send(None)

    def dismiss(self) -> None:
        """End a fork that has no spec."""
        self._orders.close()


def serve(forks: Forks, ahead: Fork | None, *, meanwhile: Callable[[], bool] | None = None) -> None:
    """Fork a trial for each spec and report its end, until the other end of the channel closes.

    The next trial may be asked for while one is still ending, whose end is not reported then. It starts at once, and
    takes no memory before the other has given its own back. To leave a GPU and to come to it take 0.4 s on an H200.
    ``ahead`` is the fork that waits for the first spec. A :class:`ForkAhead` asks for the one that waits for the next.

    ``meanwhile`` is called once, while the third of them runs: a person waits for what the first shows, and the second
    is the control, which tells the noise of all. When it says that forks are no use any more, that trial was the last:
    later ones get a process that builds anew.
    """
    connection, trials, useful = forks.connection, 0, True
    trial: Fork | None = None
    try:
        while useful:
            if trial is not None and not _is_told(connection, trial.process):
                send_message(connection, ForkEnded(trial.process.exitcode))
                trial = None
            told = connection.recv()
            if isinstance(told, ForkAhead):
                ahead = ahead or forks.ahead()
                continue
            before, trial, ahead = trial, _begun(forks, ahead, *told), None
            if before is not None:
                _wait_for_any(before.process, timeout=_ENDING_S)
            trial.let_take_memory()
            trials += 1
            if meanwhile is not None and trials == _TRIAL_WITH_COMPANY:
                useful = meanwhile()
        if trial is not None:
            trial.process.join()
            send_message(connection, ForkEnded(trial.process.exitcode))
    except (EOFError, OSError):
        pass
    finally:
        if ahead is not None:
            ahead.dismiss()


def _begun(forks: Forks, ahead: Fork | None, spec: TrialSpec, asked_at: float) -> Fork:
    """The fork that runs a trial; it takes no device memory until it is let."""
    handle = recv_handle(forks.connection)
    trial = forks.begin(ahead, spec, asked_at, handle)
    os.close(handle)
    assert trial.process.pid is not None
    send_message(forks.connection, Forked(trial.process.pid))
    return trial


def _is_told(connection: Connection, trial: BaseProcess) -> bool:
    """Wait for the next word or for the trial's end: whether the word came first, or the other end closed."""
    if _wait_for_any(trial, connection):
        return True
    trial.join()
    return False


def _wait_for_any(trial: BaseProcess, *connections: Connection, timeout: float | None = None) -> bool:
    """Wait for the end of a trial's process or for a connection: whether that is ready.

    Not by the process's sentinel, which DataLoader workers that outlive it hold open.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    while trial.is_alive() and time.monotonic() < until:
        if connections and wait(connections, _LOOK_EVERY_S):
            return True
        if not connections:
            time.sleep(_LOOK_EVERY_S)
    return bool(connections and wait(connections, 0))


def _enter(
    orders: Connection,
    loop: Loop | None,
    threads: int,
    can_use_cuda: Callable[[], bool] | None,
    *,
    builders_ends: tuple[Connection, Connection],
) -> None:
    for end in builders_ends:
        end.close()
    read_independently()
    torch.set_num_threads(threads)
    try:
        if can_use_cuda is not None:
            orders.send_bytes(_USABLE if can_use_cuda() else _UNUSABLE)
        spec, asked_at = orders.recv()
        channel = Connection(recv_handle(orders))
    except (EOFError, OSError):
        os._exit(0)  # nothing is left to try, or the builder is gone
    trial_main(spec, channel, asked_at, loop=loop, wait_for_memory=lambda: _wait_for_word(orders))


def _wait_for_word(connection: Connection) -> None:
    """Wait until anything comes, or the other end is closed."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    connection.close()
