"""Results as Markdown: the times, perf-advisor's share of the expert against time, and the stacks."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Result = dict[str, Any]

BASELINE, EXPERT, ADVISOR = "baseline", "expert", "perf-advisor"
PYTHON_FILE = "Python file"
# Seconds after the start of the command at which the best known stack is looked at.
MOMENTS_S = (30, 60, 120, 300)
MISSING = "-"
# The exported files. One keeps its promise when its step differs by no more than this share from the reported one.
FILES = {ADVISOR: "YAML file", PYTHON_FILE: PYTHON_FILE}
CLOSE = 0.03


def document(results: Sequence[Result]) -> str:
    """The heading, the tables, the summary and the stacks."""
    parts = [
        "\n".join(heading(results)),
        _times_table(results),
        _shares_table(results),
        "\n".join(_summary(results)),
        "\n".join(_stacks(results)),
    ]
    return "\n\n".join(part for part in parts if part)


def expert_of(result: Result) -> str:
    """The expert's variant: the fastest of those that were timed."""
    names = [name for name in result["variants"] if name.startswith(EXPERT)]
    return min(names, key=lambda name: typical(result, name) or math.inf, default=EXPERT)


def ratio(result: Result, slower: str, faster: str) -> tuple[float, float, float] | None:
    """The speed of one variant as a multiple of another's, with the least and the most that single runs give."""
    before, after = runs_of(result, slower), runs_of(result, faster)
    if not before or not after:
        return None
    return statistics.median(before) / statistics.median(after), min(before) / max(after), max(before) / min(after)


def share_at(result: Result, moment_s: int) -> float | None:
    """The share of the expert's speed that the stack known at a moment reaches; None when one of the two is missing."""
    name = _session(result).get("variants", {}).get(str(moment_s))
    found = ratio(result, expert_of(result), name) if name else None
    return found[0] if found else None


def share_at_end(result: Result) -> float | None:
    """The share of the expert's speed that the final stack reaches."""
    found = ratio(result, expert_of(result), ADVISOR)
    return found[0] if found else None


def interval_holds(result: Result) -> bool | None:
    """Whether the reported 95 % interval of the final stack holds the ratio of the independent loops."""
    reported = _session(result).get("reported")
    timed = ratio(result, BASELINE, ADVISOR)
    if not reported or not timed or not _session(result).get("settings"):
        return None
    _, low, high = reported
    return bool(low <= timed[0] <= high)


def over_reported(result: Result, name: str) -> float | None:
    """The step of a variant in a plain loop as a multiple of the one that was reported; None when one is missing."""
    reported = _session(result).get("reported_before_ms" if name == BASELINE else "reported_ms")
    timed = typical(result, name)
    return timed / reported if timed and reported else None


def not_as_reported(result: Result) -> list[str]:
    """The exported files that are faster or slower than reported."""
    ratios = {name: over_reported(result, name) for name in FILES}
    return [name for name, ratio in ratios.items() if ratio is not None and abs(ratio - 1) > CLOSE]


def runs_of(result: Result, name: str) -> list[float]:
    """The milliseconds of a variant's runs; empty when one failed."""
    variant = result["variants"].get(name, {})
    return [] if variant.get("failed") else [run["step_ms"] for run in variant.get("runs", [])]


def typical(result: Result, name: str) -> float | None:
    """The median of a variant's runs in milliseconds; None when it has none, or one failed."""
    runs = runs_of(result, name)
    return statistics.median(runs) if runs else None


def heading(results: Sequence[Result]) -> Iterator[str]:
    """The machine, the versions, the date and the command of the results."""
    for name in ("machine", "versions", "date", "command"):
        values = dict.fromkeys(result[name] for result in results if result.get(name))
        yield from (f"- {name}: {f'`{value}`' if name == 'command' else value}" for value in values)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- times ----------------------------------------------------------------------------------------------------


def _times_table(results: Sequence[Result]) -> str:
    with_files = any(PYTHON_FILE in result["variants"] for result in results)
    columns = ["workload", "family", BASELINE, EXPERT, ADVISOR, "over the expert", "over the baseline"]
    columns += [PYTHON_FILE, *(f"{name} / reported" for name in (*FILES.values(), BASELINE))] if with_files else []
    return table(columns, [_times_row(result, with_files=with_files) for result in results])


def _times_row(result: Result, *, with_files: bool) -> list[str]:
    expert = expert_of(result)
    row = [
        result["title"],
        result.get("family", MISSING),
        *(_time(result, name) for name in (BASELINE, expert, ADVISOR)),
        _times(ratio(result, expert, ADVISOR)),
        _times(ratio(result, BASELINE, ADVISOR)),
    ]
    if with_files:
        ratios = [over_reported(result, name) for name in (*FILES, BASELINE)]
        row += [_time(result, PYTHON_FILE), *(MISSING if ratio is None else f"{ratio:.3f}" for ratio in ratios)]
    return row


