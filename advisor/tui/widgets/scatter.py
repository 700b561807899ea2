"""Speed against memory: a point for each set of settings that was measured, and the front.

Imported only when it is first shown, since plotext is not free.
"""

from __future__ import annotations

import math

from textual_plotext import PlotextPlot

from advisor.recipe.settings import Settings
from advisor.report.pareto import front_of, measured_points
from advisor.tui.context import Context

_GIB = 1024**3
_MIB = 1024**2
_OTHER = "•"
_FRONT = "◆"
Point = tuple[str, float, float]


class Scatter(PlotextPlot):
    """Peak memory to the right, speed-up upwards; numbers are ranks, B the baseline, S the stack, dots all else.

    The line is the front, with a diamond for each of its points that has no other sign: nothing that was measured is
    both as fast and as small.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._shared = context

    def on_mount(self) -> None:
        """Draw as soon as there is a size."""
        super().on_mount()
        self.draw()

    def draw(self) -> None:
        """Draw what is known at present."""
        plot = self.plt
        plot.clear_data()
        plot.clear_figure()
        points, front, unit = points_of(self._shared)
        if len(front) > 1:
            plot.plot([memory for memory, _ in front], [speedup for _, speedup in front], marker="dot", color="cyan")
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


def points_of(context: Context) -> tuple[list[Point], list[tuple[float, float]], str]:
    """The points as (label, memory, speed-up), what must not be hidden last; the front's; the unit of the memory."""
    state = context.state
    known = {Settings(point.settings): (point.peak_reserved_bytes, point.speedup) for point in measured_points(state)}
    front = front_of(state)
    labels = dict.fromkeys(known, _OTHER)
    for settings in [Settings(point.settings) for point in front]:
        labels.pop(settings, None)  # what is added last is drawn over the others
        labels[settings] = _FRONT
    for item in reversed(state.recommendations):
        record = item.record
        if record.alone and record.comparison and record.result.peak_reserved_bytes:
            settings = Settings(record.settings)
            known[settings] = (record.result.peak_reserved_bytes, record.comparison.speedup)
            labels.pop(settings, None)
            labels[settings] = str(item.rank)[-1]
    for settings, label in ((Settings(), "B"), (Settings(state.stack_settings), "S")):
        if settings in known:
            labels.pop(settings, None)
            labels[settings] = label
    size, unit = (_GIB, "GiB") if max((peak for peak, _ in known.values()), default=0) >= _GIB else (_MIB, "MiB")
    points = [(label, known[settings][0] / size, known[settings][1]) for settings, label in labels.items()]
    return points, [(point.peak_reserved_bytes / size, point.speedup) for point in front], unit


def _colour(label: str) -> str:
    return {"B": "gray+", "S": "orange+", _OTHER: "gray", _FRONT: "cyan+"}.get(label, "green+")


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
