"""The phases of a step as one stacked bar with a legend."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from advisor.formatting import format_ms, format_percent
from advisor.tui.text import DIM, phase_colour

_CELL = 34
_TALL = 30


class PhaseBar(Widget):
    """A stacked bar, two rows high, and under it each phase's colour, name, ms and share."""

    DEFAULT_CSS = """
    PhaseBar { height: auto; width: 1fr; }
    """

    def __init__(self, empty: str) -> None:
        super().__init__()
        self._empty = empty
        self._phases: dict[str, float] = {}

    def show(self, phases: Mapping[str, float]) -> None:
        """Replace the phases: ms by name."""
        if dict(phases) != self._phases:
            self._phases = dict(phases)
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Two rows of bar, an empty one where there is room, and the legend."""
        if not self._phases:
            return 1
        columns = max(1, width // _CELL)
        return 2 + len(self._gap) + -(-len(self._phases) // columns)

    @property
    def _gap(self) -> list[Content]:
        return [Content("")] if self.app.size.height >= _TALL else []

    def render(self) -> Content:
        """The bar and its legend."""
        if not self._phases:
            return Content.styled(self._empty, DIM)
        width = self.content_size.width
        line = stacked(self._phases, width)
        return Content("\n").join([line, line, *self._gap, *legend(self._phases, width)])


def cells(values: list[float], width: int) -> list[int]:
    """``width`` cells shared out in proportion; what is above zero gets at least one cell."""
    total = sum(values)
    if total <= 0 or width <= 0:
        return [0 for _ in values]
    shares = [max(1, round(value / total * width)) if value > 0 else 0 for value in values]
    while sum(shares) != width:
        widest = max(range(len(shares)), key=shares.__getitem__)
        step = 1 if sum(shares) < width else -1
        if shares[widest] + step < 1:
            break
        shares[widest] += step
    return shares


def stacked(phases: Mapping[str, float], width: int) -> Content:
    """The bar: each phase its colour, as wide as its share."""
    parts = cells(list(phases.values()), width)
    pieces = [
        (" " * count, f"on {phase_colour(name, position)}")
        for position, (name, count) in enumerate(zip(phases, parts, strict=True))
    ]
    return Content.assemble(*pieces)


def legend(phases: Mapping[str, float], width: int) -> list[Content]:
    """The legend in as many columns as fit, filled row by row."""
    columns = max(1, width // _CELL)
    total = sum(phases.values()) or 1.0
    entries = [
        _entry(name, duration_ms, duration_ms / total, position)
        for position, (name, duration_ms) in enumerate(phases.items())
    ]
    rows = [entries[start : start + columns] for start in range(0, len(entries), columns)]
    return [Content("").join(row) for row in rows]


def _entry(name: str, duration_ms: float, share: float, position: int) -> Content:
    entry = Content.assemble(
        ("■ ", phase_colour(name, position)),
        f"{_short(name):<14}",
        (f"{format_ms(duration_ms):>8}", "bold"),
        (f"{format_percent(share):>6}", DIM),
    )
    return entry.pad_right(max(0, _CELL - entry.cell_length))


def _short(name: str) -> str:
    shown = {"host-to-device": "copy to device"}.get(name, name)
    return shown if len(shown) <= 14 else f"{shown[:13]}…"
