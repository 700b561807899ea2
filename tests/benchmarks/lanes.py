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
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from catalogue import Options, Workload
from processes import NVML_CHECK, end_with_children, environment_with

# The environment is the whole process's while a lane starts one.
_STARTING = threading.Lock()


def run_lanes(work: Sequence[Callable[[int], None]], lanes: int) -> None:
    """Do all that is on a list, each with the number of the lane that does it."""
    left, lock = list(work), threading.Lock()

    def empty(lane: int) -> None:
        while True:
            with lock:
                if not left:
                    return
                task = left.pop(0)
            task(lane)

    threads = [threading.Thread(target=empty, args=(lane,), daemon=True) for lane in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interruption
        for child in psutil.Process().children():
            end_with_children(child.pid)
        raise


def measure_in_lanes(
    workloads: Sequence[Workload], options: Options, *, lanes: int, within_s: float, limit_s: float
) -> list[Workload]:
    """Measure workloads, the longest first; return those that would not have ended within ``within_s``, not started.

    ``limit_s`` ends a workload that hangs.
    """
    started, not_started = time.monotonic(), []

    def task(workload: Workload) -> Callable[[int], None]:
        def run(lane: int) -> None:
            if time.monotonic() - started + options.budget_s + workload.timing_s > within_s:
                not_started.append(workload)
            elif failure := _measured(workload, lane, lanes, options, limit_s):
                say(lane, workload.name, failure)
                note_failure(options.file_of(workload), workload, failure)

        return run

    run_lanes([task(workload) for workload in sorted(workloads, key=lambda one: -one.timing_s)], lanes)
    return not_started


def _measured(workload: Workload, lane: int, of: int, options: Options, limit_s: float) -> str:
    """Measure a workload in a process with the lane's GPU and cores; the reason when it came to no end, else empty."""
    arguments = workload, lane, cores_of(lane, of), options
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=arguments)
    with _STARTING, environment_with(environment_of(lane, of)):
        process.start()
    process.join(limit_s)
    code = process.exitcode
    assert process.pid is not None
    end_with_children(process.pid)
    process.join()
    shutil.rmtree(options.caches / workload.name, ignore_errors=True)
    return f"took longer than {limit_s:.0f} s" if code is None else f"ended with exit code {code}" if code else ""


def _measure(workload: Workload, lane: int, cores: list[int], options: Options) -> None:
    """Measure a workload. Runs in a process of its own."""
    if cores:
        os.sched_setaffinity(0, cores)
    # Libraries may ask for a GPU when they are imported; the usual way to ask would spoil CUDA in forked processes.
    os.environ[NVML_CHECK] = "1"
    from measure import measure

    measure(workload, options, lambda text: say(lane, workload.name, text))


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
    known = {"workload": workload.name, "title": workload.title, "family": workload.family, "variants": {}}
    if file.exists():
        known |= json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**known, "failed": reason}, indent=1), encoding="utf-8")


def say(lane: int, workload: str, text: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')} lane {lane} {workload}: {text}", file=sys.stderr, flush=True)
