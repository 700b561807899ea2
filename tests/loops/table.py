"""The table of loops and settings, for a machine with a GPU: ``python -m tests.loops``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loops.cases import NOTHING, Case, cases_of, is_usual, tolerance_of
from loops.compare import differences, figures
from loops.known import BY_DESIGN, explanation
from loops.networks import without_norm_biases
from loops.records import Record, run_tuned
from loops.register import Loop, all_loops
from loops.runs import Arithmetic
from loops.spread import PlainRuns
from loops.summary import UNREMARKABLE, Row, Summary, rows_in


def judged(runs: PlainRuns, case: Case, tuned: Record) -> tuple[str, tuple[str, ...]]:
    """What came of a run, and why.

    ``same``; ``left out``: of the settings, with a reason each; ``by design``: what differs is meant to (known.py);
    ``warned``: it only warns of more than the plain run; ``different``; ``refused``; ``crashed``.
    """
    loop, plain = runs.loop, runs.of(case.arithmetic)
    if tuned.refused:
        return "refused", (tuned.refused,)
    if tuned.crashed:
        return ("same", ()) if plain.crashed == tuned.crashed else ("crashed", (tuned.crashed,))
    settings = {**case.settings, **loop.always}
    seen = _seen_without_biases if "model.conv_bias_before_norm" in settings else _seen_as_it_is
    tolerance = tolerance_of(settings, loop.mode, runs.device.type)
    if found := differences(seen(plain), seen(tuned), tolerance):
        found = differences(seen(plain), seen(tuned), runs.widened(tolerance, case, seen))
    texts = tuple(map(str, found))
    if not texts:
        return ("left out", tuple(sorted(tuned.left_out))) if tuned.left_out else ("same", ())
    if all(explanation(loop.name, case.name, text) in BY_DESIGN for text in texts):
        return "by design", texts
    return "warned" if all(text.startswith("warning: ") for text in texts) else "different", texts


def _seen_as_it_is(record: Record) -> Record:
    return record


def _seen_without_biases(record: Record) -> Record:
    return replace(record, **_without_biases(record))


def _without_biases(record: Record) -> dict[str, Any]:
    """The models of a record without biases that norms take off; the keys are compared before."""
    return {
        field: {name: without_norm_biases(state) for name, state in states.items()}
        for field, states in (("states", record.states), ("starts", record.starts))
    }


def rows(loops: list[Loop], device: torch.device, wanted: Callable[[Loop, Case], bool]) -> Iterator[Row]:
    """Run loops under their cases, one after the other."""
    for loop in loops:
        yield from rows_of(loop, [case for case in cases_of(loop, device.type) if wanted(loop, case)], device)


def rows_of(
    loop: Loop, cases: Sequence[Case], device: torch.device, began: Callable[[Case], None] = lambda case: None
) -> Iterator[Row]:
    """Run one loop under cases. ``began`` is told of each case before it runs."""
    runs = PlainRuns(loop, device)
    try:
        plain = runs.of(Arithmetic())
    except pytest.skip.Exception as skipped:
        yield Row(loop.name, "", "", "skipped", (str(skipped),), 0.0)
        return
    if plain.crashed or plain.refused:
        yield Row(loop.name, "plain", "", "crashed", (plain.crashed or plain.refused,), 0.0)
        return
    for case in cases:
        began(case)
        for direction in loop.directions:
            started = time.perf_counter()
            if case.compiles:
                torch._dynamo.reset()
            tuned = run_tuned(loop, device, case.settings, direction)
            outcome, details = judged(runs, case, tuned)
            apart = {} if tuned.crashed or tuned.refused else figures(runs.of(case.arithmetic), tuned)
            yield Row(loop.name, case.name, direction, outcome, details, time.perf_counter() - started, apart)


def main() -> None:
    """Print a line for each loop and case as it comes, and a summary."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lanes too
    options = _options()
    loops = all_loops()
    first, every = map(int, options.lane.split("/"))
    chosen = [loops[name] for name in options.names] or list(loops.values())[first::every]
    place_of = {name: place for place, name in enumerate(loops)}
    done = {(row.loop, row.case) for path in options.skip_done for row in rows_in(path) if row.outcome != "not run"}

    def wanted(loop: Loop, case: Case) -> bool:
        if options.case not in case.name or (options.eager and case.compiles) or (loop.name, case.name) in done:
            return False
        return bool(options.case) or is_usual(case, loop, place_of[loop.name], every=options.every)

    found = _in_lanes(chosen, wanted, options) if options.lanes else rows(chosen, torch.device(options.device), wanted)
    with Summary(options.out) as summary:
        for row in found:
            summary.add(row)
            if not options.quiet or row.outcome not in UNREMARKABLE:
                _print(row, options)
    print(f"\n{summary.counts()}; {NOTHING.name} is the control", file=sys.stderr)


def _in_lanes(loops: list[Loop], wanted: Callable[[Loop, Case], bool], options: argparse.Namespace) -> Iterator[Row]:
    from loops.lanes import rows_in_lanes, units_of  # reads this module

    units = [
        unit
        for loop in loops
        for unit in units_of(loop, [case for case in cases_of(loop, options.device) if wanted(loop, case)])
    ]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        limits = {"row_limit_s": options.row_limit, "within_s": options.within}
        yield from rows_in_lanes(units, options.device, lanes=options.lanes, logs=logs, **limits)


def _print(row: Row, options: argparse.Namespace) -> None:
    print(f"{row.loop:28} {row.case_and_direction:42} {row.outcome:10} {row.seconds:6.2f} s", flush=True)
    if options.figures and row.apart:
        print("   ", ", ".join(f"{kind} {figure:.1e}" for kind, figure in row.apart.items()))
    for detail in row.details[: options.details]:
        print(f"    {detail[:300]}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.loops", description=__doc__)
    parser.add_argument("names", nargs="*", help="loops to run; all without")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lane", default="0/1", help="I/N: every N-th loop, from the I-th")
    parser.add_argument("--lanes", type=int, default=0, metavar="N", help="run in N processes, which share the GPUs")
    parser.add_argument("--row-limit", type=float, default=120.0, metavar="S", help="the longest that a row may take")
    parser.add_argument("--within", type=float, default=1e6, metavar="S", help="end after S seconds (with --lanes)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write rows.jsonl and loops.md there")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what the lanes print there")
    parser.add_argument("--skip-done", type=Path, nargs="+", default=[], metavar="FILE", help="leave out its rows")
    parser.add_argument("--figures", action="store_true", help="print how far the runs are apart")
    parser.add_argument("--details", type=int, default=3, help="differences to print of each case")
    parser.add_argument("--quiet", action="store_true", help="print only what is not the same")
    parser.add_argument("--eager", action="store_true", help="leave out what compiles")
    parser.add_argument("--every", action="store_true", help="run every case; else most loops compile once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
