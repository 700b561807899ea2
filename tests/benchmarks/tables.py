"""Results as one Markdown table, with what it was measured on and what each stack was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Result = dict[str, Any]

BASELINE, EXPERT, PEER, ADVISOR = "baseline", "expert", "peer", "perf-advisor"
PEER_PACKAGE = "pytorch-autotune"
COLUMNS = (
    "workload",
    BASELINE,
    EXPERT,
    PEER_PACKAGE,
    ADVISOR,
    "over the expert",
    f"over {PEER_PACKAGE}",
    f"search, {PEER_PACKAGE}",
    f"search, {ADVISOR}",
)
MISSING = "-"


def document(results: Sequence[Result]) -> str:
    """The heading, the table, the summary and the stacks."""
    parts = ["\n".join(_heading(results)), _table(results), "\n".join(_summary(results)), "\n".join(_stacks(results))]
    return "\n\n".join(part for part in parts if part)


def expert_of(result: Result) -> str:
    """The variant that is the expert's: the fastest of those that were timed."""
    names = [name for name in result["variants"] if name.startswith(EXPERT)]
    return min(names, key=lambda name: _typical(result, name) or math.inf, default=EXPERT)


def ratio(result: Result, slower: str, faster: str) -> tuple[float, float, float] | None:
    """How many times as fast one variant is as another, with the least and the most that the runs allow."""
    before, after = _runs(result, slower), _runs(result, faster)
    if not before or not after:
        return None
    return statistics.median(before) / statistics.median(after), min(before) / max(after), max(before) / min(after)


def _runs(result: Result, name: str) -> list[float]:
    """The milliseconds of a variant's runs; empty when one failed."""
    variant = result["variants"].get(name, {})
    return [] if variant.get("failed") else [run["step_ms"] for run in variant.get("runs", [])]


def _typical(result: Result, name: str) -> float | None:
    runs = _runs(result, name)
    return statistics.median(runs) if runs else None


def _heading(results: Sequence[Result]) -> Iterator[str]:
    for name in ("machine", "versions", "date", "command"):
        values = dict.fromkeys(result[name] for result in results)
        yield from (f"- {name}: {f'`{value}`' if name == 'command' else value}" for value in values)


def _table(results: Sequence[Result]) -> str:
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(_row, results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(result: Result) -> list[str]:
    expert = expert_of(result)
    return [
        result["title"],
        *(_time(result, name) for name in (BASELINE, expert, PEER, ADVISOR)),
        _times(ratio(result, expert, ADVISOR)),
        _times(ratio(result, PEER, ADVISOR)),
        *(_search(result, name) for name in (PEER, ADVISOR)),
    ]


def _time(result: Result, name: str) -> str:
    variant = result["variants"].get(name)
    if variant is None:
        return MISSING
    if variant.get("failed"):
        return _one_line(variant["failed"])
    runs = _runs(result, name)
    return f"{statistics.median(runs):.4g} ms ({min(runs):.4g}-{max(runs):.4g})" if runs else MISSING


def _search(result: Result, name: str) -> str:
    search = result["searches"].get(name, {})
    return f"{search['wall_s']:.0f} s" if "wall_s" in search else MISSING


def _times(measured: tuple[float, float, float] | None) -> str:
    return MISSING if measured is None else "{:.3f}x ({:.3f}-{:.3f})".format(*measured)


def _summary(results: Sequence[Result]) -> Iterator[str]:
    yield from _over("the expert", results, expert_of)
    yield from _over(PEER_PACKAGE, results, lambda result: PEER)


def _over(whom: str, results: Sequence[Result], name_of: Callable[[Result], str]) -> Iterator[str]:
    measured = {result["title"]: ratio(result, name_of(result), ADVISOR) for result in results}
    means = {title: found[0] for title, found in measured.items() if found}
    if means:
        lowest = min(means, key=lambda title: means[title])
        yield (
            f"perf-advisor over {whom}: {statistics.geometric_mean(means.values()):.3f}x in geometric mean over "
            f"{len(means)} workload{'s' if len(means) > 1 else ''}, lowest {means[lowest]:.3f}x ({lowest})."
        )


def _stacks(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        for name in (expert_of(result), PEER, ADVISOR):
            search = result["searches"].get(name, {})
            stack = result["variants"].get(name, {}).get("stack") or search.get("stack")
            if stack:
                said = f" (its session said {search['reported']:.3f}x)" if search.get("reported") else ""
                who = PEER_PACKAGE if name == PEER else name.partition(" ")[0]
                yield f"- {result['title']}, {who}: {_one_line(stack)}{said}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")
