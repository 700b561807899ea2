"""Results as Markdown: the times, the sessions, and the settings."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

Result = dict[str, Any]

BASELINE, EXPERT, ADVISOR = "baseline", "expert", "perf-advisor"
MISSING = "-"
TIMES = ("workload", "family", BASELINE, EXPERT, ADVISOR, "over the expert", "over the baseline")
SESSIONS = (
    *("workload", "first combination", "first compiled", "outside measuring", "session"),
    *("reported interval", "plain loops"),
)


def document(results: Sequence[Result]) -> str:
    """The heading, the tables, the summary and the settings."""
    parts = [
        "\n".join(_heading(results)),
        table(TIMES, [_times_row(result) for result in results]),
        table(SESSIONS, [_session_row(result) for result in results if "session" in result]),
        "\n".join(_summary(results)),
        "\n".join(_settings(results)),
    ]
    return "\n\n".join(part for part in parts if part)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; empty without rows."""
    lines = [columns, ["---"] * len(columns), *rows] if rows else []
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def one_line(text: object) -> str:
    """A text in the form of a table cell."""
    return " ".join(str(text).split()).replace("|", "/")


def _heading(results: Sequence[Result]) -> Iterator[str]:
    """The machine, the versions, the date and the command of the results."""
    for name in ("machine", "versions", "date", "command"):
        values = dict.fromkeys(result[name] for result in results if result.get(name))
        yield from (f"- {name}: {f'`{value}`' if name == 'command' else value}" for value in values)


def _runs(result: Result, name: str) -> list[float]:
    """The milliseconds of a variant's runs; empty when one failed."""
    variant = result["variants"].get(name, {})
    return [] if variant.get("failed") else [run["step_ms"] for run in variant.get("runs", [])]


def _expert_of(result: Result) -> str:
    """The expert's variant: the fastest timed one."""
    timed = {name: statistics.median(_runs(result, name) or [math.inf]) for name in result["variants"]}
    return min((name for name in timed if name.startswith(EXPERT)), key=lambda name: timed[name], default=EXPERT)


def _ratio(result: Result, slower: str, faster: str) -> tuple[float, float, float] | None:
    """The speed of one variant as a multiple of another's, with the least and the most that single runs give."""
    before, after = _runs(result, slower), _runs(result, faster)
    if not before or not after:
        return None
    return statistics.median(before) / statistics.median(after), min(before) / max(after), max(before) / min(after)


def _holds(result: Result) -> bool | None:
    """Whether the reported 95 % interval holds the ratio of the plain loops; None where one of the two is missing."""
    session, timed = result.get("session", {}), _ratio(result, BASELINE, ADVISOR)
    if not session.get("reported") or not session["settings"] or not timed:
        return None
    _, low, high = session["reported"]
    return bool(low <= timed[0] <= high)


def _times_row(result: Result) -> list[str]:
    expert = _expert_of(result)
    return [
        result["title"],
        result["family"],
        *(_time(result, name) for name in (BASELINE, expert, ADVISOR)),
        _interval(_ratio(result, expert, ADVISOR)),
        _interval(_ratio(result, BASELINE, ADVISOR)),
    ]


def _time(result: Result, name: str) -> str:
    if runs := _runs(result, name):
        return f"{statistics.median(runs):.4g} ms ({min(runs):.4g}-{max(runs):.4g})"
    reason = result["variants"].get(name, {}).get("failed") or result.get("failed")
    return one_line(reason) if reason else MISSING


def _session_row(result: Result) -> list[str]:
    session, timed = result["session"], _ratio(result, BASELINE, ADVISOR)
    outside = session["outside_share"]
    measured = f"{timed[0]:.3f}x" if timed else MISSING
    return [
        result["title"],
        _seconds(session["first_stack_s"]),
        _seconds(session["first_compiled_s"]),
        MISSING if outside is None else f"{outside:.0%}",
        f"{_seconds(session['wall_s'])} of {_seconds(session['budget_s'])}",
        _interval(session["reported"]),
        f"{measured}, outside" if _holds(result) is False else measured,
    ]


def _interval(measured: Sequence[float] | None) -> str:
    return MISSING if measured is None else "{:.3f}x ({:.3f}-{:.3f})".format(*measured)


def _seconds(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{seconds:.0f} s"


def _summary(results: Sequence[Result]) -> Iterator[str]:
    measured = {result["title"]: _ratio(result, _expert_of(result), ADVISOR) for result in results}
    shares = {title: found[0] for title, found in measured.items() if found}
    if shares:
        lowest = min(shares, key=lambda title: shares[title])
        yield (
            f"perf-advisor over the expert: {statistics.geometric_mean(shares.values()):.3f}x in geometric mean over "
            f"{len(shares)} workloads, lowest {shares[lowest]:.3f}x ({lowest})."
        )
    held = [holds for result in results if (holds := _holds(result)) is not None]
    if held:
        yield f"The reported 95 % interval holds the ratio of the plain loops in {sum(held)} of {len(held)} workloads."
    for name in ("first_stack_s", "first_compiled_s", "outside_share"):
        values = [one["session"][name] for one in results if one.get("session", {}).get(name) is not None]
        if values:
            yield f"Median of {name}: {statistics.median(values):.3g}."


def _settings(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        expert = _expert_of(result)
        variant = result["variants"].get(expert, {})
        if stack := variant.get("stack"):
            yield f"- {result['title']}, {expert}: {one_line(stack)}"
        if "session" in result:
            yield f"- {result['title']}, {ADVISOR}: {one_line(result['session']['settings'] or 'nothing')}"
        for fallback in variant.get("fallbacks", []):
            yield f"- {result['title']}, {expert}, does not run: {one_line(fallback)}"
