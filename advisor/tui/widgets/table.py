"""A DataTable of Textual that takes all columns and rows at once and draws only the cells that have changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rich.style import Style as RichStyle
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.style import Style
from textual.widgets import DataTable

from advisor.tui.keys import key


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its width in cells, without padding. A column of numbers is aligned to the right."""

    key: str
    label: str
    width: int
    number: bool = False


class Cell(NamedTuple):
    """A text, and the figure that sorts its row: the smallest comes first, rows without a figure come last."""

    text: Content
    figure: float | str | None = None


Rows = Mapping[str, Mapping[str, Cell]]
_EMPTY = Cell(Content(""))
_CURSOR = {"enter": "select_cursor", "down,j": "cursor_down", "up,k": "cursor_up", "pageup": "page_up"}
_CURSOR |= {"pagedown": "page_down", "home": "scroll_top", "end": "scroll_bottom"}
_MOVING = ("up", "down", "j", "k", "pageup", "pagedown", "home", "end")


def fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], int]:
    """Return the columns that fit into this width, the most important first, and the number of free cells."""
    room, kept = width - 1, list[Column]()
    for column in columns:
        if column.width + 2 > room:
            break
        kept.append(column)
        room -= column.width + 2
    return kept, room


class Table(DataTable[Text], inherit_bindings=False):
    """A table with a cursor on one row. ``touched`` is true if the person, not the app, moved the cursor last.

    ``sorted_by`` is the key of the column that the person sorted by; it is empty if the rows are in the given order.
    """

    BINDINGS = [
        *(Binding(keys, action, show=False) for keys, action in _CURSOR.items()),
        key("table.sort", "o", "sort", "Sort", "Order the rows by the next column; a click on a heading does it too"),
    ]

    @dataclass
    class CellClicked(Message):
        """A cell of a row was clicked."""

        row: str
        column: str

    def __init__(self, *, id: str) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="css")
        self.touched = False
        self.sorted_by = ""
        self.shown: tuple[Column, ...] = ()
        self._given: tuple[Sequence[Column], Rows] = ((), {})
        self._cells: dict[str, tuple[Content, ...]] = {}
        self._colours = ""
        self._sized = Size()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to sort only if there are rows."""
        return action != "sort" or self.row_count > 0

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, go back to the given order."""
        columns = ["", *(column.key for column in self.shown)]
        place = columns.index(self.sorted_by) if self.sorted_by in columns else 0
        self._sort(columns[(place + 1) % len(columns)])

    def on_data_table_header_selected(self, message: DataTable.HeaderSelected) -> None:
        """Sort by the clicked column; at a second click, go back to the given order."""
        column = message.column_key.value or ""
        self._sort("" if column == self.sorted_by else column)

    def _sort(self, column: str) -> None:
        self.sorted_by = column
        self.show(*self._given)

    def _in_order(self, rows: Rows) -> Rows:
        figures: dict[str, Any] = {name: row.get(self.sorted_by, _EMPTY).figure for name, row in rows.items()}
        order = sorted(rows, key=lambda name: (figures[name] is None, figures[name]))
        return {name: rows[name] for name in order}

    def show(self, columns: Sequence[Column], rows: Rows) -> None:
        """Draw these rows. The cursor stays on its row; if the row is gone, the cursor stays at its place."""
        self._given = columns, rows
        rows = self._in_order(rows)
        columns = [replace(one, label=f"{one.label}▼") if one.key == self.sorted_by else one for one in columns]
        cells = {key: tuple(row.get(column.key, _EMPTY).text for column in columns) for key, row in rows.items()}
        before, theme = self._cells, self.app.theme
        chosen, place, top = self.cursor_key, self.cursor_row, self.scroll_offset.y
        self._cells = cells
        if list(cells) == list(before) and tuple(columns) == self.shown and theme == self._colours:
            for key, row in cells.items():
                for column, old, new in zip(columns, before[key], row, strict=True):
                    if not old.is_same(new):
                        self.update_cell(key, column.key, self._text(new, number=column.number))
            return
        self._colours = theme
        self.shown = tuple(columns)
        self.clear(columns=True)
        for column in columns:
            label = Text(column.label, justify="right" if column.number else "left")
            self.add_column(label, key=column.key, width=column.width)
        for key, row in cells.items():
            texts = [self._text(cell, number=column.number) for column, cell in zip(columns, row, strict=True)]
            self.add_row(*texts, key=key)
        self.go_to(chosen if chosen in cells else next(iter(list(cells)[place : place + 1]), ""))
        # The row under the cursor stays where it is on the screen.
        self.scroll_to(y=max(0, top + self.cursor_row - place), animate=False)

    def _text(self, cell: Content, *, number: bool) -> Text:
        """A cell as the table draws it, in the colours of the theme."""
        text = Text(cell.plain, no_wrap=True, overflow="ellipsis", justify="right" if number else "left", end="")
        ground = Style.parse("$foreground on $background")
        for span in cell.spans:
            drawn = (ground + (Style.parse(span.style) if isinstance(span.style, str) else span.style)).rich_style
            text.stylize(RichStyle(color=drawn.color, bold=drawn.bold), span.start, span.end)
        return text

    @property
    def keys(self) -> list[str]:
        """The keys of the rows, from top to bottom."""
        return list(self._cells)

    @property
    def cursor_key(self) -> str:
        """The key of the row under the cursor; empty if there are no rows."""
        return next(iter(self.keys[self.cursor_row : self.cursor_row + 1]), "")

    def go_to(self, key: str) -> None:
        """Put the cursor on the row with this key, if there is one."""
        if key in self._cells:
            self.move_cursor(row=self.keys.index(key), animate=False)

    def notify_style_update(self) -> None:
        """Draw all cells again only if the theme has changed. Textual would also do so when the focus changes."""
        if self._colours != self.app.theme:
            super().notify_style_update()

    def on_resize(self, event: events.Resize) -> None:
        """Do not draw the table again if it comes back on screen with the same size."""
        if event.size == self._sized:
            event.prevent_default()
        self._sized = event.size

    def on_key(self, event: events.Key) -> None:
        self.touched = self.touched or event.key in _MOVING

    def on_click(self, event: events.Click) -> None:
        self.touched = True
        row, column = event.style.meta.get("row", -1), event.style.meta.get("column", -1)
        if 0 <= row < len(self._cells) and 0 <= column < len(self.shown):
            self.post_message(self.CellClicked(self.keys[row], self.shown[column].key))
