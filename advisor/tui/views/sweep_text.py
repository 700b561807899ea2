"""The sweep over batch sizes as a table with bars, and for inference as latency against throughput. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.content import Content

from advisor.figures.sweep import SweepPoint, headings_of, knee_of, sweep_chart, sweep_rows
from advisor.records import Mode
from advisor.report.evidence import sweep_sentence
from advisor.tui.text import DIM, bar

_WIDEST_BAR = 24
_LEAST_BAR = 6
_CHART_WIDTH = 60
# For narrow screens, which would have no room for a bar.
_SHORT = {"samples/s": "per s", "call p95": "p95"}
_SPARED = ("gain", "call p50", "call p99")

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def sweep_text(points: Sequence[SweepPoint], mode: Mode, width: int, caveats: Iterable[str] = ()) -> Content:
    """A line for each size, with a bar for its throughput; then which to take, caveats, and for inference a chart."""
    if not points:
        return Content("")
    heads, rows = _fitting(points, width)
    widths, room = _widths((heads, rows)), min(_WIDEST_BAR, _room((heads, rows), width))
    best = max((point.samples_per_s or 0.0 for point in points), default=0.0)
    lines = [Content.styled("  " + _aligned(heads, widths), DIM)]
    lines += [
        _line(point, _aligned(row, widths), at_knee=point.size == knee_of(points), best=best, room=room)
        if point.samples_per_s is not None
        else Content.assemble(f"  {row[0]:>{widths[0]}}  ", (point.problem, "$warning"))
        for point, row in zip(points, rows, strict=True)
    ]
    lines += [Content.styled(f"{caveat}", "$warning") for caveat in caveats]
    lines.append(Content.styled(f"◆ {sweep_sentence(points, mode)}", DIM))
    chart = sweep_chart(points, mode) if mode is Mode.INFER and width >= _CHART_WIDTH else ""
    return Content("\n").join([*lines, *([Content(""), Content(chart)] if chart else [])])


def _fitting(points: Sequence[SweepPoint], width: int) -> Table:
    """The columns of the table that leave room for a bar: all with their headings, or the most important ones."""
    rows = [row[:-1] for row in sweep_rows(points)]
    headings = headings_of(points)[:-1]
    whole: Table = (headings, rows)
    if _room(whole, width) >= _LEAST_BAR:
        return whole
    kept = [place for place, head in enumerate(headings) if head not in _SPARED]
    heads = tuple(_SHORT.get(headings[place], headings[place]) for place in kept)
    return heads, [tuple(row[place] for place in kept) for row in rows]


def _widths(table: Table) -> list[int]:
    heads, rows = table
    return [max(map(len, column)) for column in zip(heads, *rows, strict=True)]


def _room(table: Table, width: int) -> int:
    widths = _widths(table)
    return max(0, width - 2 - sum(widths) - 2 * len(widths))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _line(point: SweepPoint, cells: str, *, at_knee: bool, best: float, room: int) -> Content:
    drawn = bar((point.samples_per_s or 0.0) / best, room).rstrip()
    line = Content.assemble(
        ("◆ " if at_knee else "  ", "$success"),
        (cells, "bold" if at_knee else ""),
        "  ",
        (drawn, "$success" if at_knee else "$primary"),
    )
    return line + Content.styled(f"\n    {point.problem}", "$warning") if point.problem else line