def _time(result: Result, name: str) -> str:
    variant = result["variants"].get(name, {})
    runs = runs_of(result, name)
    if runs:
        return f"{statistics.median(runs):.4g} ms ({min(runs):.4g}-{max(runs):.4g})"
    reason = variant.get("failed") or result.get("failed")
    return one_line(reason) if reason else MISSING


def _times(measured: tuple[float, float, float] | None) -> str:
    return MISSING if measured is None else "{:.3f}x ({:.3f}-{:.3f})".format(*measured)


# --- share of the expert against time -------------------------------------------------------------------------


def _shares_table(results: Sequence[Result]) -> str:
    searched = [result for result in results if ADVISOR in result["searches"]]
    if not searched:
        return ""
    columns = ["share of the expert", *(f"{moment_s} s" for moment_s in MOMENTS_S), "end"]
    columns += ["first stack", "first compiled", "outside measuring", "session", "reported interval", "plain loops"]
    return table(columns, [*map(_shares_row, searched), _means_row(searched)])


def _shares_row(result: Result) -> list[str]:
    shares = [*(share_at(result, moment_s) for moment_s in MOMENTS_S), share_at_end(result)]
    outside = _session(result).get("outside_share")
    return [
        result["title"],
        *(MISSING if share is None else f"{share:.3f}" for share in shares),
        _seconds(_session(result).get("first_stack_s")),
        _seconds(_session(result).get("first_compiled_s")),
        MISSING if outside is None else f"{outside:.0%}",
        f"{_seconds(_session(result).get('wall_s'))} of {_seconds(_session(result).get('budget_s'))}",
        *_interval(result),
    ]


def _interval(result: Result) -> list[str]:
    """The reported interval, and the independent ratio with a word when the interval does not hold it."""
    reported, timed = _session(result).get("reported"), ratio(result, BASELINE, ADVISOR)
    said = "{:.3f}x ({:.3f}-{:.3f})".format(*reported) if reported else MISSING
    measured = f"{timed[0]:.3f}x" if timed else MISSING
    return [said, f"{measured}, outside" if interval_holds(result) is False else measured]


def _means_row(results: Sequence[Result]) -> list[str]:
    """The geometric mean of each column of shares; the other columns are medians."""
    shares = [[share_at(result, moment_s) for result in results] for moment_s in MOMENTS_S]
    shares.append([share_at_end(result) for result in results])
    return [
        "geometric mean",
        *(_mean(column) for column in shares),
        *(_median(results, name, _seconds) for name in ("first_stack_s", "first_compiled_s")),
        _median(results, "outside_share", lambda share: f"{share:.0%}"),
        MISSING,
        MISSING,
        MISSING,
    ]


def _mean(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{statistics.geometric_mean(known):.3f} of {len(known)}" if known else MISSING


def _median(results: Sequence[Result], name: str, form: Callable[[float], str]) -> str:
    known = [value for result in results if (value := _session(result).get(name)) is not None]
    return f"median {form(statistics.median(known))}" if known else MISSING


def _session(result: Result) -> dict[str, Any]:
    return result["searches"].get(ADVISOR, {})


def _seconds(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{seconds:.0f} s"


# --- in words -------------------------------------------------------------------------------------------------


def _summary(results: Sequence[Result]) -> Iterator[str]:
    yield from _over_the_expert(results)
    held = [holds for result in results if (holds := interval_holds(result)) is not None]
    if held:
        yield f"The reported 95 % interval holds the ratio of the plain loops in {sum(held)} of {len(held)} workloads."
    for name, file in FILES.items() if any(PYTHON_FILE in result["variants"] for result in results) else ():
        judged = [result for result in results if over_reported(result, name) is not None]
        close = [result for result in judged if name not in not_as_reported(result)]
        yield f"{file}: the step is within 3 % of the reported one in {len(close)} of {len(judged)} workloads."
    for result in results:
        if result.get("failed"):
            yield f"{result['title']} was not measured to its end: {one_line(result['failed'])}."


def _over_the_expert(results: Sequence[Result]) -> Iterator[str]:
    measured = {result["title"]: ratio(result, expert_of(result), ADVISOR) for result in results}
    means = {title: found[0] for title, found in measured.items() if found}
    if means:
        lowest = min(means, key=lambda title: means[title])
        yield (
            f"perf-advisor over the expert: {statistics.geometric_mean(means.values()):.3f}x in geometric mean over "
            f"{len(means)} workload{'s' if len(means) > 1 else ''}, lowest {means[lowest]:.3f}x ({lowest})."
        )


def _stacks(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        expert = expert_of(result)
        for name, known in ((expert, result["variants"].get(expert, {})), (ADVISOR, _session(result))):
            if stack := known.get("stack"):
                yield f"- {result['title']}, {name}: {one_line(stack)}"
        for fallback in result["variants"].get(expert, {}).get("fallbacks", []):
            yield f"- {result['title']}, {expert}, does not run: {one_line(fallback)}"


def one_line(text: str) -> str:
    """A text as a cell of a table holds it."""
    return " ".join(text.split()).replace("|", "/")
