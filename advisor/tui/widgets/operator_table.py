"""The profile's operators as a table: sorted by any column, plain or grouped by input shapes."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.reactive import var

from advisor.figures.formatting import format_ms
from advisor.records import OperatorRow, Profile
from advisor.tui.text import shortened
from advisor.tui.widgets.table import Cell, Column, Table

_DEVICE = Column("device", "GPU", 8, number=True)
_HOST = Column("host", "host", 8, number=True)
_CALLS = Column("calls", "calls", 6, number=True)
_LEAST_NAME, _SHAPED_NAME = 14, 24


class OperatorTable(Table):
    """The operators of a ``profile``, the longest first; grouped by input shapes with ``by_shape``."""

    profile: var[Profile | None] = var(None, init=False)
    by_shape: var[bool] = var(False, init=False)

    def _draw(self) -> None:
        room = self.size.width - 1 - sum(column.width + 2 for column in self._figures) - 2
        columns = [Column("name", "operator", max(_LEAST_NAME, room)), *self._figures]
        if self.by_shape:
            shapes = Column("shapes", "input shapes", max(_LEAST_NAME, room - _SHAPED_NAME - 2))
            columns = [Column("name", "operator", _SHAPED_NAME), shapes, *self._figures]
        self.show(columns, {str(place): _cells(row, columns[0].width) for place, row in enumerate(self._rows)})

    watch_profile = watch_by_shape = _draw

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    @property
    def _figures(self) -> list[Column]:
        """The columns of figures; on a CPU there is no GPU's."""
        operators = self.profile.operators if self.profile else ()
        return [*([_DEVICE] if any(row.device_ms for row in operators) else []), _HOST, _CALLS]

    @property
    def _rows(self) -> list[OperatorRow]:
        if self.profile is None:
            return []
        rows, on_device = self.profile.by_shape if self.by_shape else self.profile.operators, _DEVICE in self._figures
        return sorted(rows, key=lambda row: -row.device_ms if on_device else -row.host_ms)

    @property
    def row_text(self) -> Content:
        """The whole name and the shapes of the selected operator."""
        if not self.cursor_key:
            return Content("")
        row = self._rows[int(self.cursor_key)]
        return Content.assemble((row.name, "bold"), f"  {row.shapes}" if row.shapes else "")


def _cells(row: OperatorRow, width: int) -> dict[str, Cell]:
    calls = f"{row.calls:.0f}" if row.calls >= 1 else f"{row.calls:.1f}"
    return {
        "name": Cell(Content(shortened(row.name.removeprefix("aten::"), width)), row.name),
        "shapes": Cell(Content(row.shapes), row.shapes),
        "device": Cell(Content(format_ms(row.device_ms)), -row.device_ms),
        "host": Cell(Content(format_ms(row.host_ms)), -row.host_ms),
        "calls": Cell(Content(calls), -row.calls),
    }
