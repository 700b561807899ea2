"""Measure perf-advisor's stacks beside an expert's, with a plain loop, on one GPU or several. See the README.

python tests/benchmarks/benchmark.py --results results resnet50 inference
python tests/benchmarks/benchmark.py --results results --lanes 4 --budget 120 --within 570 --continue
python tests/benchmarks/benchmark.py --exports --lanes 2 --budget 60 --within 560
python tests/benchmarks/benchmark.py --table results/*.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from catalogue import WORKLOADS, Workload, chosen
from lanes import Lanes
from options import Options
from tables import ADVISOR, BASELINE, EXPERT, PYTHON_FILE, document

VARIANTS = (BASELINE, EXPERT, ADVISOR)
EXPORT_VARIANTS = (BASELINE, PYTHON_FILE, ADVISOR, EXPERT)
# Share of a workload's usual timing that --exports takes: one run of most variants in place of two. Estimated.
EXPORTS_SHARE = 0.5
# Seconds beyond the budget after which a workload counts as hanging.
WORKLOAD_PATIENCE_S = 420.0


def main() -> None:
    """Measure the workloads that were asked for, and print the tables."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lanes too
    arguments = _arguments()
    if arguments.table:
        print(_document(map(_read, arguments.table)))
        return
    arguments.results.mkdir(parents=True, exist_ok=True)
    files = {workload.name: arguments.results / f"{workload.name}.json" for workload in arguments.chosen}
    wanted = [w for w in arguments.chosen if not (arguments.goes_on and _read(files[w.name]).get("finished"))]
    not_started = _measure(wanted, arguments)
    print(_document(map(_read, files.values())))
    if not_started:
        print(f"\nNot started for lack of time: {' '.join(workload.name for workload in not_started)}")


def _measure(workloads: Sequence[Workload], arguments: argparse.Namespace) -> list[Workload]:
    """Measure workloads in lanes; return those that were not started."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        lanes = Lanes(
            workloads,
            _options(arguments, Path(caches)),
            lanes=min(arguments.lanes, len(workloads)) or 1,
            expected_s=arguments.budget if ADVISOR in arguments.variants else 0,
            within_s=arguments.within,
            workload_limit_s=arguments.budget + WORKLOAD_PATIENCE_S,
            timing_share=EXPORTS_SHARE if arguments.exports else 1.0,
        )
        return lanes.run()


def _document(results: Iterable[dict[str, Any]]) -> str:
    """The tables of results, in the catalogue's order; other files of a results folder, such as reports, hold none."""
    order = {name: number for number, name in enumerate(WORKLOADS)}
    found = [result for result in results if "variants" in result and "workload" in result]
    rows = sorted(found, key=lambda result: order.get(result["workload"], len(order)))
    return document(rows)


def _read(file: Path) -> dict[str, Any]:
    """The result in a file; empty where there is none."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _options(arguments: argparse.Namespace, caches: Path) -> Options:
    return Options(
        results=arguments.results,
        caches=caches,
        variants=arguments.variants,
        budget_s=arguments.budget,
        command=shlex.join(["python", *sys.argv]),
        timed_s=arguments.timed,
        rounds=arguments.rounds,
        reuse=arguments.goes_on,
        small=arguments.small,
        exports=arguments.exports,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"names or families, all by default: {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--results", type=Path, default=Path("benchmark-results"), help="a folder for the results")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="measure nothing: join these results")
    parser.add_argument("--variants", type=_names, default=VARIANTS, help=f"some of {','.join(VARIANTS)}")
    parser.add_argument("--exports", action="store_true", help="time the exported files against what was reported")
    parser.add_argument("--budget", type=int, default=120, metavar="S", help="seconds of each session (120)")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="measure on N GPUs at a time")
    parser.add_argument("--within", type=float, metavar="S", help="start no workload that would end later than this")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="measure only unfinished workloads")
    parser.add_argument("--timed", type=float, default=1.0, metavar="S", help="seconds timed in each process (1)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of the variants, there and back")
    parser.add_argument("--small", action="store_true", help="small sizes, to try this out without a GPU")
    arguments = parser.parse_args()
    try:
        arguments.chosen = chosen(arguments.workloads)
    except KeyError as error:
        parser.error(f"there is no workload or family {error.args[0]!r}; there are {', '.join(WORKLOADS)}")
    if arguments.exports:
        arguments.variants = EXPORT_VARIANTS
    return arguments


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(VARIANTS):
        raise argparse.ArgumentTypeError(f"give some of {','.join(VARIANTS)}")
    return names


if __name__ == "__main__":
    main()
