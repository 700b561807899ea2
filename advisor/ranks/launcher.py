"""The process that launches a trial's ranks with PyTorch's own launcher, and sends their first error.

``torch.distributed.run`` (torchrun) starts the ranks, each in a session of its own, and closes their descriptors. So
each connects to a Unix socket in a private folder: rank 0 speaks over it to the session's process, and all of them end
when it closes, however the launcher ended.
"""

import contextlib
import math
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from advisor.process import household
from advisor.process.channel import Channel, GarbageError, receive_message
from advisor.process.household import lead_own_group
from advisor.process.stacks import innermost_calls
from advisor.process.streams import redirect_output
from advisor.records import (
    Activity,
    BlockDone,
    Finished,
    Inspected,
    Outcome,
    Profiled,
    RankJoined,
    TrialResult,
    TrialSpec,
    World,
)
from advisor.trial.starting import RANK, merged_environment, program
from advisor.workloads.entrypoint import one_line

# A rank says so that waits for the others, or whose error came out of such a wait; what says nothing for long is in the
# user's code.
WAITING = "waiting for the other ranks"
# The session gives the trial up when its time is over: a hang has to be reported before. Seconds.
_BEFORE_TIME_OUT_S = 5.0
_POLL_S = 0.1
# After the first error others may follow that say more: a rank that lost its peer is not the one to blame. Seconds.
_SETTLING_S = 1.5
# The ranks leave the devices, and torchrun notices. Seconds.
_LEAVING_S = 8.0
# Calls in which a rank waits: exchanging gradients, a collective, its device; our own read the loss there.
_WAITING_CALLS = re.compile(r"_engine_run_backward|in synchronize|torch/distributed/|torch/nn/parallel/|advisor/ranks/")
_INNERMOST = 2
_SEES_LOG = "The trial's log has the whole story."


def launch_main(spec: TrialSpec, connection: Connection, asked_at: float) -> NoReturn:
    """Run a trial over ranks and send its messages, as ``trial_main`` does for one process."""
    startup_s = time.monotonic() - asked_at
    lead_own_group()
    redirect_output(spec.log_path)
    started = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="r", dir=os.environ[household.SOCKETS]))
    launcher = Launcher(spec, folder)
    channel = Channel(connection)
    try:
        result = launcher.run(channel, asked_at + spec.timeout_s - _BEFORE_TIME_OUT_S)
    except Exception as error:  # a bug of ours is the trial's result, too
        result = TrialResult(Outcome.FAILED, f"the ranks could not be launched: {error}", "Please report it.")
    launcher.end()
    shutil.rmtree(folder, ignore_errors=True)
    wall_s = time.perf_counter() - started
    channel.send(Finished(replace(result, startup_s=startup_s, wall_s=wall_s, log_path=spec.log_path)))
    os._exit(0)


@dataclass(slots=True, eq=False)
class _Rank:
    """A rank as its launcher knows it: its process, what it said last, its result, and its end."""

    connection: Connection
    number: int = -1
    pid: int = 0
    doing: str = ""
    result: TrialResult | None = None
    ended: bool = False

    @property
    def died(self) -> bool:
        """Whether the process ended without a result."""
        return self.ended and self.result is None

    @property
    def error(self) -> TrialResult | None:
        """Its result where that is an error, with a reason that names the rank."""
        if self.result is None or self.result.outcome is Outcome.MEASURED:
            return None
        return replace(self.result, reason=f"rank {self.number}: {self.result.reason}")


