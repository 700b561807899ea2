"""The runner: trials run one after another, forked from one build. Never imports torch.

A fork server that has imported torch starts a trial in tens of milliseconds. Each trial has its own process group, so
that its DataLoader and compile workers die with it. Any error in a trial becomes a ``TrialResult``.
"""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from advisor.records import TargetSpec, TrialResult, TrialSpec
from advisor.runner import fork_server
from advisor.runner.builder import Builder
from advisor.runner.log_files import bounded
from advisor.runner.trial_process import Listener, Trial


class Runner:
    """Runs trials one after another, or two that take turns. ``cancel`` ends all of them, from any thread."""

    def __init__(self) -> None:
        self._live: set[Trial] = set()
        self._lock = threading.Lock()
        self._builder: Builder | None = None
        self._before: Trial | None = None
        self._beside: Trial | None = None
        self._stopped_s = 0.0  # how long the compilation beside trials was stopped
        self._leaving_beside = contextlib.ExitStack()
        self.cancelled = False

    prepare = staticmethod(fork_server.prepare)  # must come before an app takes the terminal

    def build_once(
        self, target: TargetSpec, seed: int, log_path: str, timeout_s: float, within_s: float = math.inf
    ) -> str:
        """Build a target in a process from which its later trials are forked; ``Builder.build`` explains the times.

        Returns the reason if that failed, else an empty text. After a failure each trial builds the target itself.
        """
        self.forget_build()
        builder = Builder(target, seed, log_path)
        with bounded(log_path):
            problem = builder.build(timeout_s, lambda: self.cancelled, within_s)
            if builder.imported and not self.cancelled:
                builder.close()
                builder = Builder(target, seed, log_path, builder.imported)
                builder.build(timeout_s, lambda: self.cancelled)
        if builder.usable:
            self._builder = builder
        else:
            builder.close()
        return problem

    def forget_build(self) -> bool:
        """End the process from which trials are forked, and return whether there was one."""
        builder, self._builder = self._builder, None
        if builder is not None:
            builder.close()
        return builder is not None

    def run(self, spec: TrialSpec, listen: Listener) -> TrialResult:
        """Run a trial to its end and return its result, even if it fails, hangs, crashes or is cancelled."""
        with self.open(spec, listen) as trial:
            return trial.result()

    def compile_beside(self, spec: TrialSpec) -> None:
        """Start a trial that only compiles, beside other trials, to fill the compiler's cache. One at a time."""
        self.end_beside()
        self._stopped_s = 0.0
        self._beside = self._leaving_beside.enter_context(self.open(spec, lambda message: None))

    def compiled_beside(self, within_s: float = 0.0) -> TrialResult | None:
        """The result of the background compilation; None if none arrives within the time or nothing compiles."""
        beside = self._beside
        result = beside.result_by(time.monotonic() + within_s) if beside is not None else None
        if result is not None:
            self.end_beside()
            lost_s, wall_s, warmup_s = self._stopped_s, result.wall_s, result.warmup_s
            result = replace(result, wall_s=wall_s and wall_s - lost_s, warmup_s=warmup_s and warmup_s - lost_s)
        return result

    def end_beside(self) -> None:
        """End the background compilation, if there is one."""
        self._beside = None
        self._leaving_beside.close()

    @contextlib.contextmanager
    def beside_stopped(self) -> Iterator[None]:
        """Pause the background compilation, which slows steps. If this process dies, the fork server ends it."""
        group = self._beside.pid if self._beside is not None else None
        if group is None:
            yield
            return
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)
            self._stopped_s += time.monotonic() - began

    @contextlib.contextmanager
    def open(self, spec: TrialSpec, listen: Listener) -> Iterator[Trial]:
        """A live trial, which is killed with its whole process group at the end of this context."""
        builder = self._builder if self._builder is not None and self._builder.serves(spec) else None
        beside = self._beside.pid if self._beside is not None else None
        leaving = self._before.leaving if self._before is not None else None
        trial = Trial(replace(spec, beside=beside, leaving=leaving), listen, builder)
        with self._lock:
            self._live.add(trial)
            cancelled = self.cancelled
        with bounded(spec.log_path):
            try:
                (trial.cancel if cancelled else trial.start)()
                yield trial
            finally:
                trial.kill()
                self._before = trial
                with self._lock:
                    self._live.discard(trial)

    def cancel(self) -> None:
        """End every live trial at once. Later trials do not start."""
        self.cancelled = True
        self.skip(beside=True)

    def skip(self, *, beside: bool = False) -> None:
        """End every live trial at once, and the background compilation if ``beside``. Later trials start as usual."""
        with self._lock:
            live = [trial for trial in self._live if beside or trial is not self._beside]
        for trial in live:
            trial.cancel()

    def resume(self) -> None:
        """Allow trials again after :meth:`cancel`."""
        self.cancelled = False
