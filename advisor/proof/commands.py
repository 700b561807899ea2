"""``perf-advisor ab``: run two commands in turn, each until its training loop has made enough steps."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any

import psutil

from advisor.errors import TargetError
from advisor.experiment.measuring.verification import ratio_of_processes
from advisor.figures.formatting import format_bytes, format_ms, format_seconds
from advisor.figures.stats import mean_rate
from advisor.machine.host import CoresInUse
from advisor.process.household import kill
from advisor.proof import step_watch
from advisor.records import Block, Comparison, Verdict
from advisor.runner.log_files import bounded

# A run ends after so many steady steps and seconds. If the command ends earlier, so many steady blocks are enough.
_STEPS, _TIMED_S, _LEAST_BLOCKS = 30, 3.0, 3
_STEADY = 1.1  # a first block is start-up if it takes more than 1.1 times the median of the later blocks
_LIKE_BEFORE = 1.2  # the time needed for another pair of runs, as a multiple of the longest pair so far
_MOST_PAIRS = 6
_LOOK_S, _ENDING_S = 0.1, 3.0
_SAME, _CLOSE = 1e-6, 0.02  # the largest relative differences of losses that are the same, or close
_LINES_SHOWN = 15
# The files beside the watch that make PyTorch call it at the end of its import.
_DISTRIBUTION = {
    "METADATA": "Metadata-Version: 2.1\nName: perf-advisor-watch\nVersion: 0\n",
    "entry_points.txt": f"[torch.backends]\nperf_advisor_watch = {step_watch.MODULE}:watch\n",
}
_WHERE_BUSY = 1.1  # on a busy machine, the whole interval must be above this, or below its inverse
_LOSSES_IN_WORDS = {
    "": "no loss was seen",
    "same": "the same in both",
    "close": "close: within 2 %",
    "different": "different",
    "varying": "cannot be compared: two runs of the same command differ as much (set a seed)",
}


@dataclass(frozen=True, slots=True)
class CommandRun:
    """One run: its blocks of steps, its peak memory and its first losses."""

    blocks: tuple[Block, ...]
    startup_s: float  # the time until the first step
    peak_bytes: int
    losses: tuple[float, ...]
    foreign_cores: float = 0.0  # the cores that other programs used during the run

    @property
    def steady(self) -> tuple[Block, ...]:
        """The blocks without the slow blocks at the beginning (compiling, tuning, filling caches)."""
        blocks = self.blocks
        while len(blocks) > 1 and blocks[0].step_ms > _STEADY * median(block.step_ms for block in blocks[1:]):
            blocks = blocks[1:]
        return blocks

    @property
    def step_ms(self) -> float:
        """Milliseconds per step: the median of the steady blocks."""
        return median(block.step_ms for block in self.steady)

    @property
    def is_enough(self) -> bool:
        """Whether the steady blocks have enough steps and seconds."""
        steps, seconds = (sum(getattr(block, name) for block in self.steady) for name in ("steps", "seconds"))
        return bool(steps >= _STEPS and seconds >= _TIMED_S)


@dataclass(frozen=True, slots=True)
class Side:
    """All runs of one command."""

    command: str
    runs: tuple[CommandRun, ...]

    @property
    def step_ms(self) -> float:
        """Milliseconds per step: the mean over the runs' medians, as for the interval."""
        return mean_rate([run.step_ms for run in self.runs])

    @property
    def peak_bytes(self) -> int:
        """The largest peak of the runs."""
        return max(run.peak_bytes for run in self.runs)

    @property
    def startup_s(self) -> float:
        """The median of the seconds until the first step."""
        return median(run.startup_s for run in self.runs)


@dataclass(frozen=True, slots=True)
class Compared:
    """The result: the ratio of steps per second (B over A), and the comparison of the first losses."""

    a: Side
    b: Side
    comparison: Comparison
    losses: str  # same, close or different; varying if runs of one command differ as much; empty without losses
    seconds: float
    foreign_cores: float = 0.0  # the cores that other programs used, as the mean over the runs

    @property
    def is_open(self) -> bool:
        """Whether the machine is too busy to decide (one free core at most, and a small or single difference)."""
        cores, found = psutil.cpu_count() or 1, self.comparison
        differs = found.ci_low > _WHERE_BUSY or found.ci_high < 1 / _WHERE_BUSY
        return cores - round(self.foreign_cores) <= 1 < cores and not (differs and len(self.a.runs) > 1)

    @property
    def verdict(self) -> Verdict:
        """The verdict on B: faster, slower, same or unclear."""
        return Verdict.UNCLEAR if self.is_open else self.comparison.verdict

    def reaches(self, least: float) -> bool:
        """Whether the speed-up may be ``least`` or more."""
        return self.comparison.ci_high * (_WHERE_BUSY if self.is_open else 1.0) >= least