class Launcher:
    """torchrun, the socket of its ranks, and their messages."""

    def __init__(self, spec: TrialSpec, folder: Path) -> None:
        assert spec.world is not None
        self._spec, self._world = spec, spec.world
        self._ranks: list[_Rank] = []
        self._activity = ""
        self._deadline = math.inf
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "s"))
        self._server.listen(128)
        own = multiprocessing.get_context("fork")  # no thread has been started yet
        self._report, self._reporting = own.Pipe(duplex=False)  # both are kept: nothing is read at an end
        self._torchrun = own.Process(target=_run_torchrun, args=(spec.environment, spec.world, folder, self._reporting))
        self._torchrun.start()

    def run(self, channel: Channel, deadline: float) -> TrialResult:
        """Listen to the ranks until there is a result, an error, or no time left."""
        failed_at = None
        self._deadline = deadline
        while time.monotonic() < deadline:
            self._listen(channel)
            for one in self._ranks:
                if one.result is not None and one.error is None and self._leads(one):
                    return one.result
                if one.error is not None and one.doing != WAITING:
                    return one.error
            if any(one.error or one.died for one in self._ranks) or not self._torchrun.is_alive():
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > _SETTLING_S:
                    return self._failure()
        how = f"no result after {self._spec.timeout_s:.0f} s"
        if not self._ranks and self._world.options:
            return of_no_meeting(self._world.options, how)
        return self._hang(how) or TrialResult(Outcome.TIMED_OUT, f"all ranks wait for one another: {how}", _SEES_LOG)

    def _listen(self, channel: Channel) -> None:
        live = [one for one in self._ranks if not one.ended]
        ready = wait([self._server, *(one.connection for one in live)], timeout=_POLL_S)
        if self._server in ready:
            accepted, _ = self._server.accept()
            connection = Connection(accepted.detach())
            connection.send((self._spec, list(sys.path), self._deadline))
            self._ranks.append(_Rank(connection))
        for one in live:
            if one.connection not in ready:
                continue
            try:
                message = receive_message(one.connection)
            except (EOFError, OSError) as error:
                one.ended = True
                if isinstance(error, GarbageError):
                    one.result = TrialResult(Outcome.CRASHED, str(error))
                continue
            if isinstance(message, RankJoined):
                one.number, one.pid = message.rank, message.pid
            elif isinstance(message, Finished):
                one.result = message.result
            elif isinstance(message, Activity):
                one.doing = message.text
                if self._leads(one) and message.text not in (WAITING, self._activity):
                    self._activity = message.text
                    channel.send(message)
            elif self._leads(one) and isinstance(message, BlockDone | Inspected | Profiled):
                channel.send(message)

    def _leads(self, one: _Rank) -> bool:
        """Whether a rank is the first of this machine, which reports; with several machines it may not be rank 0."""
        return one.number >= 0 and one.number % self._world.ranks == 0

    def _failure(self) -> TrialResult:
        """The reason where no rank has made an error itself: one that died or hangs, or torchrun's own."""
        dead = [one.number for one in self._ranks if one.died and one.number >= 0]
        if dead:
            self._torchrun.join(_SETTLING_S)
        report: TrialResult | None = self._report.recv() if self._report.poll() else None
        if dead:
            ended = f"rank {dead[0]}: its process ended without a word"
            return report or TrialResult(Outcome.CRASHED, ended, _SEES_LOG)
        errors = [one.error for one in self._ranks if one.error is not None]
        own = report or TrialResult(Outcome.FAILED, "torchrun ended without an error", _SEES_LOG)
        return self._hang("the others waited until their time was over") or next(iter(errors), own)

    def _hang(self, how: str) -> TrialResult | None:
        """The ranks that wait for nobody, with their innermost calls; the only one is named. None where all wait."""
        late = [one for one in self._ranks if not one.ended and one.result is None and one.doing != WAITING]
        calls = {one: innermost_calls(one.pid, self._spec.log_path) for one in late}
        late = [one for one in late if not waits_for_others(calls[one])]
        if not late:
            return None
        what = f"{how} ({self._activity or 'starting'})"
        if len(late) == 1 and len(self._ranks) > 1:
            what = f"rank {late[0].number} hangs ({late[0].doing or 'starting'}): {how}"
        hint = "Give it more time with --budget, or fix the hang."
        return TrialResult(Outcome.TIMED_OUT, what, hint, "\n".join(calls[one] for one in late))

    def end(self) -> None:
        """Wait for ranks that are done to leave, and end the others with torchrun."""
        if self._ranks and all(one.result is not None and one.result.measured for one in self._ranks):
            self._torchrun.join(_LEAVING_S)
        for one in self._ranks:
            with contextlib.suppress(OSError):
                one.connection.close()
            if one.pid and self._torchrun.is_alive():
                household.kill(one.pid, group=True)  # torchrun made each the leader of a session
        self._torchrun.join(_SETTLING_S)
        self._torchrun.kill()


