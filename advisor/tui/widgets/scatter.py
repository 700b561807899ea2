"""Speed against memory: one point per recommendation.

Imported only when it is first shown, since plotext is not free.
"""

from __future__ import annotations

import math

from textual_plotext import PlotextPlot

from advisor.records import Recommendation
from advisor.tui.context import Context

_GIB = 1024**3
_MIB = 1024**2
Point = tuple[str, float, float]


class Scatter(PlotextPlot):
    """Peak memory to the right, speed-up upwards; numbers are ranks, B the baseline, S the stack."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._shared = context

    def on_mount(self) -> None:
        """Draw as soon as there is a size."""
        super().on_mount()
        self.draw()

    def draw(self) -> None:
        """Draw the present recommendations."""
        plot = self.plt
        plot.clear_data()
        plot.clear_figure()
        points, unit = points_of(self._shared)
        for label, memory, speedup in points:
            plot.scatter([memory], [speedup], marker=label, color=_colour(label))
        plot.xlabel(f"peak memory, {unit}")
        plot.ylabel("speed-up")
        across, upwards = _ticks([point[1] for point in points]), _ticks([point[2] for point in points])
        plot.xlim(across[0], across[-1])
        plot.ylim(upwards[0], upwards[-1])
        plot.xticks(across, [f"{tick:g}" for tick in across])
        plot.yticks(upwards, [f"{tick:g}x" for tick in upwards])
        plot.xaxes(True, False)
        plot.yaxes(True, False)
        self.refresh()


def points_of(context: Context) -> tuple[list[Point], str]:
    """The points as (label, memory, speed-up), what must not be hidden last, and the unit of the memory."""
    baseline, stack = context.baseline_memory, context.state.stack
    ranked = reversed(context.state.recommendations)
    raw = [point for item in ranked if (point := _point(item))]
    raw += [("B", baseline, 1.0)] if baseline else []
    if stack and stack.comparison and stack.result.peak_reserved_bytes:
        raw.append(("S", stack.result.peak_reserved_bytes, stack.comparison.speedup))
    size, unit = (_GIB, "GiB") if max((point[1] for point in raw), default=0) >= _GIB else (_MIB, "MiB")
    return [(label, memory / size, speedup) for label, memory, speedup in raw], unit


def _point(item: Recommendation) -> tuple[str, int, float] | None:
    memory, comparison = item.record.result.peak_reserved_bytes, item.record.comparison
    return (str(item.rank)[-1], memory, comparison.speedup) if memory and comparison else None


def _colour(label: str) -> str:
    return {"B": "gray+", "S": "orange+"}.get(label, "green+")


def _ticks(values: list[float]) -> list[float]:
    """Four to eight round numbers that enclose the values with some room."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = (high - low) * 0.06 or max(abs(high), 1.0) * 0.1
    step = _round_step((high - low + 2 * margin) / 5)
    first = math.floor(max(0.0, low - margin) / step)
    last = math.ceil((high + margin) / step)
    return [round(count * step, 9) for count in range(first, last + 1)]


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is at least ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
