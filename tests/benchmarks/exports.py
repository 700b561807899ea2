"""Exported files against their session: the step in a plain loop over the step that the session reported."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tables import (
    ADVISOR,
    BASELINE,
    EXPERT,
    MISSING,
    PYTHON_FILE,
    Result,
    heading,
    interval_holds,
    one_line,
    runs_of,
    share_at,
    table,
    typical,
)

# An exported file keeps its promise when its step differs by no more than this share from the reported one.
CLOSE = 0.03
FILES = {ADVISOR: "YAML file", PYTHON_FILE: PYTHON_FILE}
COLUMNS = (
    "workload",
    "family",
    "reported",
    *FILES.values(),
    *(f"{file} / reported" for file in FILES.values()),
    "within 3 %",
    "plain loop",
    "plain loop / reported",
    "null",
    "interval holds",
    "expert",
    "share at 30 s",
    "at 60 s",
)


def over_reported(result: Result, name: str) -> float | None:
    """The step of a variant in a plain loop as a multiple of the one that was reported; None when one is missing."""
    reported = _search(result).get("reported_before_ms" if name == BASELINE else "reported_ms")
    timed = typical(result, name)
    return timed / reported if timed and reported else None


def within(result: Result, name: str) -> bool | None:
    """Whether an exported file is as fast as reported; None when that is not known."""
    ratio = over_reported(result, name)
    return None if ratio is None else abs(ratio - 1) <= CLOSE


def not_as_reported(result: Result) -> list[str]:
    """The exported files that are faster or slower than reported."""
    return [name for name in FILES if within(result, name) is False]


def null(result: Result) -> float | None:
    """The last run of the plain loop over its first: what two runs of the same program differ by."""
    runs = runs_of(result, BASELINE)
    return runs[-1] / runs[0] if len(runs) > 1 else None


def exports_document(results: Sequence[Result]) -> str:
    """The heading, a row for each workload, the null row, the counts, and what failed."""
    rows = [*map(_row, results), _null_row(results)]
    return "\n\n".join(["\n".join(heading(results)), table(COLUMNS, rows), "\n".join(_summary(results))])


def _row(result: Result) -> list[str]:
    known = [judged for name in FILES if (judged := within(result, name)) is not None]
    return [
        result["title"],
        result.get("family", MISSING),
        _reported(result),
        *(_timed(result, name) for name in FILES),
        *(_ratio(over_reported(result, name)) for name in FILES),
        _yes(all(known) if known else None),
        _timed(result, BASELINE),
        _ratio(over_reported(result, BASELINE)),
        _ratio(null(result)),
        _yes(interval_holds(result)),
        _expert(result),
        *(_ratio(share_at(result, moment_s)) for moment_s in (30, 60)),
    ]


def _null_row(results: Sequence[Result]) -> list[str]:
    """The plain loop against itself: the noise that every other ratio of the table has too."""
    apart = sorted(abs(found - 1) for result in results if (found := null(result)) is not None)
    said = f"median {statistics.median(apart):.1%}, most {apart[-1]:.1%}" if apart else MISSING
    return ["plain loop against plain loop", *(said if column == "null" else MISSING for column in COLUMNS[1:])]


def _summary(results: Sequence[Result]) -> Iterator[str]:
    for name, file in FILES.items():
        judged = [found for result in results if (found := within(result, name)) is not None]
        yield f"{file}: the step is within 3 % of the reported one in {sum(judged)} of {len(judged)} workloads."
    held = [holds for result in results if (holds := interval_holds(result)) is not None]
    yield f"The reported 95 % interval holds the ratio of the plain loops in {sum(held)} of {len(held)} workloads."
    for result in results:
        failed = {"": result.get("failed")}
        failed |= {f", {name}": variant.get("failed") for name, variant in result["variants"].items()}
        yield from (f"- {result['title']}{name}: {one_line(why)}" for name, why in failed.items() if why)
        if _search(result):
            yield f"- {result['title']}, settings: {one_line(_search(result)['stack'])}"


def _expert(result: Result) -> str:
    """The expert's time, and whether compiling its stack took too long."""
    fallbacks = result["variants"].get(EXPERT, {}).get("fallbacks", [])
    gave_up = any("took longer than" in text for text in fallbacks)
    return _timed(result, EXPERT) + (", gave up compiling" if gave_up else "")


def _timed(result: Result, name: str) -> str:
    """The step of a variant; with the range of its runs where there are several."""
    runs = runs_of(result, name)
    if not runs:
        return "failed" if result["variants"].get(name, {}).get("failed") else MISSING
    return _ms(statistics.median(runs)) + (f" ({min(runs):.4g}-{max(runs):.4g})" if len(runs) > 1 else "")


def _reported(result: Result) -> str:
    """The reported step, or that the session found nothing."""
    reported = _search(result).get("reported_ms")
    return _ms(reported) if reported else "nothing found" if _search(result) else MISSING


def _ms(step_ms: float) -> str:
    return f"{step_ms:.4g} ms"


def _ratio(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.3f}"


def _yes(judged: bool | None) -> str:
    return MISSING if judged is None else "yes" if judged else "no"


def _search(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = result["searches"].get(ADVISOR, {})
    return found
