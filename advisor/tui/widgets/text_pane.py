"""A text of any length that is scrolled: only the lines on screen are drawn, where Textual's Static draws all."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from advisor.tui.widgets.changes import look_same


class TextPane(ScrollView):
    """Shows a text, wrapped to its width: ``build`` makes it for a number of cells, ``text`` is what it made."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    TextPane { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    def __init__(self, *, id: str, classes: str = "") -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id, classes=classes)
        self.text = Content("")
        self._build: Callable[[int], Content] = lambda _: self.text
        self._lines: list[Content] = []

    def show(self, build: Callable[[int], Content] | Content) -> None:
        """Show this text from now on."""
        self._build = (lambda _: build) if isinstance(build, Content) else build
        self._wrap()

    def _wrap(self) -> None:
        width = self.scrollable_content_region.width
        if not width:  # not on screen yet
            return
        text = self._build(width)
        if not look_same(text, self.text) or width != self.virtual_size.width:
            self.text, self._lines = text, text.wrap(width)
            self.virtual_size = Size(width, len(self._lines))
            self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self._wrap()

    def render_line(self, y: int) -> Strip:
        place, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        if place >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[place].pad_right(max(0, width - self._lines[place].cell_length))
        return Visual.to_strips(self, line, width, 1, self.visual_style, apply_selection=False)[0]
