"""Fresh interpreters, seen from the session's process: each starts with an environment of its own and runs one trial.

One can be started before its trial is known. It imports meanwhile what every trial needs, which takes seconds.
"""

import atexit
import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from advisor.records import TrialSpec
from advisor.runner import fork_server
from advisor.runner.fork_server import CONTEXT

_GRACE_S = 1.0
# A process has been forked, and makes ready to replace its program. Seconds.
_REPLACED_WITHIN_S = 30.0


class Interpreter:
    """A process with this environment, not yet started. Its trial talks over ``connection``."""

    def __init__(self, environment: Mapping[str, str], log_path: str) -> None:
        self._log_path = log_path
        Path(log_path).parent.mkdir(parents=True, exist_ok=True)
        self.connection, self._theirs = CONTEXT.Pipe()
        arguments = (dict(environment), self._theirs, log_path)
        self.process = CONTEXT.Process(target=_enter, args=arguments, daemon=False)

    def start(self, give_up: Callable[[], bool] = lambda: False, within_s: float = math.inf) -> None:
        """Start the process; returns when it will end with its parent. Raises OSError or EOFError when it cannot.

        ``within_s`` is for a fork server that has to import torch first.
        """
        try:
            fork_server.start(self.process, give_up, within_s=within_s)
        finally:
            self._theirs.close()
        if not self.connection.poll(_REPLACED_WITHIN_S):
            raise TimeoutError("it does not answer")
        self.connection.recv()

    def run(self, spec: TrialSpec, asked_at: float) -> bool:
        """Give it its trial, once; it may still be importing. False for one that has ended meanwhile.

        What it has written so far is in the trial's log, also when it never comes to the trial.
        """
        with contextlib.suppress(FileNotFoundError):  # it has only just been started, and sees to it itself
            Path(self._log_path).replace(spec.log_path)
        try:
            self.connection.send((spec, asked_at))
        except OSError:
            return False
        return self.process.is_alive()

    def stand_still(self) -> None:
        """Stop it where it is, until it is to :meth:`go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.process.pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process.pid, number)

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self._signal(signal.SIGKILL)
        if self.process.pid is not None:
            self.process.join(_GRACE_S)


class Interpreters:
    """Interpreters that wait for their trials, by environment. They stand still unless they are told to import."""

    def __init__(self) -> None:
        self._waiting: dict[frozenset[tuple[str, str]], Interpreter] = {}

    def start(self, environment: Mapping[str, str], log_path: str) -> None:
        """Start an interpreter for a later trial; it stands still at first. Where one waits already, do nothing."""
        if self.has(environment):
            return
        interpreter = Interpreter(environment, log_path)
        interpreter.start()
        interpreter.stand_still()
        if not self._waiting:
            atexit.register(self.close)  # multiprocessing waits at exit for a process that nobody has ended
        self._waiting[_key(environment)] = interpreter

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that wait."""
        return [waiting.process.pid for waiting in list(self._waiting.values()) if waiting.process.pid is not None]

    def has(self, environment: Mapping[str, str]) -> bool:
        """Whether one waits for a trial with this environment."""
        return _key(environment) in self._waiting

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Let all waiting interpreters import while the block runs; nothing may be timed in it."""
        for interpreter in list(self._waiting.values()):
            interpreter.go_on()
        try:
            yield
        finally:
            for interpreter in list(self._waiting.values()):  # a cancellation from another thread ends them
                interpreter.stand_still()

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def take(self, spec: TrialSpec, asked_at: float) -> Interpreter | None:
        """One that has begun with this trial; None when none waits for it."""
        interpreter = self._waiting.pop(_key(spec.environment), None)
        if interpreter is None:
            return None
        interpreter.go_on()
        if not interpreter.run(spec, asked_at):
            interpreter.close()
            return None
        return interpreter

    def close(self) -> None:
        """End those that still wait."""
        atexit.unregister(self.close)
        with contextlib.suppress(KeyError):  # empty, perhaps since another thread closes them too
            while True:
                self._waiting.popitem()[1].close()


def _key(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(environment.items())


def _enter(environment: dict[str, str], connection: Connection, log_path: str) -> None:
    """The first function of the child: replaces its program by a fresh interpreter with the environment."""
    from advisor.trial.fresh import replace_program

    replace_program(environment, connection, log_path)
