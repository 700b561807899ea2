"""A panel that shows one of several plots, with a sentence or a list under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from advisor.report.charts import Plot, Tone
from advisor.tui.text import DIM
from advisor.tui.widgets.texts import show_text, show_titles


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot; ``under`` stands under it in place of its own words."""

    plot: Plot
    under: Content | None = None


# What a mark or a line of this tone is, for the legend: its sign and its word.
_SIGNS = {Tone.BASELINE: "B", Tone.STACK: "S"}


def legend_of(plot: Plot) -> str:
    """The signs of a plot, with their meaning."""
    drawn = {(mark.tone, mark.sign) for mark in plot.marks}
    parts = [f"{sign} {tone.value}" for tone, sign in _SIGNS.items() if (tone, sign) in drawn]
    parts += ["1-9 rank"] if any(sign.isdigit() for _, sign in drawn) else []
    parts += ["─ front"] if any(line.tone is Tone.FRONT for line in plot.lines) else []
    return " · ".join(parts)


class PicturePanel(Vertical, can_focus=True):
    """Hidden until :meth:`go_on` chooses the first picture; behind the last one it is hidden again.

    It takes the focus from what it stands in place of, so that the view's keys go on working.
    """

    def __init__(self) -> None:
        super().__init__(classes="panel pictures")
        self._pictures: Sequence[Picture] = ()
        self._chosen: str | None = None

    def compose(self) -> ComposeResult:
        yield Vertical(classes="picture")
        yield Static(classes="under", markup=False)

    def on_mount(self) -> None:
        self.display = False

    @property
    def is_open(self) -> bool:
        """Whether a picture is chosen."""
        return self._chosen is not None

    def go_on(self) -> None:
        """Choose the next picture, and none behind the last."""
        titles = [picture.plot.title for picture in self._pictures]
        after = titles.index(self._chosen) + 1 if self._chosen in titles else 0
        self._chosen = titles[after] if after < len(titles) and (after or not self.is_open) else None
        self.show(self._pictures)

    def close(self) -> None:
        """Show no picture."""
        self._chosen = None
        self.display = False

    def show(self, pictures: Sequence[Picture]) -> None:
        """Draw the chosen one as it is now."""
        self._pictures = pictures
        chosen = next((picture for picture in pictures if picture.plot.title == self._chosen), None)
        self.display = chosen is not None
        if chosen is None:
            self._chosen = None
            return
        show_titles(self, chosen.plot.title, legend_of(chosen.plot))
        under = self.query_one(".under", Static)
        under.set_class(chosen.under is not None, "listed")
        show_text(under, chosen.under or Content.styled(chosen.plot.words, DIM))
        self._draw(chosen.plot)

    def _draw(self, plot: Plot) -> None:
        from advisor.tui.widgets.chart import Chart

        place = self.query_one(".picture")
        if place.children:
            place.query_one(Chart).show(plot)
        else:
            place.mount(Chart(plot))