def _run_torchrun(variables: dict[str, str], world: World, folder: Path, report: Connection) -> None:
    """Run torchrun in this process, which has PyTorch imported already, and send what it raised."""
    os.environ |= merged_environment(variables)
    os.environ.setdefault(household.SAFE_PATH, household.OURS)  # a json.py in the working directory
    try:
        from torch.distributed.run import main

        meets = list(world.options) or ["--standalone"]  # the user's own options
        numbers = ["--nproc-per-node", str(world.ranks), "--log-dir", str(folder)]
        main([*meets, *numbers, "--no-python", *program(RANK, folder / "s")])
    except BaseException as error:
        traceback.print_exc()
        report.send(of_torchrun(error))


def waited_for_others(error: BaseException) -> bool:
    """Whether an error may follow from the end or the hang of another rank.

    Gloo has no class for such errors: there it is any RuntimeError, as a collective raises.
    """
    by_gloo = dist.is_initialized() and dist.get_backend() == "gloo"
    kinds = (dist.DistError, RuntimeError) if by_gloo else (dist.DistError,)
    return isinstance(error, kinds) or isinstance(error.__cause__, kinds)


def waits_for_others(stack: str) -> bool:
    """Whether the innermost calls of a rank are PyTorch's, waiting for a device or for other ranks."""
    calls = [line for line in stack.splitlines() if line.lstrip().startswith("File ")]
    return any(map(_WAITING_CALLS.search, calls[:_INNERMOST]))


def of_torchrun(error: BaseException) -> TrialResult:
    """The result of a trial that torchrun ended with an error: that of the rank that ended first, or its own."""
    if isinstance(error, dist.DistNetworkError):
        reason = f"torchrun cannot use its endpoint: {one_line(error)}"
        return TrialResult(Outcome.FAILED, reason, "Name a free port with --rdzv-endpoint HOST:PORT.")
    if not isinstance(error, ChildFailedError):
        return TrialResult(Outcome.FAILED, f"torchrun failed: {one_line(error)}", _SEES_LOG)
    rank, first = error.get_first_failure()
    if first.exitcode >= 0:
        message: Any = first.message  # of a rank that wrote an error file a dict
        text = message["message"] if isinstance(message, dict) else message
        return TrialResult(Outcome.FAILED, f"rank {rank}: {text.strip().splitlines()[-1]}", _SEES_LOG)
    ended, hint = f"rank {rank}: its process was ended by {signal.Signals(-first.exitcode).name}", _SEES_LOG
    if first.exitcode == -signal.SIGKILL:
        ended += " (the system kills a process that takes too much memory, unless a person did)"
        hint = "Try a smaller batch size, or look for what ended it."
    elif first.exitcode == -signal.SIGABRT:
        ended += " (NCCL ends a rank that has waited for another too long)"
    return TrialResult(Outcome.CRASHED, ended, hint)


def of_no_meeting(options: Sequence[str], how: str) -> TrialResult:
    """No rank was started, since torchrun's processes on the machines did not meet where ``options`` say."""
    named = dict(zip(options[::2], options[1::2], strict=False))
    return TrialResult(
        Outcome.TIMED_OUT,
        f"the machines did not meet at {named.get('--rdzv-endpoint', 'their endpoint')}: {how}",
        "Name a free port of the first machine that all reach; on the others start `perf-advisor follow` with the same "
        "options.",
    )
