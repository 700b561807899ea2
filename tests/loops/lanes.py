"""Loops in many processes at a time: nothing is timed here, so they share GPUs and cores.

A lane is forked from a process that has imported torch and never touches CUDA. It takes one loop with some of its cases
after the other, and tells of each row as it comes. A lane that hangs, dies, or whose GPU has failed is replaced: the
case that it was at becomes a row with the reason, and the cases after it go to another lane.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported once, here, and not in each lane
from torch._inductor import config

from loops.cases import TIMES_KERNELS, Case, cases_of
from loops.register import Loop, all_loops
from loops.table import Row, rows_of

# Usual seconds of a case, by what it does; only their order matters. Estimated from runs on an H200.
_EAGER_S, _COMPILING_S, _TIMING_KERNELS_S = 0.3, 5.0, 60.0
# A loop that a framework runs takes about this many times as long. Unitless.
_FRAMEWORK_TIMES = 5
# Units that a lane runs before it is replaced: what a compiler keeps in a process adds up. Count.
_UNITS_OF_A_LANE = 40
# Cores that time kernels; everything else compiles in its own process. Count.
_THREADS_FOR_KERNELS = 8


@dataclass(frozen=True, slots=True)
class Unit:
    """A loop and the cases of it that one lane runs one after the other."""

    loop: Loop
    cases: tuple[Case, ...]

    @property
    def usual_s(self) -> float:
        """About how long it takes, in seconds."""
        times = _FRAMEWORK_TIMES if "framework" in self.loop.traits else 1
        return sum(map(_usual_s, self.cases)) * len(self.loop.directions) * times

    def from_(self, name: str) -> Unit:
        """Return the case of this name and those after it."""
        names = [case.name for case in self.cases]
        return replace(self, cases=self.cases[names.index(name) :])


def units_of(loop: Loop, cases: Sequence[Case]) -> list[Unit]:
    """A unit for everything that is quick, and one for each case that compiles."""
    quick = tuple(case for case in cases if not case.compiles)
    slow = [Unit(loop, (case,)) for case in cases if case.compiles]
    return [Unit(loop, quick), *slow] if quick else slow


def rows_in_lanes(
    units: Iterable[Unit], device: str, *, lanes: int, row_limit_s: float, within_s: float, logs: Path
) -> Iterator[Row]:
    """Run units in lanes, the longest first, and yield rows as they come.

    A case that takes longer than ``row_limit_s`` ends its lane. After ``within_s`` everything ends; what did not run
    is a row with the outcome ``not run``.
    """
    left = sorted(units, key=lambda unit: -unit.usual_s)
    until = time.monotonic() + within_s
    gpus = _visible_gpus() if device == "cuda" else []
    start = "fork" if device != "cuda" or _forks_can_use_cuda() else "spawn"
    running = [
        _Lane(number, gpus[number % len(gpus)] if gpus else None, device, logs, start) for number in range(lanes)
    ]
    try:
        while (busy := [lane for lane in running if lane.take_from(left)]) and time.monotonic() < until:
            ready = wait([lane.here for lane in busy], timeout=1.0)
            for lane in busy:
                if lane.here in ready:
                    yield from lane.rows(left)
                elif lane.waited_s > row_limit_s * (2 if lane.times_kernels else 1):
                    yield lane.given_up("timed out", f"it did not end within {lane.waited_s:.0f} s", left)
        for unit in [*left, *(lane.rest for lane in running if lane.rest)]:
            yield from (Row(unit.loop.name, case.name, "", "not run", (), 0.0) for case in unit.cases)
    finally:
        for lane in running:
            lane.end()


class _Lane:
    """A process that runs units, as its parent sees it. ``rest``: what of its unit has not come to an end."""

    def __init__(self, number: int, gpu: str | None, device: str, logs: Path, start: str) -> None:
        self._gpu, self._device, self._how = gpu, device, start
        self._log = logs / f"lane{number}.log"
        self._process: Any = None
        self.here: Connection = None  # type: ignore[assignment]
        self.rest: Unit | None = None
        self._at, self._since, self._units = "", 0.0, 0

    @property
    def waited_s(self) -> float:
        """Seconds since it told of anything."""
        return time.monotonic() - self._since

    @property
    def times_kernels(self) -> bool:
        """Whether the case that it is at tries many kernels, which takes longer."""
        return self._at in TIMES_KERNELS

    def take_from(self, left: list[Unit]) -> bool:
        """Take a unit where it has none; return whether it has one now."""
        if self.rest is None and left:
            if self._process is None or self._units >= _UNITS_OF_A_LANE:
                self._start()
            self.rest, self._at, self._since = left.pop(0), "", time.monotonic()
            self._units += 1
            self.here.send((self.rest.loop.name, [case.name for case in self.rest.cases]))
        return self.rest is not None

    def rows(self, left: list[Unit]) -> Iterator[Row]:
        """Read what it tells: a row, the case that begins, or the end of its unit."""
        self._since = time.monotonic()
        try:
            kind, told = self.here.recv()
        except (EOFError, OSError):
            self._process.join(5)
            yield self.given_up("crashed", f"its process ended with exit code {self._process.exitcode}", left)
            return
        assert self.rest is not None, "a lane tells of nothing but its unit"
        if kind == "began":
            self._at, self.rest = told, self.rest.from_(told)
        elif kind == "row":
            yield told
            if told.outcome == "crashed" and "CUDA error" in str(told.details):  # nothing runs after that
                self._hand_on(left)
        else:
            self.rest = None

    def given_up(self, outcome: str, why: str, left: list[Unit]) -> Row:
        """End its process; return the row of the case that it was at, and hand on what comes after that."""
        assert self.rest is not None, "a lane is given up in a unit"
        row = Row(self.rest.loop.name, self._at or "plain", "", outcome, (why,), self.waited_s)
        self._hand_on(left)
        return row

    def _hand_on(self, left: list[Unit]) -> None:
        assert self.rest is not None, "a lane hands on its unit"
        if self._at and self.rest.cases[1:]:
            left.insert(0, replace(self.rest, cases=self.rest.cases[1:]))
        self.end()

    def _start(self) -> None:
        self.end()
        context: Any = multiprocessing.get_context(self._how)
        self.here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, self._gpu, self._device, self._log), daemon=False)
        self._process.start()
        there.close()
        self._units = 0

    def end(self) -> None:
        """End its process and all that it started."""
        self.rest, self._at = None, ""
        if self._process is None:
            return
        for kill in (lambda: os.killpg(self._process.pid, signal.SIGKILL), self._process.kill):
            try:
                kill()
            except ProcessLookupError:
                continue
        self._process.join()
        self.here.close()
        self._process = None


def _serve(there: Connection, gpu: str | None, device: str, log: Path) -> None:
    """Run units until nobody asks any more. Runs in the lane's process."""
    os.setsid()
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(log.parent.resolve() / f"inductor{gpu}")
    loops = all_loops()
    parent = os.getppid()
    while True:
        while not there.poll(1.0):
            if os.getppid() != parent:
                return
        name, wanted = there.recv()
        loop = loops[name]
        cases = [case for case in cases_of(loop, device) if case.name in wanted]
        config.compile_threads = _THREADS_FOR_KERNELS if set(wanted) & set(TIMES_KERNELS) else 1
        print(f"--- {name}: {', '.join(wanted)}", file=sys.stderr, flush=True)
        for row in rows_of(loop, cases, torch.device(device), lambda case: there.send(("began", case.name))):
            there.send(("row", row))
        there.send(("done", ""))


def _usual_s(case: Case) -> float:
    if case.name in TIMES_KERNELS:
        return _TIMING_KERNELS_S
    return _COMPILING_S if case.compiles else _EAGER_S


def _forks_can_use_cuda() -> bool:
    """Whether a fork of this process can use a GPU: it cannot once something has started the driver here."""
    process = multiprocessing.get_context("fork").Process(target=torch.zeros, args=(1,), kwargs={"device": "cuda"})
    process.start()
    process.join()
    return process.exitcode == 0


def _visible_gpus() -> list[str]:
    """The GPUs that lanes share, without starting CUDA in this process."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named or [str(number) for number in range(torch.cuda.device_count())]
