"""The profile's operators as a table: sorted by any column, plain or grouped by input shapes."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.reactive import var

from advisor.figures.formatting import format_ms
from advisor.records import OperatorRow, Profile
from advisor.tui.text import shortened
from advisor.tui.widgets.table import Column, Order, Table

_DEVICE = Column("device", "GPU", 8, number=True)
_HOST = Column("host", "host", 8, number=True)
_CALLS = Column("calls", "calls", 6, number=True)
_WORDS = {"device": "GPU time", "host": "host time", "calls": "calls", "name": "name"}
_LEAST_NAME, _SHAPED_NAME = 14, 24


class OperatorTable(Table):
    """The operators of a ``profile``; a click on a heading sorts by it, and a second table has them ``by_shape``."""

    profile: var[Profile | None] = var(None, init=False)
    by_shape: var[bool] = var(False, init=False)

    def _draw(self) -> None:
        room = self.size.width - 1 - sum(column.width + 2 for column in self._figures) - 2
        name = Column("name", "operator", max(_LEAST_NAME, room))
        columns = [name, *self._figures]
        if self.by_shape:
            shapes = Column("shapes", "input shapes", max(_LEAST_NAME, room - _SHAPED_NAME - 2))
            columns = [Column("name", "operator", _SHAPED_NAME), shapes, *self._figures]
        rows = {str(place): self._texts(row, columns[0].width) for place, row in enumerate(self.rows_shown)}
        self.show(columns, rows)

    watch_profile = watch_by_shape = _draw

    def watch_order(self) -> None:
        self._draw()
        super().watch_order()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    @property
    def _figures(self) -> list[Column]:
        """The columns of figures; on a CPU there is no GPU's."""
        on_device = any(row.device_ms for row in self._rows)
        return [*([_DEVICE] if on_device else []), _HOST, _CALLS]

    @property
    def _rows(self) -> tuple[OperatorRow, ...]:
        if self.profile is None:
            return ()
        return self.profile.by_shape if self.by_shape else self.profile.operators

    @property
    def rows_shown(self) -> list[OperatorRow]:
        """The rows in their order: what takes longest first, unless another column was chosen."""
        chosen = self.order.column or self._figures[0].key
        return Order(chosen, self.order.backwards).sort(self._rows, lambda row: _figure(row, chosen))

    def _texts(self, row: OperatorRow, width: int) -> dict[str, Content]:
        cells = {
            "name": shortened(row.name.removeprefix("aten::"), width),
            "shapes": row.shapes,
            "device": format_ms(row.device_ms),
            "host": format_ms(row.host_ms),
            "calls": f"{row.calls:.0f}" if row.calls >= 1 else f"{row.calls:.1f}",
        }
        return {name: Content(cell) for name, cell in cells.items()}

    @property
    def row_text(self) -> Content:
        """The whole name and the shapes of the selected operator."""
        row = next(iter(self.rows_shown[self.cursor_row : self.cursor_row + 1]), None)
        return Content.assemble((row.name, "bold"), f"  {row.shapes}" if row.shapes else "") if row else Content("")

    @property
    def caption(self) -> str:
        """The contents and the order of the table, for a panel's title."""
        what = "Operators by input shapes" if self.by_shape else "Operators"
        return f"{what}, per step, by {_WORDS.get(self.order.column or self._figures[0].key, 'shapes')}"


def _figure(row: OperatorRow, column: str) -> float | str:
    figures = {"device": -row.device_ms, "host": -row.host_ms, "calls": -row.calls}
    return figures.get(column, row.shapes if column == "shapes" else row.name)
