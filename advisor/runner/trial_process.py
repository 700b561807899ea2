"""The process of one trial, seen from its parent: started, listened to, timed out and killed."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import cast

from advisor.errors import refusal_of
from advisor.process.channel import GarbageError, receive_message
from advisor.process.logs import CALLS_TOLD, last_words, own_calls, stack_of
from advisor.records import Block, Outcome, TrialCommand, TrialMessage, TrialResult, TrialSpec, messages
from advisor.runner import fork_server
from advisor.runner.builder import Builder, ForkedTrial
from advisor.runner.fork_server import CONTEXT

# Time for a process to end by itself before it is killed. Seconds.
GRACE_S = 5.0
# Longest wait for a cancellation to be seen where the system cannot end the process. Seconds.
_LOOK_EVERY_S = 1.0
_BY_SIGNAL = "Leave out the first call below, where there is one, and run again."
# Files, in the calls of a stack, of what speaks to other machines.
_NETWORK = ("/huggingface_hub/", "/httpx/", "/httpcore/", "/urllib", "/http/client.py", "/requests/", "/ssl.py")
_NO_NETWORK = (
    "It waited for the network: fetch what it needs first (`hf download NAME`) and set HF_HUB_OFFLINE=1, or see why "
    "there is no answer."
)
# Files, in the calls of a stack, of what waits for another process.
_PROCESSES = ("/multiprocessing/popen_", "/multiprocessing/spawn.py")
_NO_PROCESSES = "It waited for a process that it had started, in which nothing is measured: let this one do the work."
_LEFT = "Take out what ends the process, such as os._exit in the target; the trial's log may say more."

Listener = Callable[[TrialMessage], None]


class Trial:
    """One trial process, seen from its parent."""

    def __init__(self, spec: TrialSpec, listen: Listener, builder: Builder | None = None) -> None:
        self.spec = spec
        self._listen = listen
        self._builder = builder
        self._process: BaseProcess | ForkedTrial | None = None
        self._connection: Connection | None = None
        self._cancelled = False
        self._has_reported = False
        self._result: TrialResult | None = None
        self._deadline = 0.0
        self._activity = ""
        self._batch_size: int | None = None

    @property
    def pid(self) -> int | None:
        """The id of its process, once it has one."""
        return self._process.pid if self._process is not None else None

    @property
    def leaving(self) -> int | None:
        """The id of its process where that was forked, has reported and still ends: it may hold a GPU's memory."""
        process = self._process if self._has_reported else None
        return process.pid if isinstance(process, ForkedTrial) and process.is_alive() else None

    def start(self) -> None:
        """Ask the builder for the process, or the fork server."""
        asked_at = time.monotonic()
        self._connection, theirs = CONTEXT.Pipe()
        if self._builder is not None:
            with contextlib.suppress(EOFError, OSError):  # the builder has died
                self._process = self._builder.fork(self.spec, theirs, asked_at)
        if self._process is None:
            process = CONTEXT.Process(target=_enter_trial, args=(self.spec, theirs, asked_at), daemon=False)
            self._process = process
            try:  # the first trial waits for the fork server to have imported torch; a cancellation does not
                fork_server.start(process, lambda: self._cancelled, within_s=self.spec.timeout_s)
            except OSError as error:
                refused = refusal_of(error.__cause__ or error)
                self._end(Outcome.CRASHED, f"a trial could not be started: {error}", refused.hint if refused else "")
        theirs.close()
        self._deadline = time.monotonic() + self.spec.timeout_s

    def result(self) -> TrialResult:
        """Wait for the trial's end. Never raises for what happens in the trial."""
        while self._result is None:
            self._receive()
        return self._result

    def result_by(self, moment: float) -> TrialResult | None:
        """The trial's result, if it has one before this moment of ``time.monotonic()``."""
        while self._result is None and self._connection is not None:
            left_s = max(0.0, moment - time.monotonic())
            if not left_s and not self._connection.poll():
                break
            self._receive(left_s)
        return self._result

    def wait_ready(self) -> TrialResult | None:
        """Wait until an interactive trial has warmed up: None then, or its result when it ended before."""
        while self._result is None:
            if isinstance(self._receive(), messages.Ready):
                return None
        return self._result

    def measure_block(self, seconds: float) -> Block | TrialResult:
        """Have an interactive trial time one block. Return the trial's result instead if it has ended."""
        self._send(seconds)
        while self._result is None:
            if isinstance(message := self._receive(), Block):
                return message
        return self._result

    def finish(self) -> TrialResult:
        """Tell an interactive trial to report, and wait for it."""
        self._send(None)
        return self.result()

    def cancel(self) -> None:
        """End the trial at once, from any thread; its result says so."""
        self._cancelled = True
        self._kill_group()

    def kill(self) -> None:
        """Kill the trial's processes, and wait for the end unless the next trial does (``leaving``)."""
        self._kill_group()
        if self._process is not None and self._process.pid is not None and self.leaving is None:
            self._process.join(GRACE_S)
        if self._connection is not None:
            self._connection.close()

    def _send(self, command: TrialCommand) -> None:
        # A trial that has died is noticed by the next receive.
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(command)

    def _receive(self, within_s: float = math.inf) -> TrialMessage | None:
        """The next message, which the listener gets first; None if there is none yet, or the trial ended without."""
        if self._cancelled or self._connection is None or self._process is None:
            self._end(Outcome.CANCELLED)
            return None
        left_s = min(max(0.0, self._deadline - time.monotonic()), _LOOK_EVERY_S, within_s)
        ready = wait([self._connection, self._process.sentinel], timeout=left_s)
        if self._connection not in ready:
            if ready and not self._process.is_alive():
                self._end_by_death()
            elif time.monotonic() >= self._deadline:
                self._time_out()
            return None
        try:
            message = cast("TrialMessage", receive_message(self._connection))
        except GarbageError as error:
            self._end(Outcome.CRASHED, str(error))
            return None
        except (EOFError, OSError):
            self._end_by_death()
            return None
        if isinstance(message, TrialResult):
            self._result = message
            self._has_reported = True
        elif isinstance(message, messages.Activity):
            self._activity = message.text
        elif isinstance(message, messages.Inspected):
            self._batch_size = message.workload.batch_size
        self._listen(message)
        return message

    def _end_by_death(self) -> None:
        """The process ended without a last word: a signal, most often."""
        assert self._process is not None
        self._process.join(GRACE_S)
        code = self._process.exitcode
        if code is None or code >= 0:
            self._end(Outcome.CRASHED, f"the trial process ended with exit code {code}", _LEFT)
        elif code == -signal.SIGKILL:
            why = "SIGKILL (the system kills a process that takes too much memory, unless a person did)"
            self._end(Outcome.OUT_OF_MEMORY, f"the trial process was ended by {why}", "Try a smaller batch size.")
        else:
            self._end(Outcome.CRASHED, f"the trial process was ended by {signal.Signals(-code).name}", _BY_SIGNAL)

    def _time_out(self) -> None:
        # Before it comes to the user's code a trial may not know the signal that asks for its calls.
        stack = stack_of(self.pid, self.spec.log_path) if self._activity and self.pid is not None else ""
        self._kill_group()
        half = (self._batch_size or 0) // 2
        hint = "Give it more time with --budget" + (f", or shorter steps with --batch-size {half}." if half else ".")
        if self._activity == "loading the model":
            hint = f"Give it more time with --budget: loading {self.spec.target.target} took all of it."
        hint, calls = advice(stack, hint)
        doing = f" ({self._activity})" if self._activity else ""
        self._end(Outcome.TIMED_OUT, f"no result after {self.spec.timeout_s:.0f} s{doing}", hint, calls)

    def _end(self, outcome: Outcome, reason: str = "", hint: str = "", details: str = "") -> None:
        """Set the result of a trial that has none of its own. Of one that was cancelled it says no more than that."""
        path = self.spec.log_path
        if self._cancelled:
            self._result = TrialResult(Outcome.CANCELLED, "cancelled", log_path=path)
        else:
            hint, details = hint or "The trial's log may say more.", details or last_words(path)
            self._result = TrialResult(outcome, reason, hint, details, log_path=path)

    def _kill_group(self) -> None:
        process = self._process
        if process is None or process.pid is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The group does not exist before the child's first instruction, nor after its last.
            if process.is_alive():
                process.kill()


def advice(stack: str, hint: str) -> tuple[str, str]:
    """The hint for a process that was stopped with this stack, ``hint`` by default; and its own calls."""
    calls = "\n".join(stack.splitlines()[:CALLS_TOLD])
    if any(part in calls for part in _NETWORK):
        return _NO_NETWORK, ""
    return _NO_PROCESSES if any(part in calls for part in _PROCESSES) else hint, own_calls(stack)


def _enter_trial(spec: TrialSpec, connection: Connection, asked_at: float) -> None:
    """The trial's first function: what imports torch is preloaded with the fork server, and imported here alone."""
    from advisor.trial.starting import import_main, replace_program

    if spec.environment and spec.world is None:
        replace_program(spec, connection, asked_at)
    main = import_main(connection, spec.log_path)
    if spec.world is not None:
        from advisor.ranks.launcher import launch_main

        launch_main(spec, connection, asked_at)
    main.trial_main(spec, connection, asked_at)
