"""The sweep over batch sizes as a table with bars, and for inference as latency against throughput. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from advisor.formatting import format_bytes, format_ms, format_rate
from advisor.records import Mode
from advisor.session.state import SessionState
from advisor.sweep import RECIPE, SweepPoint, knee_of, sweep_chart, sweep_points
from advisor.tui.text import DIM, bar

_UNIT = " samples/s"
_WIDEST_BAR = 24
_LEAST_BAR = 6
_CHART_WIDTH = 60
# The second for narrow screens, which would have no room for a bar.
_HEADS = (("batch", "step", "samples/s", "memory"), ("batch", "step", "per s", "memory"))


def points_of_sweep(state: SessionState, recipe: str) -> tuple[SweepPoint, ...]:
    """The sweep's points, the baseline's among them; empty for another recipe or where only one size ran."""
    if recipe != RECIPE or state.baseline is None:
        return ()
    memory = state.facts.workload.device_memory_bytes if state.facts else 0
    points = sweep_points(state.baseline, state.trials.values(), memory_bytes=memory or None)
    return points if len(points) > 1 else ()


def sweep_text(points: Sequence[SweepPoint], mode: Mode, width: int) -> Content:
    """A line for each size, with a bar for its throughput; under it what the mark means, and for inference a chart."""
    if not points:
        return Content("")
    best = max((point.samples_per_s or 0.0 for point in points), default=0.0)
    heads = next(heads for heads in _HEADS if heads is _HEADS[-1] or _room(points, heads, width) >= _LEAST_BAR)
    widths, room = _widths(points, heads), min(_WIDEST_BAR, _room(points, heads, width))
    lines = [Content.styled("  " + _aligned(heads, widths), DIM)]
    lines += [_line(point, widths, knee_of(points), best, room) for point in points]
    lines.append(Content.styled("◆ the knee: beyond it only memory and latency grow", DIM))
    chart = sweep_chart(points, mode) if mode is Mode.INFER and width >= _CHART_WIDTH else ""
    return Content("\n").join([*lines, *([Content(""), Content(chart)] if chart else [])])


def _widths(points: Sequence[SweepPoint], heads: Sequence[str]) -> list[int]:
    return [max(map(len, column)) for column in zip(heads, *map(_cells, points), strict=True)]


def _room(points: Sequence[SweepPoint], heads: Sequence[str], width: int) -> int:
    """The cells that the figures leave for a bar."""
    widths = _widths(points, heads)
    return max(0, width - 2 - sum(widths) - 2 * len(widths))


def _cells(point: SweepPoint) -> tuple[str, ...]:
    rate = format_rate(point.samples_per_s).removesuffix(_UNIT)
    return f"{point.size:,}", format_ms(point.step_ms), rate, format_bytes(point.peak_reserved_bytes)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _line(point: SweepPoint, widths: Sequence[int], knee: int | None, best: float, room: int) -> Content:
    if point.samples_per_s is None:
        return Content.assemble(f"  {point.size:>{widths[0]},}  ", (point.problem, "$warning"))
    at_knee = point.size == knee
    figures = Content.styled(_aligned(_cells(point), widths), "bold" if at_knee else "")
    drawn = Content.styled(bar(point.samples_per_s / best, room).rstrip(), "$success" if at_knee else "$primary")
    line = Content.assemble(("◆ " if at_knee else "  ", "$success"), figures, "  ", drawn)
    return line + Content.styled(f"\n    {point.problem}", "$warning") if point.problem else line
