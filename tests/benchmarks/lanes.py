"""Lanes: workloads measured on several GPUs at a time.

A lane is a process with one GPU and its share of the cores, which takes one workload after the other from a common
queue. This module imports no torch: a lane does, once it has its cores.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from catalogue import WORKLOADS, Workload
from options import Options
from processes import NVML_CHECK, end_children, environment_with


class Lanes:
    """The queue of workloads, and the lanes that empty it, longest workload first.

    ``within_s`` is the time for all: a workload that is not expected to end within it is not started.
    ``workload_limit_s`` ends a workload that hangs, with its lane, which is started anew. ``timing_share`` is the share
    of the usual timing that is done.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        options: Options,
        *,
        lanes: int,
        expected_s: int,
        within_s: float | None,
        workload_limit_s: float,
        timing_share: float = 1.0,
    ) -> None:
        self.left = sorted(workloads, key=lambda workload: -workload.timing_s)
        self.options = options
        self.lanes = lanes
        self.expected_s = expected_s
        self.within_s = within_s
        self.workload_limit_s = workload_limit_s
        self.timing_share = timing_share
        self.started = time.monotonic()
        self._lock = threading.Lock()
        self._ended = False

    def run(self) -> list[Workload]:
        """Measure all workloads; return those that were not started for lack of time."""
        others = psutil.Process().children(recursive=True)
        threads = [threading.Thread(target=self._empty, args=(lane,)) for lane in range(self.lanes)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._ended = True
            end_children(os.getpid(), spared=others)
        return self.left

    def _empty(self, lane: int) -> None:
        process = None
        while workload := self._next():
            process = process or Lane(lane, self.lanes, self.options)
            failure = process.measure(workload, self.workload_limit_s)
            if failure and not self._ended:
                note_failure(process.options.results / f"{workload.name}.json", workload, failure)
                say(lane, workload.name, failure)
            if process.ended:
                process.end()
                process = None
        if process:
            process.end()

    def _next(self) -> Workload | None:
        """Take the first workload for which there is time."""
        with self._lock:
            spent_s = time.monotonic() - self.started
            for workload in self.left:
                needed_s = self.expected_s + self.timing_share * workload.timing_s
                if not self._ended and (self.within_s is None or spent_s + needed_s <= self.within_s):
                    self.left.remove(workload)
                    return workload
        return None


class Lane:
    """A process with a GPU and cores of its own, which measures the workloads that it is told.

    ``ended`` says that it measures no more: it hangs or has died.
    """

    def __init__(self, number: int, of: int, options: Options) -> None:
        self.number = number
        self.options = options
        self.ended = False
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there, number, cores_of(number, of), options))
        with _STARTING, environment_with(environment_of(number, of)):
            self._process.start()
        there.close()

    def measure(self, workload: Workload, limit_s: float) -> str:
        """Measure a workload in the lane; the reason when it came to no end, else an empty text."""
        try:
            self._here.send(workload.name)
            answered = self._here.poll(limit_s)
            self.ended = not answered
            return str(self._here.recv()) if answered else f"took longer than {limit_s:.0f} s"
        except (EOFError, OSError):
            self.ended = True
            self._process.join(1)
            return f"its lane ended with exit code {self._process.exitcode}"

    def end(self) -> None:
        """End the lane and everything that it started."""
        if self._process.pid:
            end_children(self._process.pid)
        self._process.kill()
        self._process.join()
        self._here.close()


# The environment is the whole process's while a lane starts.
_STARTING = threading.Lock()


def serve(there: Connection, lane: int, cores: list[int], options: Options) -> None:
    """Measure workloads by name until nobody asks any more. Runs in the lane's process."""
    if cores:
        os.sched_setaffinity(0, cores)
    # Libraries may ask for a GPU when they are imported; the usual way to ask would spoil CUDA in forked processes.
    os.environ[NVML_CHECK] = "1"
    from measure import Measurement

    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            workload = WORKLOADS[there.recv()]
            try:
                Measurement(workload, options, lambda text, name=workload.name: say(lane, name, text)).run()
                failure = ""
            except Exception as error:  # a workload that cannot be measured is a row with its reason
                failure = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
            shutil.rmtree(options.caches / workload.name, ignore_errors=True)
            there.send(failure)


def cores_of(lane: int, of: int) -> list[int]:
    """The lane's share of the cores, none in particular for a single lane or for fewer cores than lanes."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // of
    return cores[lane * each : (lane + 1) * each] if of > 1 and each else []


def environment_of(lane: int, of: int) -> dict[str, str]:
    """The GPU of a lane: of the visible ones, or by its number; any for a single lane."""
    if of == 1:
        return {}
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return {"CUDA_VISIBLE_DEVICES": visible[lane] if visible else str(lane)}


def note_failure(file: Path, workload: Workload, reason: str) -> None:
    """Write into a workload's result why it has no end; what was measured stays."""
    known: dict[str, Any] = {"workload": workload.name, "title": workload.title, "family": workload.family}
    known |= {"searches": {}, "variants": {}}
    if file.exists():
        known |= json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**known, "failed": reason}, indent=1), encoding="utf-8")


def say(lane: int, workload: str, text: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')} lane {lane} {workload}: {text}", file=sys.stderr, flush=True)
