"""Measure perf-advisor's settings beside an expert's, with a plain loop, on one GPU or several. See the README.

python tests/benchmarks/benchmark.py --results results resnet50 inference
python tests/benchmarks/benchmark.py --results results --lanes 4 --budget 120 --within 570 --continue
python tests/benchmarks/benchmark.py --table results/*.json
"""

import argparse
import json
import math
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from catalogue import WORKLOADS, Options, Workload, chosen
from lanes import Lane, run_lanes
from measure import measure
from tables import document


def main() -> None:
    """Measure the workloads that were asked for, and print the tables."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lanes too
    arguments = _arguments()
    if arguments.table:
        print(_document(arguments.table))
        return
    arguments.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        options = Options(
            results=arguments.results,
            caches=Path(caches),
            budget_s=arguments.budget,
            command=shlex.join(["python", *sys.argv]),
            timed_s=arguments.timed,
            reuse=arguments.goes_on,
        )
        wanted = [
            one for one in arguments.chosen if not (options.reuse and _read(options.file_of(one)).get("finished"))
        ]
        not_started = _measure(wanted, options, min(arguments.lanes, len(arguments.chosen)), arguments.within)
    print(_document(map(options.file_of, arguments.chosen)))
    if not_started:
        print(f"\nNot started for lack of time: {' '.join(workload.name for workload in not_started)}")


def _measure(workloads: list[Workload], options: Options, lanes: int, within_s: float) -> list[Workload]:
    """Measure workloads, the longest first; return those that would not have ended within ``within_s``, not started."""
    started, not_started = time.monotonic(), []

    def run(workload: Workload, lane: Lane) -> None:
        if time.monotonic() - started + options.budget_s + workload.timing_s > within_s:
            not_started.append(workload)
        else:
            measure(workload, options, lane)

    run_lanes([partial(run, workload) for workload in sorted(workloads, key=lambda one: -one.timing_s)], lanes)
    return not_started


def _document(files: Iterable[Path]) -> str:
    """The tables of results, in the catalogue's order; other files of a results folder, such as reports, hold none."""
    found = {result["workload"]: result for result in map(_read, files) if "variants" in result}
    return document([found[name] for name in WORKLOADS if name in found])


def _read(file: Path) -> dict[str, Any]:
    """The result in a file; empty if there is no file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"names or families, all by default: {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--results", type=Path, default=Path("benchmark-results"), help="a folder for the results")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="measure nothing: join these results")
    parser.add_argument("--budget", type=int, default=120, metavar="S", help="seconds of each session (120)")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="measure on N GPUs at a time")
    parser.add_argument(
        "--within", type=float, default=math.inf, metavar="S", help="start no workload that would end later than this"
    )
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="measure only unfinished workloads")
    parser.add_argument("--timed", type=float, default=1.0, metavar="S", help="seconds timed in each process (1)")
    arguments = parser.parse_args()
    try:
        arguments.chosen = chosen(arguments.workloads)
    except KeyError as error:
        parser.error(f"there is no workload or family {error.args[0]!r}; there are {', '.join(WORKLOADS)}")
    return arguments


if __name__ == "__main__":
    main()
