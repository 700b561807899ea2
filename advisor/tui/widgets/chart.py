"""A plot of the report's, drawn by plotext.

Imported only when it is first shown, since plotext is not free.
"""

from textual.color import Color
from textual_plotext import PlotextPlot

from advisor.report.charts import Axis, Plot, Tone
from advisor.tui.text import TONES

# Rows of plotext's frame: the axis, its ticks, its title.
_FRAME_ROWS = 3


class Chart(PlotextPlot):
    """One plot: signs and lines; what they mean stands in its legend."""

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
        for line in plot.lines:
            across, up = zip(*((plot.x.place(x), plot.y.place(y)) for x, y in line.points), strict=True)
            plt.plot(list(across), list(up), marker="braille", color=self._colour(line.tone))
        for mark in plot.marks:
            x, y = [plot.x.place(mark.x)], [plot.y.place(mark.y)]
            plt.scatter(x, y, marker=mark.sign, color=self._colour(mark.tone))
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

    def _colour(self, tone: Tone) -> tuple[int, int, int]:
        return Color.parse(self.app.theme_variables[TONES[tone].removeprefix("$")]).rgb


def _ticks(axis: Axis) -> tuple[list[float], list[str]]:
    return [axis.place(value) for value, _ in axis.ticks], [name for _, name in axis.ticks]