def compare(a: str, b: str, budget_s: float, folder: Path, say: Callable[[str], None]) -> Compared:
    """Run two shell commands in turn (A B B A ...), as often as the budget allows, and up to six times each.

    Logs and steps go to ``folder``. Raises TargetError if a command fails, ends too soon, or makes no step in time.
    """
    started = time.monotonic()
    commands, runs = {"A": a, "B": b}, {"A": list[CommandRun](), "B": list[CommandRun]()}
    longest_s = 0.0
    for pair in range(_MOST_PAIRS):
        begun = time.monotonic()
        left_s = started + budget_s - begun
        if pair and left_s < _LIKE_BEFORE * longest_s:
            break
        done: dict[str, CommandRun] = {}
        try:
            for place, side in enumerate("AB" if pair % 2 == 0 else "BA"):
                left_s = started + budget_s - time.monotonic()
                say(f"run {pair + 1} of {side}, {left_s:.0f} s left: {commands[side]}")
                within_s = left_s if pair else left_s / (2 - place)
                done[side] = run(side, commands[side], folder / f"{side}{pair + 1}", within_s=within_s)
                say(f"run {pair + 1} of {side}: {done[side].step_ms:.4g} ms a step")
        except TargetError:
            if not pair:
                raise
            break  # the complete pairs are enough
        for side, each in done.items():
            runs[side].append(each)
        longest_s = max(longest_s, time.monotonic() - begun)
    one, other = (Side(commands[side], tuple(runs[side])) for side in "AB")
    foreign = fmean(each.foreign_cores for each in (*one.runs, *other.runs))
    old, new = ([[1e3 / block.step_ms for block in run.steady] for run in side.runs] for side in (one, other))
    ratio = Comparison(*ratio_of_processes(new, old))
    return Compared(one, other, ratio, _losses(one, other), time.monotonic() - started, foreign)


