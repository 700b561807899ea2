"""Measure perf-advisor's settings beside an expert's, with a plain loop, on one GPU or several. See the README.

python tests/benchmarks/benchmark.py --results results resnet50 inference
python tests/benchmarks/benchmark.py --results results --lanes 4 --budget 120 --within 570 --continue
python tests/benchmarks/benchmark.py --table results/*.json
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from catalogue import SMALL_NAMES, WORKLOADS, Options, chosen
from lanes import measure_in_lanes
from tables import document

# Seconds beyond the budget after which a workload counts as hanging.
WORKLOAD_PATIENCE_S = 420.0


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
            small=arguments.small,
        )
        not_started = measure_in_lanes(
            [one for one in arguments.chosen if not (options.reuse and _read(options.file_of(one)).get("finished"))],
            options,
            lanes=min(arguments.lanes, len(arguments.chosen)),
            within_s=arguments.within,
            limit_s=arguments.budget + WORKLOAD_PATIENCE_S,
        )
    print(_document(map(options.file_of, arguments.chosen)))
    if not_started:
        print(f"\nNot started for lack of time: {' '.join(workload.name for workload in not_started)}")


def _document(files: Iterable[Path]) -> str:
    """The tables of results, in the catalogue's order; other files of a results folder, such as reports, hold none."""
    found = {result["workload"]: result for result in map(_read, files) if "variants" in result}
    return document([found[name] for name in WORKLOADS if name in found])


def _read(file: Path) -> dict[str, Any]:
    """The result in a file; empty where there is none."""
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
    parser.add_argument("--small", action="store_true", help="some at small sizes, to try this out without a GPU")
    arguments = parser.parse_args()
    among = SMALL_NAMES if arguments.small else WORKLOADS
    try:
        arguments.chosen = chosen(arguments.workloads, among=among)
    except KeyError as error:
        parser.error(f"there is no workload or family {error.args[0]!r}; there are {', '.join(among)}")
    return arguments


if __name__ == "__main__":
    main()
