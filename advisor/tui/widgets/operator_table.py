"""The profile's operators as a table: sorted by any column, plain or grouped by input shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual import events, on
from textual.content import Content
from textual.message import Message
from textual.reactive import var

from advisor.figures.formatting import format_ms
from advisor.records import OperatorRow, Profile
from advisor.tui.text import shortened
from advisor.tui.widgets.row_table import Heading, RowTable

_NAME = "operator"
_PADDING = 2
_SHAPED_NAME_WIDTH = 20
_LEAST_NAME_WIDTH = 14
# With fewer cells for a name the totals make way: operators differ in their names' ends.
_GOOD_NAME_WIDTH = 20
_SORTED = "▼"


@dataclass(frozen=True, slots=True)
class OperatorColumn:
    """A column of figures: its key, heading, width, description, and the function that reads it from a row."""

    key: str
    label: str
    width: int
    words: str
    value: Callable[[OperatorRow], float]


_DEVICE = OperatorColumn("device", "GPU", 7, "GPU time", lambda row: row.device_ms)
_DEVICE_TOTAL = OperatorColumn(
    "device_total", "GPU Σ", 7, "GPU time with what they call", lambda row: row.device_total_ms
)
_HOST = OperatorColumn("host", "host", 7, "host time", lambda row: row.host_ms)
_HOST_TOTAL = OperatorColumn("host_total", "host Σ", 7, "host time with what they call", lambda row: row.host_total_ms)
_CALLS = OperatorColumn("calls", "calls", 6, "calls", lambda row: row.calls)


def columns_of(rows: tuple[OperatorRow, ...], width: int, *, by_shape: bool) -> tuple[OperatorColumn, ...]:
    """The columns for this width, without the empty ones. Shapes and long names take the place of the totals."""
    on_device = any(row.device_ms for row in rows)
    plain = (*((_DEVICE,) if on_device else ()), _HOST, _CALLS)
    if by_shape or not any(row.host_total_ms for row in rows):
        return plain
    every = (*((_DEVICE, _DEVICE_TOTAL) if on_device else ()), _HOST, _HOST_TOTAL, _CALLS)
    hidden = width == 0  # in a panel that is not on screen
    return every if hidden or _name_width(every, width) >= _GOOD_NAME_WIDTH else plain


def _name_width(columns: tuple[OperatorColumn, ...], width: int) -> int:
    return width - sum(column.width + _PADDING for column in columns) - _PADDING - 1


class OperatorTable(RowTable):
    """The operators of a ``profile``; a click on a heading sorts by it, and a second table has them ``by_shape``.

    ``cells`` is the table's width, which it keeps: a table that is not on screen has none.
    """

    profile: var[Profile | None] = var(None, init=False)
    by_shape: var[bool] = var(False, init=False)
    sorted_by: var[str] = var("", init=False)
    cells: var[int] = var(0, init=False)

    class Drawn(Message):
        """The table shows other rows, or in another order."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._columns: tuple[OperatorColumn, ...] = ()

    @property
    def rows_shown(self) -> tuple[OperatorRow, ...]:
        """The rows of the table that is chosen, sorted."""
        order = self.order
        return tuple(sorted(self._rows, key=order.value, reverse=True)) if order else self._rows

    @property
    def _rows(self) -> tuple[OperatorRow, ...]:
        if self.profile is None:
            return ()
        return self.profile.by_shape if self.by_shape else self.profile.operators

    @property
    def order(self) -> OperatorColumn | None:
        """The column by which the rows are sorted; the first one unless another was chosen."""
        chosen = next((column for column in self._columns if column.key == self.sorted_by), None)
        return chosen or next(iter(self._columns), None)

    def sort_by_next(self) -> None:
        """Sort by the next column to the right; after the last one, by the first."""
        keys = [column.key for column in self._columns]
        if keys and self.order:
            self.sorted_by = keys[(keys.index(self.order.key) + 1) % len(keys)]

    @on(RowTable.HeadingChosen)
    def _on_heading_chosen(self, message: RowTable.HeadingChosen) -> None:
        if any(column.key == message.key for column in self._columns):
            self.sorted_by = message.key

    def _draw(self) -> None:
        self._columns = columns_of(self._rows, self.cells, by_shape=self.by_shape)
        names, *_ = headings = self._headings()
        self.show(headings, {str(place): self._row(row, names.width) for place, row in enumerate(self.rows_shown)})
        self.post_message(self.Drawn())

    watch_profile = watch_by_shape = watch_sorted_by = watch_cells = _draw

    def on_resize(self, event: events.Resize) -> None:
        self.cells = event.size.width

    def _headings(self) -> list[Heading]:
        room = _name_width(self._columns, self.cells)
        names = _SHAPED_NAME_WIDTH if self.by_shape else max(_LEAST_NAME_WIDTH, room)
        shapes = Heading("shapes", "input shapes", max(_LEAST_NAME_WIDTH, room - _SHAPED_NAME_WIDTH - _PADDING))
        figures = [
            Heading(column.key, f"{column.label}{_SORTED if column is self.order else ''}", column.width, number=True)
            for column in self._columns
        ]
        return [Heading(_NAME, "operator", names), *([shapes] if self.by_shape else []), *figures]

    def _row(self, row: OperatorRow, name_cells: int) -> list[Content]:
        cells = [Content(shortened(row.name.removeprefix("aten::"), name_cells))]
        cells += [Content(row.shapes)] if self.by_shape else []
        return cells + [Content(_figure(column, row)) for column in self._columns]

    @property
    def row_text(self) -> Content:
        """All of the row under the cursor that does not fit in its cells: the name and the shapes."""
        rows = self.rows_shown
        if not 0 <= self.cursor < len(rows):
            return Content("")
        row = rows[self.cursor]
        return Content.assemble((row.name, "bold"), f"  {row.shapes}" if row.shapes else "")

    @property
    def has_totals(self) -> bool:
        """Whether a column counts what the operators call."""
        return any(column in (_DEVICE_TOTAL, _HOST_TOTAL) for column in self._columns)

    @property
    def caption(self) -> Content:
        """The contents and the order of the table, for a panel's title."""
        what = "Operators by input shapes" if self.by_shape else "Operators"
        return Content(f"{what}, per step, by {self.order.words}" if self.rows and self.order else what)


def _figure(column: OperatorColumn, row: OperatorRow) -> str:
    value = column.value(row)
    if column is not _CALLS:
        return format_ms(value)
    return f"{value:.0f}" if value >= 1 else f"{value:.1f}"
