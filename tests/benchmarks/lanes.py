"""Lanes: workloads measured on several GPUs at a time.

A lane has one GPU and its share of the cores, and takes one workload after the other from a common queue. This module
imports no torch: the process that measures a workload does, once it has its cores.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
from catalogue import Workload
from options import Options
from processes import NVML_CHECK, end_children, environment_with


class Lanes:
    """The queue of workloads, and the lanes that empty it, longest workload first.

    ``within_s`` is the time for all: a workload that is not expected to end within it is not started.
    ``workload_limit_s`` ends a workload that hangs. ``timing_share`` is the share of the usual timing that is done.
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
        while workload := self._next():
            failure = measured(workload, lane, self.lanes, self.options, self.workload_limit_s)
            if failure and not self._ended:
                note_failure(self.options, lane, workload, failure)

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


# The environment is the whole process's while a lane starts one.
_STARTING = threading.Lock()


def measured(workload: Workload, lane: int, of: int, options: Options, limit_s: float) -> str:
    """Measure a workload in a process with the lane's GPU and cores; the reason when it came to no end, else empty."""
    arguments = workload, lane, cores_of(lane, of), options
    process = multiprocessing.get_context("spawn").Process(target=measure_workload, args=arguments)
    with _STARTING, environment_with(environment_of(lane, of)):
        process.start()
    process.join(limit_s)
    code = process.exitcode
    assert process.pid is not None
    end_children(process.pid)
    process.kill()
    process.join()
    shutil.rmtree(options.caches / workload.name, ignore_errors=True)
    return f"took longer than {limit_s:.0f} s" if code is None else f"ended with exit code {code}" if code else ""


def measure_workload(workload: Workload, lane: int, cores: list[int], options: Options) -> None:
    """Measure a workload. Runs in a process of its own."""
    if cores:
        os.sched_setaffinity(0, cores)
    # Libraries may ask for a GPU when they are imported; the usual way to ask would spoil CUDA in forked processes.
    os.environ[NVML_CHECK] = "1"
    from measure import Measurement

    try:
        Measurement(workload, options, lambda text: say(lane, workload.name, text)).run()
    except Exception as error:  # a workload that cannot be measured is a row with its reason
        failure = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
        note_failure(options, lane, workload, failure)


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


def note_failure(options: Options, lane: int, workload: Workload, reason: str) -> None:
    """Say why a workload has no end, and write it into its result; what was measured stays."""
    say(lane, workload.name, reason)
    file = options.results / f"{workload.name}.json"
    known: dict[str, Any] = {"workload": workload.name, "title": workload.title, "family": workload.family}
    known |= {"searches": {}, "variants": {}}
    if file.exists():
        known |= json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**known, "failed": reason}, indent=1), encoding="utf-8")


def say(lane: int, workload: str, text: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')} lane {lane} {workload}: {text}", file=sys.stderr, flush=True)
