"""The share of the best known after so many replayed seconds, for each landscape: the quality of the search.

    python tests/landscapes/regret.py
    python tests/landscapes/regret.py --budgets 30,120 --seeds 5 --at-end synthetic_convnet

By default one session of the longest budget is looked at after each of the times; with ``--at-end`` each time is the
budget of a session of its own.
"""

import argparse
import logging
import math
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from advisor.recipe.settings import Settings
from landscapes.harness import Replayed, best_known, replayed, run_session
from landscapes.landscape import load, stored


def shares(path: Path, budgets: list[float], seeds: int, *, at_end: bool) -> tuple[list[list[float]], str]:
    """The shares of all seeds after each time, and a remark on the last session."""
    landscape = load(path)
    found: list[list[float]] = [[] for _ in budgets]
    remark = ""
    for seed in range(seeds):
        for index, moment_s in enumerate(budgets):
            if at_end or not index:
                with replayed(landscape, seed=seed) as replay:
                    session = run_session(replay, budget_s=moment_s if at_end else max(budgets))
                remark = _remark(session)
            found[index].append(session.share_at(moment_s))
    return found, remark


def main() -> None:
    options = _options()
    logging.disable()
    started = time.perf_counter()
    paths = [path for path in stored() if not options.names or path.name.removesuffix(".json.gz") in options.names]
    print(f"{'landscape':28}" + "".join(f"{f'{s:.0f} s':>8}" for s in options.budgets))
    medians, worst = [], []
    for path in paths:
        found, remark = shares(path, options.budgets, options.seeds, at_end=options.at_end)
        medians.append([median(values) for values in found])
        worst.append([min(values) for values in found])
        print(f"{path.name.removesuffix('.json.gz'):28}{_columns(medians[-1])}  {remark}", flush=True)
        print(f"{'  worst seed':28}{_columns(worst[-1])}")
    print(f"{'geometric mean':28}{_columns(_means(medians))}")
    print(f"{'  of the worst seeds':28}{_columns(_means(worst))}")
    print(f"{len(paths)} landscapes, {options.seeds} seeds, {time.perf_counter() - started:.1f} s")


def _columns(values: list[float]) -> str:
    return "".join(f"{value:8.3f}" for value in values)


def _means(rows: list[list[float]]) -> list[float]:
    """The geometric mean of each column."""
    return [math.exp(sum(map(math.log, column)) / len(column)) for column in zip(*rows, strict=True)]


def _remark(session: Replayed) -> str:
    replay = session.replay
    predicted = sum(answer.predicted for answer in replay.asked)
    found, best = session.stack_at(math.inf), best_known(replay)[0]
    problem = f"; {session.problem}" if session.problem else ""
    found, best = (replay.predictor.canonical(settings) for settings in (found, best))
    missing = Settings({key: value for key, value in best.items() if found.get(key) != value})
    surplus = Settings({key: value for key, value in found.items() if best.get(key) != value})
    asked = f"{session.session_s:.0f} s, {len(replay.asked)} trials, {predicted} predicted"
    return f"{asked}; lacks {missing}, has {surplus}{problem}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="landscapes, by default all")
    parser.add_argument("--budgets", type=_seconds, default=[30.0, 60.0, 120.0, 300.0], help="seconds, with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-end", action="store_true", help="a session for each of the times")
    return parser.parse_args()


def _seconds(text: str) -> list[float]:
    return sorted(float(part) for part in text.split(","))


if __name__ == "__main__":
    main()
