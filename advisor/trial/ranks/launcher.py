"""The process that launches a trial's ranks with PyTorch's own launcher, and tells their first error.

``torch.distributed.run`` (torchrun) starts the ranks, each in a session of its own, and closes their descriptors. So
each connects to a Unix socket in a private folder: rank 0 speaks over it to the session's process, and all of them end
when it closes, however the launcher ended.
"""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

from advisor.process import household
from advisor.process.channel import Channel, GarbageError, Inbox
from advisor.process.household import lead_own_group
from advisor.process.importing import program_of_rank
from advisor.process.streams import redirect_output
from advisor.records import Activity, Finished, Outcome, RankJoined, Started, TrialResult, TrialSpec
from advisor.trial.fresh import merged_environment
from advisor.trial.ranks import failures

# A rank that waits for the others says so; what says nothing for long is in the user's code.
WAITING = "waiting for the other ranks"
# The session gives the trial up when its time is over: what hangs has to be told before. Seconds.
_LAST_WORD_S = 5.0
_POLL_S = 0.1
# After the first error others may follow that tell more: a rank that lost its peer is not the one to blame. Seconds.
_SETTLING_S = 1.5
# The ranks leave the devices, and torchrun notices. Seconds.
_LEAVING_S = 8.0


def launch_main(spec: TrialSpec, connection: Connection, asked_at: float) -> NoReturn:
    """Run a trial over ranks and send its messages, as ``trial_main`` does for one process."""
    startup_s = time.monotonic() - asked_at
    lead_own_group()
    redirect_output(spec.log_path)
    started = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="r", dir=os.environ.get("TMPDIR")))
    launcher = Launcher(spec, folder)
    channel = Channel(connection)
    channel.send(Started(startup_s))
    try:
        result = launcher.run(channel, asked_at + spec.timeout_s - _LAST_WORD_S)
    except Exception as error:  # a bug of ours is the trial's result, too
        result = TrialResult(Outcome.FAILED, f"the ranks could not be launched: {error}", "Please report it.")
    launcher.end()
    shutil.rmtree(folder, ignore_errors=True)
    wall_s = time.perf_counter() - started
    channel.send(Finished(replace(result, startup_s=startup_s, wall_s=wall_s, log_path=spec.log_path)))
    os._exit(0)


@dataclass(slots=True)
class _Rank:
    """A rank as its launcher knows it: its process, its last words, and its end."""

    connection: Connection
    inbox: Inbox
    number: int = -1
    pid: int = 0
    doing: str = ""
    result: TrialResult | None = None
    ended: bool = False

    @property
    def fails(self) -> bool:
        """Whether it ended, or told of an error, without a result."""
        return (self.ended and self.result is None) or (self.result is not None and not self.result.measured)


