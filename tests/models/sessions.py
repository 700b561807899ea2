"""A short session of each model that people type, at the size that this machine is given: what its stack is worth.

python -m tests.models.sessions --lanes 4 --budget 25 --within 470 [--device cuda] [--write FILE] [FAMILY ...]

Lanes share the GPUs in turn and have cores of their own. On one GPU several lanes disturb each other: their speed-ups
say whether tuning works, and not by how much.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.models.names import CASES

HERE = Path(__file__).parent
HEADER = ("what is typed", "model", "mode", "step before", "speed-up", "stack", "failure")
# What a session takes beside its budget, in seconds: imports, and its last words.
_BESIDE_S = 60.0
_ENDS_S = 12.0


def words_of(line: str, folder: str, *options: str) -> list[str]:
    """The words of a command line, with these options before the target's own arguments."""
    words = line.replace("FOLDER", folder).split()
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *options, *words[end:]]


def session_row(line: str, folder: str, options: argparse.Namespace, lane: int) -> tuple[str, ...]:
    """One row of the table: a session in a process of its own, on its lane's GPU and cores."""
    typed = f"`perf-advisor {line.replace('FOLDER/', '')}`"
    report = Path(folder, f"{abs(hash(line))}.json")
    asked = ["--headless", f"--budget={options.budget}s", f"--json={report}", "--no-verify"]
    command = [sys.executable, "-m", "advisor", *words_of(line, folder, *asked, "--device", options.device)]
    cores = sorted(os.sched_getaffinity(0))
    own = set(cores[lane :: options.lanes]) or set(cores)
    environment = {
        **os.environ,
        "PERF_ADVISOR_STATE": f"{folder}/state-{lane}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE.parent.parent), os.environ.get("PYTHONPATH")))),
        **({"CUDA_VISIBLE_DEVICES": str(lane % options.gpus)} if options.gpus else {}),
    }
    try:
        ended = subprocess.run(
            command,
            check=False,
            cwd=HERE,
            env=environment,
            capture_output=True,
            text=True,
            timeout=options.budget + _BESIDE_S,
            preexec_fn=lambda: os.sched_setaffinity(0, own),
        )
    except subprocess.TimeoutExpired:
        return typed, "", "", "", "", "", f"no end within {options.budget + _BESIDE_S:.0f} s"
    if not report.is_file():
        return typed, "", "", "", "", "", " ".join(ended.stderr.strip().splitlines()[-2:])
    return typed, *_found(json.loads(report.read_text(encoding="utf-8")))


def _found(report: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a JSON report, without the first."""
    workload, baseline, stack, error = (report[name] for name in ("workload", "baseline", "stack", "error"))
    settings = stack["settings"] if stack else {}
    failed = " ".join(error.values()) if error else "" if settings else _nothing(report["messages"])
    return (
        workload["model"] if workload else "",
        workload["mode"] if workload else "",
        f"{baseline['step_ms']:.3g} ms" if baseline else "",
        f"{stack['speedup']:.2f}x" if settings and stack["speedup"] else "",
        ", ".join(f"{key}: {value}" for key, value in settings.items()),
        failed,
    )


def _nothing(messages: list[dict[str, str]]) -> str:
    """That nothing was better, and what the session warned of: sets that fail, or had too little time."""
    return "; ".join(["nothing was better", *(one["text"][:160] for one in messages[:3])])


def rows(lines: list[str], folder: str, options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """The rows in the order of the lines; what there was no time for says so."""
    started, free = time.monotonic(), queue.SimpleQueue[int]()
    for lane in range(options.lanes):
        free.put(lane)

    def row_of(line: str) -> tuple[str, ...]:
        if time.monotonic() - started + options.budget + _ENDS_S > options.within:
            return f"`perf-advisor {line}`", *("",) * (len(HEADER) - 2), "no time was left"
        lane = free.get()
        row = session_row(line, folder, options, lane)
        free.put(lane)
        print(_line(row), flush=True)
        return row

    with ThreadPoolExecutor(options.lanes) as lanes:
        yield from lanes.map(row_of, lines)


def _line(row: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', ' ') for cell in row)} |"


def main() -> None:
    """Run the sessions and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1, help="GPUs that the lanes share; 0 on a machine without one")
    parser.add_argument("--budget", type=int, default=25, help="seconds for each session")
    parser.add_argument(
        "--within", type=float, default=470.0, help="seconds for all: no session begins too late to end"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("families", nargs="*", default=[])
    options = parser.parse_args()
    families = [name for name in CASES if not options.families or any(word in name for word in options.families)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(HERE / "objects.py"), folder], check=True)
        made = list(rows([line for family in families for line in CASES[family]], folder, options))
    table = "\n".join([_line(HEADER), f"|{' --- |' * len(HEADER)}", *map(_line, made)]) + "\n"
    if options.write:
        Path(options.write).write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
