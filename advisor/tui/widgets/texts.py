"""Texts that are drawn again only when they changed, since each update of one lays the whole screen out again."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget
from textual.widgets import Static


def look_same(one: object, other: object) -> bool:
    """Whether two texts, or pairs of them, look the same on screen. ``==`` ignores the colours of a Content."""
    if isinstance(one, Content) and isinstance(other, Content):
        return one.is_same(other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(look_same, one, other))
    return type(one) is type(other) and one == other


def show_text(widget: Static, text: Content | str, *, layout: bool = True) -> None:
    """Have a widget show a text. Without ``layout`` its size stays: where that does not depend on the text."""
    before = widget.content
    if not look_same(before, text):
        width = widget.content_size.width
        widget.update(text, layout=layout and not (width and _lines(before, width) == _lines(text, width)))


def _lines(text: object, width: int) -> tuple[int, int]:
    """The lines of a text, as it is and wrapped to a width."""
    content = text if isinstance(text, Content) else Content(str(text))
    return content.plain.count("\n"), len(content.wrap(width))


def show_titles(panel: Widget, title: Content | str, subtitle: Content | str = "") -> None:
    """Show titles in a panel's border. They are set only when they change, since setting one paints the panel again."""
    for name, text in (("border_title", title), ("border_subtitle", subtitle)):
        content = Content(text) if isinstance(text, str) else text
        if (getattr(panel, name) or "") != content.markup:
            setattr(panel, name, content)


class TextPane(ScrollView):
    """Scrolls a text, of which only the lines on screen are drawn, where Textual's Static draws all.

    It is wrapped to its width: ``build`` makes it for a number of cells, ``text`` is what it made.
    """

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


_TALL = 30


class Details(Static):
    """It grows with its text. On a tall screen it never shrinks: from row to row the list stays in place."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id, markup=False)
        self._room = (0, 0)

    def tell(self, text: Content, width: int) -> None:
        """Show a text on a screen of this width."""
        show_text(self, text, layout=False)
        lines = len(text.wrap(max(1, width - 2)))
        known = self._room[1] if width == self._room[0] and self.app.size.height >= _TALL else 0
        if self._room != (width, max(lines, known)):
            self._room = width, max(lines, known)
            self.styles.height = self._room[1]
