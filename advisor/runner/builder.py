"""The builder, seen from the session's process: it builds the workload once, and trials are forked from it."""

import atexit
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path

from advisor.process.channel import GarbageError, Inbox, send_message
from advisor.process.household import kill
from advisor.process.stacks import innermost_calls
from advisor.records import BuilderReady, ForkAhead, Forked, ForkEnded, TargetSpec, TrialKind, TrialSpec
from advisor.runner import fork_server
from advisor.runner.fork_server import CONTEXT
from advisor.runner.process_stack import stands_still

TOO_LONG = "building the model takes too long"
NOT_IMPORTED = "importing PyTorch takes too long"
_LOOK_EVERY_S = 0.1
# Time limit of trying a fork after building. Seconds; at most 2 were measured on two busy cores.
_TRIES_FORKS_WITHIN_S = 5.0
# It waits a while for a trial to end, and imports the compiler once.
_ANSWERS_WITHIN_S = 20.0


class ForkedTrial:
    """A trial that the builder forked, with the interface of :class:`multiprocessing.Process`.

    ``reported`` is set when it has said its last word. From then on the next one may be forked, which takes no memory
    before this one has ended.
    """

    def __init__(self, pid: int, connection: Connection, inbox: Inbox) -> None:
        self.pid = pid
        self.exitcode: int | None = None
        self._connection = connection
        self._inbox = inbox
        self._ended = False
        self.reported = False

    @property
    def sentinel(self) -> int:
        """Ready to read when the trial has ended, or the builder has."""
        return self._connection.fileno()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the trial has ended, for ``timeout`` seconds at most."""
        if self._ended:
            return
        with contextlib.suppress(EOFError, OSError):
            message = self._inbox.next(timeout)
            if message is None:
                return
            self.exitcode = message.exitcode if isinstance(message, ForkEnded) else None
        self._ended = True

    def is_alive(self) -> bool:
        """Whether the trial still runs."""
        self.join(0)
        return not self._ended

    def kill(self) -> None:
        """End the trial's process."""
        kill(self.pid)


class Builder:
    """One builder process for one target. It forks one trial after another, and ends with the process that made it.

    With ``imports`` it imports these modules in place of building, and each trial builds the target. ``imported`` are
    the modules of installed packages that building imported, where no trial can be forked. ``helpers`` are processes
    that building started outside its group, such as a data server; None before a look.
    """

    def __init__(self, target: TargetSpec, seed: int, log_path: str, imports: Sequence[str] = ()) -> None:
        self.target = target
        self.imported: tuple[str, ...] = ()
        self.seed = seed
        self.usable = False
        self._log_path = log_path
        self._trial: ForkedTrial | None = None
        Path(log_path).parent.mkdir(parents=True, exist_ok=True)
        self._connection, self._theirs = CONTEXT.Pipe()
        self._inbox = Inbox(self._connection)
        arguments = (target, seed, self._theirs, log_path, imports)
        self._process = CONTEXT.Process(target=_enter, args=arguments, daemon=False)
        self.helpers: set[int] | None = None

    @property
    def pid(self) -> int | None:
        """The id of its process, once it has one."""
        return self._process.pid

    def build(
        self,
        timeout_s: float,
        cancelled: Callable[[], bool],
        within_s: float = math.inf,
        *,
        imports_slowly: Callable[[], None] = lambda: None,
    ) -> str:
        """Start the process, and wait until the target is built and a fork of it has been tried.

        ``timeout_s`` is for building alone, ``within_s`` for the process's start too, in which torch is imported;
        ``imports_slowly`` is called when that takes long.
        Returns why no trial can be forked from it; empty when they can.
        """
        until = time.monotonic() + within_s
        atexit.register(self.close)  # multiprocessing waits at exit for a process that nobody has ended
        try:
            fork_server.start(self._process, cancelled, within_s=within_s, imports_slowly=imports_slowly)
        except fork_server.ImportsTooLongError:
            return NOT_IMPORTED
        except OSError as error:
            return f"the process that builds the model did not start: {error}"
        finally:
            self._theirs.close()
        now = time.monotonic()
        # An import that took all of it leaves building a little.
        until = min(now + timeout_s + _TRIES_FORKS_WITHIN_S, max(until, now + _TRIES_FORKS_WITHIN_S))
        return self._wait(until, cancelled)

    def _wait(self, until: float, cancelled: Callable[[], bool]) -> str:
        with contextlib.suppress(EOFError, OSError):
            while time.monotonic() < until and not cancelled():
                ready = self._inbox.next(_LOOK_EVERY_S)
                if isinstance(ready, BuilderReady):
                    self.usable = not ready.problem
                    self.imported = ready.imported
                    return ready.problem
            if self.pid is not None and not cancelled() and not stands_still(self.pid):
                innermost_calls(self.pid, self._log_path)  # for who reads the log
            return TOO_LONG
        return "the process that builds the model ended"

    def serves(self, spec: TrialSpec) -> bool:
        """Whether this trial can be forked: it runs the same target and needs nothing from before it was built."""
        idle = self._trial is None or self._trial.reported or not self._trial.is_alive()
        same = spec.target == self.target and spec.seed == self.seed
        # An export is verified as in a program of its own.
        by_itself = spec.kind in (TrialKind.TURNS, TrialKind.VERIFY, TrialKind.PACKAGE) or spec.world is not None
        return self.usable and idle and same and not spec.environment and not by_itself

    def fork(self, spec: TrialSpec, theirs: Connection, asked_at: float) -> ForkedTrial:
        """Fork a trial that talks over ``theirs``. Raises OSError or EOFError when the builder is gone."""
        try:
            self._connection.send((spec, asked_at))
            reduction.send_handle(self._connection, theirs.fileno(), self._process.pid)
            while isinstance(answer := self._answer(), ForkEnded):
                pass  # the trial before, which nobody waits for
        except (EOFError, OSError):
            self.usable = False
            raise
        if not isinstance(answer, Forked):
            raise GarbageError("the builder does not answer as it should")
        self._trial = ForkedTrial(answer.pid, self._connection, self._inbox)
        return self._trial

    def fork_ahead(self) -> None:
        """Have the next trial's process forked before its spec is known: starting CUDA takes it a while."""
        with contextlib.suppress(OSError):  # the next trial finds out that the builder is gone
            self._connection.send(ForkAhead())

    def _answer(self) -> object:
        """The builder's next message. Raises OSError when it has none for long: it may have something to finish."""
        answer = self._inbox.next(_ANSWERS_WITHIN_S)
        if answer is None:
            raise TimeoutError
        return answer

    def join_reported(self, timeout: float) -> None:
        """Wait until a trial that has said its last word has ended, or so many seconds."""
        if self._trial is not None and self._trial.reported:
            self._trial.join(timeout)

    def close(self) -> None:
        """End the builder."""
        atexit.unregister(self.close)
        self.usable = False
        self._connection.close()
        if self._process.pid is not None:
            kill(self._process.pid, group=True)
            if self._process.is_alive():  # it may not lead a group of its own yet
                self._process.kill()
            self._process.join(1.0)


def _enter(target: TargetSpec, seed: int, connection: Connection, log_path: str, imports: Sequence[str]) -> None:
    """The builder's first function: preloaded with the fork server, and imported here alone because of torch."""
    try:
        from advisor.trial.builder import builder_main
    except BaseException as error:  # the first trial meets it too, and reports it
        with contextlib.suppress(OSError):
            send_message(connection, BuilderReady(f"PyTorch cannot be imported ({type(error).__name__})"))
        return
    builder_main(target, seed, connection, log_path, imports)