@dataclass(slots=True)
class Launcher:
    """torchrun, the socket of its ranks, and their messages."""

    spec: TrialSpec
    folder: Path
    agent: int = 0
    exit_code: int | None = None
    _told: str = ""
    _server: socket.socket = field(init=False)
    _ranks: list[_Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.folder / "s"))
        self._server.listen(128)
        self.agent = os.fork()  # no thread has been started yet
        if self.agent == 0:
            self._become_torchrun()

    def _become_torchrun(self) -> NoReturn:
        """Run torchrun in this process, which has PyTorch imported already."""
        code = 1
        try:
            os.environ |= merged_environment(self.spec.environment)
            os.environ.setdefault(household.SAFE_PATH, household.OURS)  # a json.py in the working directory
            from torch.distributed.run import main

            main(torchrun_arguments(self.spec, self.folder))
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def run(self, channel: Channel, deadline: float) -> TrialResult:
        """Listen to the ranks until there is a result, an error, or no time left."""
        failed_at = None
        while True:
            self._listen(channel)
            lead = next((one for one in self._ranks if self._leads(one)), None)
            if lead is not None and lead.result is not None and lead.result.measured:
                return lead.result
            if any(one.fails for one in self._ranks) or self._agent_ended():
                failed_at = failed_at or time.monotonic()
                if self._is_settled(time.monotonic() - failed_at):
                    return self._failure()
            if time.monotonic() > deadline:
                return self._hang(f"no result after {self.spec.timeout_s:.0f} s")

    def _listen(self, channel: Channel) -> None:
        live = [one for one in self._ranks if not one.ended]
        ready = wait([self._server, *(one.connection for one in live)], timeout=_POLL_S)
        if self._server in ready:
            accepted, _ = self._server.accept()
            connection = Connection(accepted.detach())
            connection.send((self.spec, list(sys.path)))
            self._ranks.append(_Rank(connection, Inbox(connection)))
        for one in live:
            if one.connection in ready:
                self._hear(one, channel)

    def _hear(self, one: _Rank, channel: Channel) -> None:
        try:
            message = one.inbox.read()
        except (EOFError, OSError) as error:
            one.ended = True
            if isinstance(error, GarbageError):
                one.result = TrialResult(Outcome.CRASHED, str(error))
            return
        if isinstance(message, RankJoined):
            one.number, one.pid = message.rank, message.pid
        elif isinstance(message, Finished):
            one.result = message.result
        elif isinstance(message, Activity):
            one.doing = message.text
            if self._leads(one) and message.text not in (WAITING, self._told):
                self._told = message.text
                channel.send(message)

    def _leads(self, one: _Rank) -> bool:
        """Whether a rank is the first of this machine, which reports; with several machines it may not be rank 0."""
        assert self.spec.world is not None
        return one.number >= 0 and one.number % self.spec.world.ranks == 0

    def _agent_ended(self) -> bool:
        if self.exit_code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.agent, os.WNOHANG)
                if pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None

    def _is_settled(self, since_s: float) -> bool:
        """Whether nothing more is to be heard: a rank told its own error, or the others had the time to."""
        told = [one.result for one in self._ranks if one.result is not None and not one.result.measured]
        if any(not failures.blames_another(result) for result in told):
            return True
        died = any(one.ended and one.result is None for one in self._ranks)
        return since_s > _SETTLING_S and (died or self._agent_ended() or bool(told))

    def _failure(self) -> TrialResult:
        """The first error that a rank made itself; else the rank that died or hangs, or torchrun's message."""
        own = [one for one in self._ranks if one.result is not None and one.fails]
        first = next((one for one in own if not failures.blames_another(one.result)), None)
        if first is not None:
            return failures.of_rank(first.number, first.result)
        dead = [(one.number, one.pid) for one in self._ranks if one.ended and one.result is None and one.number >= 0]
        if dead and not failures.was_stopped_by_watchdog(self.spec.log_path):
            self._await_agent(_SETTLING_S)
            return failures.of_death(dead, self.spec.log_path)
        if any(not one.ended and one.result is None for one in self._ranks):
            return self._hang("the others waited for it until their time was over")
        if own:
            return failures.of_rank(own[0].number, own[0].result)
        return failures.of_torchrun(self.exit_code, self.folder, self.spec.log_path)

    def _hang(self, how: str) -> TrialResult:
        if not self._ranks and self.spec.world is not None and self.spec.world.options:
            return failures.of_no_meeting(self.spec.world.options, how)
        silent = [one for one in self._ranks if not one.ended and one.result is None and one.doing != WAITING]
        return failures.of_hang(tuple((one.number, one.pid, one.doing) for one in silent), how, self.spec.log_path)

    def _await_agent(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._agent_ended() and time.monotonic() < until:
            time.sleep(_POLL_S / 2)

    def end(self) -> None:
        """Wait for ranks that are done to leave, and end the others with torchrun."""
        if self._ranks and all(one.result is not None and one.result.measured for one in self._ranks):
            self._await_agent(_LEAVING_S)
        for one in self._ranks:
            with contextlib.suppress(OSError):
                one.connection.close()
            if one.pid and not self._agent_ended():
                household.kill(one.pid, group=True)  # torchrun made each the leader of a session
        if not self._agent_ended():
            self._await_agent(_SETTLING_S)
            household.kill(self.agent)


def torchrun_arguments(spec: TrialSpec, folder: Path) -> list[str]:
    """The command line of torchrun. The user's own options replace ``--standalone``."""
    assert spec.world is not None
    meets = list(spec.world.options) or ["--standalone"]
    numbers = ["--nproc-per-node", str(spec.world.ranks), "--log-dir", str(folder)]
    return [*meets, *numbers, "--no-python", *program_of_rank(str(folder / "s"))]
