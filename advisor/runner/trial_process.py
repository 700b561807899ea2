"""The process of one trial as its parent sees it: started, listened to, timed out and killed."""

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
# Longest time before a cancellation is noticed if the system cannot end the process. Seconds.
_LOOK_EVERY_S = 1.0
_BY_SIGNAL = "Leave out the first call below, where there is one, and run again."
# Files in the calls of a stack that show communication with other machines.
_NETWORK = ("/huggingface_hub/", "/httpx/", "/httpcore/", "/urllib", "/http/client.py", "/requests/", "/ssl.py")
_NO_NETWORK = (
    "It waited for the network: fetch what it needs first (`hf download NAME`) and set HF_HUB_OFFLINE=1, or find out "
    "why there is no answer."
)
# Files in the calls of a stack that show a wait for another process.
_PROCESSES = ("/multiprocessing/popen_", "/multiprocessing/spawn.py")
_NO_PROCESSES = "It waited for a process that it had started. Nothing is measured there: do the work in this process."
_LEFT = "Remove the call that ends the process, such as os._exit in the target; the trial's log may say more."

Listener = Callable[[TrialMessage], None]


class Trial:
    """One trial process as its parent sees it."""

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
        """The id of the trial's process, or None before it starts."""
        return self._process.pid if self._process is not None else None

    @property
    def leaving(self) -> int | None:
        """The id of a forked process that has reported but not ended and may hold GPU memory; None if there is none."""
        process = self._process if self._has_reported else None
        return process.pid if isinstance(process, ForkedTrial) and process.is_alive() else None

    def start(self) -> None:
        """Get the process from the builder or, if that fails, from the fork server."""
        asked_at = time.monotonic()
        self._connection, theirs = CONTEXT.Pipe()
        if self._builder is not None:
            with contextlib.suppress(EOFError, OSError):  # the builder has died
                self._process = self._builder.fork(self.spec, theirs, asked_at)
        if self._process is None:
            process = CONTEXT.Process(target=_enter_trial, args=(self.spec, theirs, asked_at), daemon=False)
            self._process = process
            try:  # the first trial waits for the fork server's import of torch, unless it is cancelled
                fork_server.start(process, lambda: self._cancelled, within_s=self.spec.timeout_s)
            except OSError as error:
                refused = refusal_of(error.__cause__ or error)
                self._end(Outcome.CRASHED, f"a trial could not be started: {error}", refused.hint if refused else "")
        theirs.close()
        self._deadline = time.monotonic() + self.spec.timeout_s

    def result(self) -> TrialResult:
        """Wait for the trial's end. Errors in the trial are not raised but become its result."""
        while self._result is None:
            self._receive()
        return self._result

    def result_by(self, moment: float) -> TrialResult | None:
        """The trial's result if it arrives before this moment of ``time.monotonic()``, else None."""
        while self._result is None and self._connection is not None:
            left_s = max(0.0, moment - time.monotonic())
            if not left_s and not self._connection.poll():
                break
            self._receive(left_s)
        return self._result

    def wait_ready(self) -> TrialResult | None:
        """Wait until an interactive trial has warmed up, then return None. If it ended earlier, return its result."""
        while self._result is None:
            if isinstance(self._receive(), messages.Ready):
                return None
        return self._result

    def measure_block(self, seconds: float) -> Block | TrialResult:
        """Have an interactive trial time one block. If it has ended, return its result instead."""
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
        """End the trial at once, from any thread. Its result says that it was cancelled."""
        self._cancelled = True
        self._kill_group()

    def kill(self) -> None:
        """Kill the trial's processes and wait for their end, unless the next trial waits for it (``leaving``)."""
        self._kill_group()
        if self._process is not None and self._process.pid is not None and self.leaving is None:
            self._process.join(GRACE_S)
        if self._connection is not None:
            self._connection.close()

    def _send(self, command: TrialCommand) -> None:
        # If the trial has died, the next receive notices it.
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(command)

    def _receive(self, within_s: float = math.inf) -> TrialMessage | None:
        """The next message, after the listener got it; None if there is none yet or the trial ended without one."""
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
        """Set the result of a process that ended without one, usually because of a signal."""
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
        # Before the user's code runs, a trial may not handle the signal that asks for its stack yet.
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
        """Set the result of a trial that did not report one. A cancelled trial only says that it was cancelled."""
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
            # The group does not exist before the child's first instruction or after its last.
            if process.is_alive():
                process.kill()


def advice(stack: str, hint: str) -> tuple[str, str]:
    """The hint for a process that was stopped with this stack (``hint`` if nothing is known) and the user's calls."""
    calls = "\n".join(stack.splitlines()[:CALLS_TOLD])
    if any(part in calls for part in _NETWORK):
        return _NO_NETWORK, ""
    return _NO_PROCESSES if any(part in calls for part in _PROCESSES) else hint, own_calls(stack)


def _enter_trial(spec: TrialSpec, connection: Connection, asked_at: float) -> None:
    """The trial's first function. Its imports are here because they import torch, which the fork server preloads."""
    from advisor.trial.starting import import_main, replace_program

    if spec.environment and spec.world is None:
        replace_program(spec, connection, asked_at)
    main = import_main(connection, spec.log_path)
    if spec.world is not None:
        from advisor.ranks.launcher import launch_main

        launch_main(spec, connection, asked_at)
    main.trial_main(spec, connection, asked_at)
