"""The builder as the session's process sees it: it builds the workload once, and trials are forked from it."""

import atexit
import contextlib
import math
import time
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection

from advisor.process.channel import receive_message
from advisor.process.household import kill
from advisor.process.logs import stack_of
from advisor.records import BuilderReady, Forked, ForkEnded, TargetSpec, TrialKind, TrialSpec
from advisor.runner import fork_server
from advisor.runner.fork_server import CONTEXT

TOO_LONG = "building the model takes too long"
NOT_IMPORTED = "importing PyTorch takes too long"
_LOOK_EVERY_S = 0.1
# Time limit for the builder's answer to a spec, since it may be importing the compiler. Seconds.
_ANSWERS_WITHIN_S = 20.0
# Extra time for building beyond the target's own part: the builder waits for threads that are ending. Seconds.
_GRACE_S = 1.0


class ForkedTrial:
    """A trial that the builder forked, with the methods of :class:`multiprocessing.Process`. A pipe reports its end."""

    def __init__(self, pid: int, end: Connection) -> None:
        self.pid = pid
        self.exitcode: int | None = None
        self._end = end

    @property
    def sentinel(self) -> int:
        """A descriptor that is ready to read when the trial has ended."""
        return self._end.fileno()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the trial has ended, for at most ``timeout`` seconds."""
        if self._end.closed:
            return
        with contextlib.suppress(EOFError, OSError):  # the builder is gone, so the exit code is unknown
            message = receive_message(self._end, timeout)
            if message is None:
                return
            self.exitcode = message.exitcode if isinstance(message, ForkEnded) else None
        self._end.close()

    def is_alive(self) -> bool:
        """Whether the trial still runs."""
        self.join(0)
        return not self._end.closed

    def kill(self) -> None:
        """End the trial's process."""
        kill(self.pid)


class Builder:
    """One builder process for one target. It ends with the session. ``imported`` lists modules for another builder."""

    def __init__(self, target: TargetSpec, seed: int, log_path: str, imports: BuilderReady | None = None) -> None:
        self.target = target
        self.seed = seed
        self.usable = False
        self.imported: BuilderReady | None = None
        self._log_path = log_path
        self._connection, self._theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_enter, args=(target, seed, self._theirs, log_path, imports))

    def build(self, timeout_s: float, cancelled: Callable[[], bool], within_s: float = math.inf) -> str:
        """Wait until the target is built. Return the reason that trials cannot be forked from it; empty if they can.

        ``timeout_s`` limits the building, ``within_s`` also the start of the process, which imports torch.
        """
        until = time.monotonic() + within_s
        atexit.register(self.close)  # multiprocessing waits at exit for a process that nobody has ended
        try:
            fork_server.start(self._process, cancelled, within_s=within_s)
        except TimeoutError:
            return NOT_IMPORTED
        except OSError as error:
            return f"the process that builds the model did not start: {error}"
        finally:
            self._theirs.close()
        now = time.monotonic()
        # If the import took all of the time, building still gets a little.
        until = min(now + timeout_s + _GRACE_S, max(until, now + _GRACE_S))
        with contextlib.suppress(EOFError, OSError):
            while time.monotonic() < until and not cancelled():
                ready = receive_message(self._connection, _LOOK_EVERY_S)
                if isinstance(ready, BuilderReady):
                    self.usable, self.imported = not ready.problem, ready if ready.modules else None
                    return ready.problem
            if self._process.pid is not None and not cancelled():
                stack_of(self._process.pid, self._log_path)  # for readers of the log
            return TOO_LONG
        return "the process that builds the model ended"

    def serves(self, spec: TrialSpec) -> bool:
        """Whether this trial can be forked: it has the same target, and no settings to apply before building."""
        same = spec.target == self.target and spec.seed == self.seed
        # An export is verified in a new program.
        by_itself = spec.kind in (TrialKind.TURNS, TrialKind.VERIFY, TrialKind.PACKAGE) or spec.world is not None
        return self.usable and same and not spec.environment and not by_itself

    def fork(self, spec: TrialSpec, theirs: Connection, asked_at: float) -> ForkedTrial:
        """Fork a trial; ``theirs`` is its end of the connection. Raises OSError or EOFError if the builder is gone."""
        end, told = CONTEXT.Pipe(duplex=False)
        try:
            self._connection.send((spec, asked_at))
            for connection in (theirs, told):
                reduction.send_handle(self._connection, connection.fileno(), self._process.pid)
            answer = receive_message(self._connection, _ANSWERS_WITHIN_S)
        except (EOFError, OSError):
            self.close()
            raise
        finally:
            told.close()
        if not isinstance(answer, Forked):
            self.close()  # else it would fork the trial later, beside the trial that is started instead
            raise OSError("the process that builds the target did not answer")
        return ForkedTrial(answer.pid, end)

    def close(self) -> None:
        """End the builder."""
        atexit.unregister(self.close)
        self.usable = False
        self._connection.close()
        if self._process.pid is not None:
            kill(self._process.pid, group=True)
            if self._process.is_alive():  # it may not lead its own group yet
                self._process.kill()
            self._process.join(1.0)


def _enter(target: TargetSpec, seed: int, connection: Connection, log_path: str, imports: BuilderReady | None) -> None:
    """The builder's first function. Its import is here since it imports torch, which the fork server preloads."""
    from advisor.trial.starting import import_main

    import_main(connection, log_path)
    from advisor.trial.builder import builder_main

    builder_main(target, seed, connection, log_path, imports)
