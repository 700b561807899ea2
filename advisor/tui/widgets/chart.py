"""A plot of the report's, drawn by plotext.

Imported only when it is first shown, since plotext is not free.
"""

import math

from textual.color import Color
from textual_plotext import PlotextPlot

from advisor.report.charts import Axis, Canvas, Plot, Tone, limit_labels, placed
from advisor.tui.text import TONES

# Rows of plotext's frame: the axis, its ticks, its title; and the column of the axis.
_FRAME_ROWS, _FRAME_COLUMNS = 3, 1


class Chart(PlotextPlot):
    """One plot: signs, lines, and as many labels as have room beside them."""

    def __init__(self, plot: Plot) -> None:
        super().__init__()
        self._drawn = plot

    def on_mount(self) -> None:
        """Draw as soon as there is a size, and again in the colours of a new theme."""
        super().on_mount()
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw())
        self._draw()

    def on_resize(self) -> None:
        """Draw in the new size; in fewer rows than the frame needs only the words under the plot are left."""
        self.visible = self.size.height > _FRAME_ROWS
        self._draw()

    def show(self, plot: Plot) -> None:
        """Draw this plot from now on."""
        if plot != self._drawn:
            self._drawn = plot
            self._draw()

    def _draw(self) -> None:
        plot, plt = self._drawn, self.plt
        plt.clear_data()
        plt.clear_figure()
        self._draw_axes(plot)
        canvas = self._canvas(plot)
        for line in plot.lines:
            across, up = zip(*((plot.x.place(x), plot.y.place(y)) for x, y in line.points), strict=True)
            plt.plot(list(across), list(up), marker="braille", color=self._colour(line.tone))
        for line, (left, bottom, _, _) in limit_labels(plot, canvas):
            self._write(line.label, (left, math.ceil(bottom)), canvas, line.tone)
        for spot in placed(plot, canvas):
            if spot.at:
                self._write(spot.text, spot.at, canvas, spot.mark.tone)
            x, y = _data(spot.x - 0.5, spot.y - 0.5, canvas)
            plt.scatter([x], [y], marker=spot.mark.sign, color=self._colour(spot.mark.tone))
        self.refresh()

    def _draw_axes(self, plot: Plot) -> None:
        plt = self.plt
        plt.xlabel(plot.x.title)
        plt.ylabel(plot.y.title)
        plt.xlim(0, 1)
        plt.ylim(0, 1)
        plt.xticks(*_ticks(plot.x))
        plt.yticks(*_ticks(plot.y))
        plt.xaxes(True, False)
        plt.yaxes(True, False)

    def _canvas(self, plot: Plot) -> Canvas:
        names = max((len(name) for _, name in plot.y.ticks), default=0)
        return Canvas(max(4, self.size.width - names - _FRAME_COLUMNS), max(2, self.size.height - _FRAME_ROWS))

    def _write(self, text: str, at: tuple[float, float], canvas: Canvas, tone: Tone) -> None:
        x, y = _data(at[0], at[1], canvas)
        ground = self._theme_colour("surface")
        self.plt.text(text, x, y, color=self._colour(tone), background=ground, alignment="left")

    def _colour(self, tone: Tone) -> tuple[int, int, int]:
        return self._theme_colour(TONES[tone].removeprefix("$"))

    def _theme_colour(self, name: str) -> tuple[int, int, int]:
        return Color.parse(self.app.theme_variables[name]).rgb


def _ticks(axis: Axis) -> tuple[list[float], list[str]]:
    return [axis.place(value) for value, _ in axis.ticks], [name for _, name in axis.ticks]


def _data(column: float, row: float, canvas: Canvas) -> tuple[float, float]:
    """The coordinates at which plotext puts a mark into a cell, counted from the left and from the bottom."""
    return round(column) / max(1.0, canvas.width - 1), round(row) / max(1.0, canvas.height - 1)
