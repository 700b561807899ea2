"""A table of rows with a cursor: a row is drawn again only when its own cells change.

Textual's DataTable draws all cells again when one of them, the focus or the table's height changes, and each through
Rich: most of the time of a key went there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from advisor.tui.text import DIM
from advisor.tui.widgets.texts import look_same

_FOCUSED = "bold $block-cursor-foreground on $block-cursor-background"
_BLURRED = "$block-cursor-blurred-foreground on $block-cursor-blurred-background"
_LOW = 8  # rows, its headings among them
_HEADINGS = -1  # their place among the rows


@dataclass(frozen=True, slots=True)
class Heading:
    """A column: its key, its label, its cells without the space around them; a ``number`` stands at the right."""

    key: str
    label: str
    width: int
    number: bool = False


class RowTable(ScrollView, can_focus=True):
    """A table with fixed headings and one line a row. Text that does not fit its cell ends in an ellipsis."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "go(-1)", "Up", show=False),
        Binding("down,j", "go(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "top", "Top", show=False),
        Binding("end", "bottom", "Bottom", show=False),
        Binding("enter", "choose", "Choose", show=False),
    ]
    cursor: reactive[int] = reactive(0, repaint=False)

    class Highlighted(Message):
        """The cursor is on another row."""

    class Moved(Message):
        """The person, and not the session, moved the cursor."""

    class Chosen(Message):
        """The person chose the row under the cursor: by Enter, or by a click on it."""

    @dataclass
    class HeadingChosen(Message):
        """A heading was clicked."""

        key: str

    def __init__(self, *, id: str) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self.headings: tuple[Heading, ...] = ()
        self.rows: dict[str, tuple[Content, ...]] = {}
        self._strips: dict[tuple[int, str], Strip] = {}
        self._look: object = None

    def show(self, headings: Sequence[Heading], rows: Mapping[str, Sequence[Content]]) -> None:
        """Draw these rows. The cursor stays on its row or, where that is gone, at its place."""
        chosen, before = self.cursor_key, self.rows
        same = list(rows) == list(before) and tuple(headings) == self.headings
        self.headings, self.rows = tuple(headings), {key: tuple(cells) for key, cells in rows.items()}
        if not same:
            self._strips.clear()
            self.virtual_size = Size(sum(heading.width + 2 for heading in headings), len(rows) + 1)
            self.refresh()
            self.go_to(chosen)
            return
        for place, (key, cells) in enumerate(self.rows.items()):
            if not look_same(cells, before[key]):
                self._strips = {known: strip for known, strip in self._strips.items() if known[0] != place}
                self.refresh_line(place + 1)

    def show_row(self, key: str, cells: Sequence[Content]) -> None:
        """Draw one row anew, if there is one of that key."""
        if key in self.rows:
            self.show(self.headings, {**self.rows, key: cells})

    @property
    def cursor_key(self) -> str:
        """The key of the row under the cursor; empty where there are no rows."""
        keys = list(self.rows)
        return keys[self.cursor] if self.cursor < len(keys) else ""

    def go_to(self, key: str) -> None:
        """Put the cursor on a row, if there is one of that key."""
        self.cursor = list(self.rows).index(key) if key in self.rows else self.cursor

    def validate_cursor(self, place: int) -> int:
        return max(0, min(place, len(self.rows) - 1))

    def watch_cursor(self, before: int, place: int) -> None:
        self.refresh_line(before + 1)
        self.refresh_line(place + 1)
        self._show_cursor()
        self.post_message(self.Highlighted())

    def _show_cursor(self) -> None:
        """Scroll to the cursor; a table that is not low shows two more rows on either side of it."""
        around = 2 if self.size.height > _LOW else 0
        self.scroll_to_region(
            Region(0, self.cursor + 1, 1, 1), spacing=Spacing(1 + around, 0, around, 0), animate=False
        )

    # --- keys and mouse --------------------------------------------------------------------------------------

    def _move_to(self, place: int) -> None:
        self.cursor = place
        self.post_message(self.Moved())

    def action_go(self, rows: int) -> None:
        self._move_to(self.cursor + rows)

    def action_page(self, pages: int) -> None:
        self._move_to(self.cursor + pages * max(1, self.scrollable_content_region.height - 1))

    def action_top(self) -> None:
        self._move_to(0)

    def action_bottom(self) -> None:
        self._move_to(len(self.rows))

    def action_choose(self) -> None:
        if self.rows:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None:
            return
        if at.y == 0:
            self._choose_heading(at.x + self.scroll_offset.x)
        elif (place := at.y + self.scroll_offset.y - 1) == self.cursor:
            self.action_choose()
        elif place < len(self.rows):
            self._move_to(place)

    def _choose_heading(self, x: int) -> None:
        for heading in self.headings:
            x -= heading.width + 2
            if x < 0:
                self.post_message(self.HeadingChosen(heading.key))
                return

    def on_focus(self) -> None:
        self.refresh_line(self.cursor + 1)

    on_blur = on_focus

    def on_resize(self, event: events.Resize) -> None:
        self._show_cursor()

    # --- drawing ---------------------------------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the visible lines. When the colours or the width have changed, all are drawn again."""
        look = (self.app.theme, self.visual_style, self.size.width)
        if look != self._look:
            self._look = look
            self._strips.clear()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y - 1 if y else _HEADINGS
        style = "" if place != self.cursor else _FOCUSED if self.has_focus else _BLURRED
        strip = self._strips.get((place, style))
        if strip is None:
            strip = self._strips[place, style] = self._strip_of(place, style)
        return strip.crop(self.scroll_offset.x, self.scroll_offset.x + self.size.width)

    def _strip_of(self, place: int, style: str) -> Strip:
        rows = list(self.rows.values())
        width = max(self.virtual_size.width, self.size.width)
        if place >= len(rows):
            return Strip.blank(width, self.rich_style)
        cells = [Content.styled(heading.label, DIM) for heading in self.headings] if place == _HEADINGS else rows[place]
        line = Content.assemble(" ", Content("  ").join(_fitted(cells, self.headings)))
        line = line.pad_right(max(0, width - line.cell_length))
        shown = Content.styled(line.plain, style) if style else line  # the cursor's colours override the cells' own
        return Visual.to_strips(self, shown, width, 1, self.visual_style, apply_selection=False)[0]


def _fitted(cells: Sequence[Content], headings: Sequence[Heading]) -> Iterator[Content]:
    """The cells, each as wide as its column; a long one extends over the empty cells behind it."""
    place = 0
    while place < len(cells):
        cell, heading = cells[place], headings[place]
        width = heading.width
        place += 1
        while cell.cell_length > width and place < len(cells) and not cells[place]:
            width += headings[place].width + 2
            place += 1
        text = cell.truncate(width, ellipsis=True)
        free = width - text.cell_length
        yield text.pad_left(free) if heading.number else text.pad_right(free)
