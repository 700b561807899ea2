"""The table of loops and settings, for a machine with a GPU: ``python -m tests.loops``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from loops.cases import NOTHING, Case, cases_of, is_usual, tolerance_of
from loops.compare import differences, figures
from loops.known import BY_DESIGN, explanation
from loops.networks import without_norm_biases
from loops.records import Record, run_plain, run_tuned
from loops.register import Loop, all_loops
from loops.runs import Arithmetic


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one loop under some settings."""

    loop: str
    case: str
    direction: str
    outcome: str
    details: tuple[str, ...]
    seconds: float
    apart: Mapping[str, float] = field(default_factory=dict)


def judged(loop: Loop, case: Case, device: str, plain: Record, tuned: Record) -> tuple[str, tuple[str, ...]]:
    """What came of a run, and why.

    ``same``; ``left out``: of the settings, with a reason each; ``by design``: what differs is meant to (known.py);
    ``different``; ``refused``; ``crashed``.
    """
    if tuned.refused:
        return "refused", (tuned.refused,)
    if tuned.crashed:
        return ("same", ()) if plain.crashed == tuned.crashed else ("crashed", (tuned.crashed,))
    settings = {**case.settings, **loop.always}
    if "model.conv_bias_before_norm" in settings:
        plain, tuned = (replace(record, **_without_biases(record)) for record in (plain, tuned))
    found = differences(plain, tuned, tolerance_of(settings, loop.mode, device))
    texts = tuple(map(str, found))
    if found:
        meant = all(explanation(loop.name, case.name, text) in BY_DESIGN for text in texts)
        return "by design" if meant else "different", texts
    return ("left out", tuple(sorted(tuned.left_out))) if tuned.left_out else ("same", ())


def _without_biases(record: Record) -> dict[str, Any]:
    """The models of a record without biases that norms take off; the keys are compared before."""
    return {
        field: {name: without_norm_biases(state) for name, state in states.items()}
        for field, states in (("states", record.states), ("starts", record.starts))
    }


def rows(loops: list[Loop], device: torch.device, wanted: Callable[[Loop, Case], bool]) -> Iterator[Row]:
    """Run loops under their cases, one after the other."""
    for loop in loops:
        plain_runs: dict[Arithmetic, Record] = {}
        try:
            plain = plain_runs[Arithmetic()] = run_plain(loop, device)
        except pytest.skip.Exception as skipped:
            yield Row(loop.name, "", "", "skipped", (str(skipped),), 0.0)
            continue
        if plain.crashed or plain.refused:
            yield Row(loop.name, "plain", "", "crashed", (plain.crashed or plain.refused,), 0.0)
            continue
        for case in cases_of(loop, device.type):
            if not wanted(loop, case):
                continue
            if case.arithmetic not in plain_runs:
                plain_runs[case.arithmetic] = run_plain(loop, device, case.arithmetic)
            plain = plain_runs[case.arithmetic]
            for direction in loop.directions:
                started = time.perf_counter()
                if case.compiles:
                    torch._dynamo.reset()
                tuned = run_tuned(loop, device, case.settings, direction)
                outcome, details = judged(loop, case, device.type, plain, tuned)
                apart = {} if tuned.crashed or tuned.refused else figures(plain, tuned)
                yield Row(loop.name, case.name, direction, outcome, details, time.perf_counter() - started, apart)


def main() -> None:
    """Print a line for each loop and case as it comes, and a summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.loops", description=__doc__)
    parser.add_argument("names", nargs="*", help="loops to run; all without")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lane", default="0/1", help="I/N: every N-th loop, from the I-th")
    parser.add_argument("--figures", action="store_true", help="print how far the runs are apart")
    parser.add_argument("--details", type=int, default=3, help="differences to print of each case")
    parser.add_argument("--eager", action="store_true", help="leave out what compiles")
    parser.add_argument("--every", action="store_true", help="run every case; else most loops compile once")
    options = parser.parse_args()
    first, every = map(int, options.lane.split("/"))
    loops = all_loops()
    chosen = [loops[name] for name in options.names] or list(loops.values())[first::every]
    place_of = {name: place for place, name in enumerate(loops)}
    counts: dict[str, int] = {}

    def wanted(loop: Loop, case: Case) -> bool:
        usual = options.case or options.every or is_usual(case, loop, place_of[loop.name])
        return usual and options.case in case.name and not (options.eager and case.compiles)

    for row in rows(chosen, torch.device(options.device), wanted):
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
        direction = "" if row.direction == "tuned" else f" ({row.direction})"
        print(f"{row.loop:28} {row.case + direction:42} {row.outcome:10} {row.seconds:6.2f} s", flush=True)
        if options.figures and row.apart:
            print("   ", ", ".join(f"{kind} {figure:.1e}" for kind, figure in row.apart.items()))
        for detail in row.details[: options.details]:
            print(f"    {detail[:300]}", flush=True)
    print(f"\n{sum(counts.values())} cases: {counts}; {NOTHING.name} is the control", file=sys.stderr)


if __name__ == "__main__":
    main()
