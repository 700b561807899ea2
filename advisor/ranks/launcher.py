"""The process that launches a trial's ranks with PyTorch's own launcher, and sends their first error.

``torch.distributed.run`` (torchrun) starts each rank in its own session and closes its descriptors. So each rank
connects to a Unix socket in a private folder, and ends when the socket closes, however the launcher ended.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from advisor.process import household
from advisor.process.channel import Channel, GarbageError, receive_message
from advisor.process.household import lead_own_group
from advisor.process.logs import own_calls, redirect_output, stack_of
from advisor.records import Outcome, RankJoined, TrialResult, TrialSpec, World, messages
from advisor.trial.starting import RANK, merged_environment, program
from advisor.workloads.entrypoint import one_line

# The session gives the trial up when its time is over, so a hang has to be reported this long before. Seconds.
_BEFORE_TIME_OUT_S = 5.0
_POLL_S = 0.1
_ENDING_S = 1.5  # time in which torchrun notices the end of a rank and ends the others; seconds
# Time in which the ranks leave the devices and torchrun notices it. Seconds.
_LEAVING_S = 8.0
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
    except Exception as error:  # a bug of perf-advisor is the trial's result, too
        result = TrialResult(Outcome.FAILED, f"the ranks could not be launched: {error}", "Please report it.")
    launcher.end()
    shutil.rmtree(folder, ignore_errors=True)
    wall_s = time.perf_counter() - started
    channel.send(replace(result, startup_s=startup_s, wall_s=wall_s, log_path=spec.log_path))
    os._exit(0)


@dataclass(slots=True, eq=False)
class _Rank:
    """A rank as its launcher knows it: its process, its result, and its end."""

    connection: Connection
    number: int = -1
    pid: int = 0
    result: TrialResult | None = None
    ended: bool = False


class Launcher:
    """torchrun, the socket of its ranks, and their messages."""

    def __init__(self, spec: TrialSpec, folder: Path) -> None:
        assert spec.world is not None
        self._spec, self._world = spec, spec.world
        self._ranks: list[_Rank] = []
        self._activity = ""
        # The reporting rank's result, and failures in order of arrival; None if a rank ended without a message.
        self._results: list[TrialResult | None] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "s"))
        self._server.listen(128)
        own = multiprocessing.get_context("fork")  # no thread has been started yet
        self._report, self._reporting = own.Pipe(duplex=False)  # both ends are kept; a read never ends at a closed pipe
        self._torchrun = own.Process(target=_run_torchrun, args=(spec.environment, spec.world, folder, self._reporting))
        self._torchrun.start()

    def run(self, channel: Channel, deadline: float) -> TrialResult:
        """Listen to the ranks until there is a result, a failure (the first one is the cause) or no time left."""
        while time.monotonic() < deadline:
            heard = self._listen(channel, deadline)
            if self._results and self._results[0] is not None:
                return self._results[0]
            if self._results or not (heard or self._torchrun.is_alive()):  # a rank or torchrun ended without a message
                self._torchrun.join(_ENDING_S)
                report: TrialResult | None = self._report.recv() if self._report.poll() else None
                return report or TrialResult(Outcome.CRASHED, "a rank ended without a word", _SEES_LOG)
        how = f"no result after {self._spec.timeout_s:.0f} s"
        options = self._world.options
        if not self._ranks and options:  # torchrun's processes on the machines did not meet
            endpoint = dict(zip(options[::2], options[1::2], strict=False)).get("--rdzv-endpoint", "their endpoint")
            hint = (
                "Name a free port of the first machine that all reach; on the others start `perf-advisor follow` with "
                "the same options."
            )
            return TrialResult(Outcome.TIMED_OUT, f"the machines did not meet at {endpoint}: {how}", hint)
        running = [one for one in self._ranks if one.pid and not one.ended]  # the id of an ended one may be reused
        stacks = ((one.number, own_calls(stack_of(one.pid, self._spec.log_path))) for one in running)
        calls = [f"rank {number}: {calls}" for number, calls in stacks if calls]
        hint = "Give it more time with --budget, or fix the hang."
        return TrialResult(Outcome.TIMED_OUT, f"{how} ({self._activity or 'starting'})", hint, "\n".join(calls))

    def _listen(self, channel: Channel, deadline: float) -> bool:
        """Handle the ranks' messages, and return whether any arrived within a moment."""
        live = [one for one in self._ranks if not one.ended]
        ready = wait([self._server, *(one.connection for one in live)], timeout=_POLL_S)
        if self._server in ready:
            accepted, _ = self._server.accept()
            connection = Connection(accepted.detach())
            connection.send((self._spec, list(sys.path), deadline))
            self._ranks.append(_Rank(connection))
        for one in live:
            if one.connection not in ready:
                continue
            try:
                message = receive_message(one.connection)
            except (EOFError, OSError) as error:
                one.ended = True
                if one.result is None:
                    garbage = isinstance(error, GarbageError)
                    self._results.append(TrialResult(Outcome.CRASHED, str(error)) if garbage else None)
                continue
            # The first rank of this machine reports; with several machines it may not be rank 0.
            reports = one.number >= 0 and one.number % self._world.ranks == 0
            if isinstance(message, RankJoined):
                one.number, one.pid = message.rank, message.pid
            elif isinstance(message, TrialResult):
                one.result = message
                if one.result.outcome is not Outcome.MEASURED:
                    self._results.append(replace(one.result, reason=f"rank {one.number}: {one.result.reason}"))
                elif reports:
                    self._results.insert(0, one.result)
            elif reports and isinstance(message, messages.TrialMessage):
                if isinstance(message, messages.Activity):
                    self._activity = message.text
                channel.send(message)
        return bool(ready)

    def end(self) -> None:
        """Wait for finished ranks to leave, and end the others together with torchrun."""
        if self._ranks and all(one.result is not None and one.result.measured for one in self._ranks):
            self._torchrun.join(_LEAVING_S)
        for one in self._ranks:
            with contextlib.suppress(OSError):
                one.connection.close()
            if one.pid and self._torchrun.is_alive():
                household.kill(one.pid, group=True)  # torchrun made each rank the leader of a session
        self._torchrun.join(_ENDING_S)
        self._torchrun.kill()


