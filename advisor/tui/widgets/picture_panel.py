"""A panel that shows one of several plots, with its legend and a sentence under it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from advisor.report.charts import Plot
from advisor.tui.text import DIM, TONES
from advisor.tui.widgets.texts import show_text, show_titles


def legend_of(plot: Plot) -> Content:
    """The signs of a plot, with their meaning."""
    entries = (Content.assemble((sign, f"bold {TONES[tone]}"), f" {told}") for sign, tone, told in plot.legend)
    return Content.styled(" · ", DIM).join(entries)


class PicturePanel(Vertical, can_focus=True):
    """Hidden until :meth:`go_on` chooses the first plot; behind the last one it is hidden again.

    It takes the focus from what it stands in place of, so that the view's keys go on working.
    """

    def __init__(self) -> None:
        super().__init__(classes="panel pictures")
        self._chosen = ""  # the title of the plot that is shown

    def compose(self) -> ComposeResult:
        yield Vertical(classes="picture")
        yield Static(classes="under", markup=False)

    def on_mount(self) -> None:
        self.display = False

    @property
    def is_open(self) -> bool:
        """Whether a plot is chosen."""
        return bool(self._chosen)

    def go_on(self, plots: Sequence[Plot]) -> None:
        """Choose the next plot, and none behind the last."""
        titles = ["", *(plot.title for plot in plots)]
        place = titles.index(self._chosen) if self._chosen in titles else 0
        self._chosen = titles[(place + 1) % len(titles)]
        self.show(plots)

    def close(self) -> None:
        """Show no plot."""
        self._chosen, self.display = "", False

    def show(self, plots: Sequence[Plot]) -> None:
        """Draw the chosen one as it is now."""
        chosen = next((plot for plot in plots if plot.title == self._chosen), None)
        if chosen is None:
            self.close()
            return
        self.display = True
        show_titles(self, chosen.title)
        show_text(self.query_one(".under", Static), legend_of(chosen) + "\n" + Content.styled(chosen.words, DIM))
        from advisor.tui.widgets.chart import Chart

        place = self.query_one(".picture")
        if place.children:
            place.query_one(Chart).show(chosen)
        else:
            place.mount(Chart(chosen))