def run(side: str, command: str, folder: Path, *, within_s: float) -> CommandRun:
    """Run a command until its loop has made enough steps; then end it, with all processes that it started.

    Raises TargetError if it ends, or runs out of time, before that. ``side`` is A or B.
    """
    folder.mkdir(parents=True)
    steps, distribution, log = folder / "steps", folder / "perf_advisor_watch-0.dist-info", folder / "output.log"
    steps.mkdir()
    distribution.mkdir()
    for name, text in _DISTRIBUTION.items():
        (distribution / name).write_text(text, encoding="utf-8")
    shutil.copyfile(step_watch.__file__, folder / f"{step_watch.MODULE}.py")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    watched = {"PYTHONPATH": path, step_watch.FOLDER: str(steps), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    environment = {**os.environ, **watched}
    started, began, cores = time.monotonic(), time.time(), CoresInUse()
    with log.open("wb") as output, bounded(str(log)):
        process = Popen(  # noqa: S602 - it is what the user would type in a shell
            command, shell=True, env=environment, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
        )
        try:
            while True:
                code, seen = process.poll(), _seen(steps, began)
                is_over = code is not None or time.monotonic() - started > within_s
                if seen and (seen.is_enough or (is_over and len(seen.steady) >= _LEAST_BLOCKS)):
                    return replace(seen, foreign_cores=cores.foreign())
                if is_over:
                    problem, hint = _problem(seen, code, within_s)
                    end = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
                    raise TargetError(f"command {side} {problem}: {command}", hint, "\n".join(end))
                time.sleep(_LOOK_S)
        finally:
            _end(process)


def _seen(folder: Path, began: float) -> CommandRun | None:
    """Read the steps so far, of the process that wrote most; None before the first step."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_size)
    text = files[-1].read_text(encoding="utf-8") if files else ""
    whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete
    seen: list[dict[str, float]] = [json.loads(line) for line in whole.splitlines()]
    first = next((line["first"] for line in seen if "first" in line), None)
    if first is None:
        return None
    return CommandRun(
        tuple(Block(int(line["steps"]), int(line["steps"]), line["seconds"]) for line in seen if "seconds" in line),
        first - began,
        max((int(line["peak_bytes"]) for line in seen if "peak_bytes" in line), default=0),
        tuple(line["loss"] for line in seen if "loss" in line),
    )


def _problem(seen: CommandRun | None, code: int | None, within_s: float) -> tuple[str, str]:
    """The problem of a command without a result, and a hint. ``code`` is None if it ran out of time."""
    made = "made too few optimizer steps to be timed" if seen else "made no optimizer step of PyTorch"
    if code is None:
        hint = "Give it more time with --budget, or let it reach its training loop sooner."
        return f"{made} within {within_s:.0f} s", hint
    if code:
        return f"failed with exit code {code}", "Run the command alone, and fix the error in the lines below."
    hint = "Give a command that trains for some seconds with PyTorch 2.5 or later. Below are its last lines."
    return f"{made}, and ended", hint


def _end(process: Popen[bytes]) -> None:
    """End a command and the processes that it started: first by SIGTERM, then by force."""
    everything: list[psutil.Process] = []
    try:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            everything = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGTERM)
            psutil.wait_procs(everything, timeout=_ENDING_S)
    finally:  # even if Ctrl+C is pressed again meanwhile
        for one in everything:
            kill(one.pid)
        kill(process.pid, group=True)
        process.wait()


def _losses(a: Side, b: Side) -> str:
    first, other = a.runs[0].losses, b.runs[0].losses
    if not first or not other:
        return ""
    apart = _apart(first, other)
    own = max((_apart(side.runs[0].losses, run.losses) for side in (a, b) for run in side.runs[1:]), default=0.0)
    if apart <= _SAME:
        return "same"
    if own > _CLOSE and apart <= 2 * own:
        return "varying"
    return "close" if apart <= _CLOSE else "different"


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest relative difference between two series of losses, up to the end of the shorter one."""
    pairs = zip(one, other, strict=False)
    return max((abs(x - y) / max(abs(x), abs(y), 1e-12) for x, y in pairs), default=0.0)


def as_text(found: Compared) -> str:
    """The result as a table."""
    a, b, comparison = found.a, found.b, found.comparison
    b_step_ms = a.step_ms / comparison.speedup  # so that the printed speed-up is the quotient of the printed step times
    rows = [
        ("", "A", "B"),
        ("step", format_ms(a.step_ms), format_ms(b_step_ms)),
        ("peak memory", format_bytes(a.peak_bytes), format_bytes(b.peak_bytes)),
        ("first step after", format_seconds(a.startup_s), format_seconds(b.startup_s)),
        ("runs", str(len(a.runs)), str(len(b.runs))),
    ]
    busy = ("other programs", f"used {found.foreign_cores:.1f} cores: close them and run this again", "")
    rows += [busy] if found.is_open else []
    width = max(len(row[1]) for row in rows if row[2]) + 2
    interval = f"{comparison.speedup:.2f}x ({comparison.ci_low:.2f}-{comparison.ci_high:.2f})"
    lines = [f"A  {a.command}", f"B  {b.command}"]
    lines += [f"{name:18}{one:{width}}{other}".rstrip() for name, one, other in rows]
    lines += [f"{'first losses':18}{_LOSSES_IN_WORDS[found.losses]}"]
    return "\n".join([*lines, f"B over A: {interval}, {found.verdict.value}"])


def as_json(found: Compared, min_speedup: float) -> dict[str, Any]:
    """The result for JSON, with the figures of both sides."""
    return {
        "a": _side_as_json(found.a),
        "b": _side_as_json(found.b),
        **{name: getattr(found.comparison, name) for name in ("speedup", "ci_low", "ci_high")},
        "verdict": found.verdict.value,
        "foreign_cores": found.foreign_cores,
        "losses": found.losses,
        "min_speedup": min_speedup,
        "session_s": found.seconds,
    }


def _side_as_json(side: Side) -> dict[str, Any]:
    figures = {name: getattr(side, name) for name in ("command", "step_ms", "peak_bytes", "startup_s")}
    return {**figures, "first_losses": list(side.runs[0].losses), "runs": len(side.runs)}