def _run_torchrun(variables: dict[str, str], world: World, folder: Path, report: Connection) -> None:
    """Run torchrun in this process, which has imported PyTorch already, and send the error that it raised."""
    os.environ |= merged_environment(variables)
    os.environ.setdefault(household.SAFE_PATH, household.OURS)  # keep a json.py in the working directory out
    try:
        from torch.distributed.run import main

        meets = list(world.options) or ["--standalone"]  # the user's own options
        numbers = ["--nproc-per-node", str(world.ranks), "--log-dir", str(folder)]
        main([*meets, *numbers, "--no-python", *program(RANK, folder / "s")])
    except BaseException as error:
        traceback.print_exc()
        report.send(of_torchrun(error))


def of_torchrun(error: BaseException) -> TrialResult:
    """The result of a trial that torchrun ended with an error: of the rank that ended first, or of torchrun."""
    if isinstance(error, DistNetworkError):
        reason = f"torchrun cannot use its endpoint: {one_line(error)}"
        return TrialResult(Outcome.FAILED, reason, "Name a free port with --rdzv-endpoint HOST:PORT.")
    if not isinstance(error, ChildFailedError):
        return TrialResult(Outcome.FAILED, f"torchrun failed: {one_line(error)}", _SEES_LOG)
    rank, first = error.get_first_failure()
    if first.exitcode >= 0:
        message: Any = first.message  # a dict if the rank wrote an error file
        text = message["message"] if isinstance(message, dict) else message
        return TrialResult(Outcome.FAILED, f"rank {rank}: {text.strip().splitlines()[-1]}", _SEES_LOG)
    ended, hint = f"rank {rank}: its process was ended by {signal.Signals(-first.exitcode).name}", _SEES_LOG
    if first.exitcode == -signal.SIGKILL:
        ended += " (the system kills a process that takes too much memory, unless a person did)"
        hint = "Try a smaller batch size, or find out what ended it."
    elif first.exitcode == -signal.SIGABRT:
        ended += " (NCCL ends a rank that has waited for another too long)"
    return TrialResult(Outcome.CRASHED, ended, hint)
