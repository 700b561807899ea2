"""The phases of a step as one stacked bar with a legend."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from advisor.figures.formatting import format_ms, format_percent
from advisor.tui.text import DIM, phase_colour

_NAME = 11
_CELL = 2 + _NAME + 8 + 6
_GPU_CELL = 8
_GAP = 3
_TALL = 30


class PhaseBar(Widget):
    """A stacked bar and under it each phase's colour, name, ms and share, and how long the GPU worked for it.

    Where there is room the bar is two rows high and stands apart.
    """

    DEFAULT_CSS = """
    PhaseBar { height: auto; width: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._empty = ""
        self._phases: dict[str, float] = {}
        self._device: dict[str, float] = {}

    def show(self, phases: Mapping[str, float], device: Mapping[str, float], empty: str = "") -> None:
        """Replace the phases: ms by name, and ms of kernels and copies that each launched (empty on a CPU).

        ``empty`` stands in their place where there are none.
        """
        if (dict(phases), dict(device), empty) != (self._phases, self._device, self._empty):
            self._phases, self._device, self._empty = dict(phases), dict(device), empty
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as the bar and its legend take at this width."""
        return len(self._lines(width)) if self._phases else 1

    def render(self) -> Content:
        """The bar and its legend."""
        if not self._phases:
            return Content.styled(self._empty, DIM)
        return Content("\n").join(self._lines(self.content_size.width))

    def _lines(self, width: int) -> list[Content]:
        line = stacked(self._phases, width)
        tall = self.app.size.height >= _TALL
        return [*([line, line, Content("")] if tall else [line]), *legend(self._phases, self._device, width)]


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


def legend(phases: Mapping[str, float], device: Mapping[str, float], width: int) -> list[Content]:
    """The legend in as many columns as fit, filled row by row; with the GPU's times under a heading of their own."""
    cell = _CELL + (_GPU_CELL if device else 0)
    columns = max(1, min((width + _GAP) // (cell + _GAP), len(phases)))
    total = sum(phases.values()) or 1.0
    entries = [
        _entry(name, duration_ms, duration_ms / total, position)
        + (Content.styled(f"{format_ms(device.get(name)):>{_GPU_CELL}}", DIM) if device else Content(""))
        for position, (name, duration_ms) in enumerate(phases.items())
    ]
    padded = [entry.pad_right(cell + _GAP - entry.cell_length) for entry in entries]
    rows = [padded[start : start + columns] for start in range(0, len(padded), columns)]
    heading = Content.styled(f"{'':<{2 + _NAME}}{'step':>8}{'share':>6}{'GPU':>{_GPU_CELL}}{'':<{_GAP}}", DIM)
    headings = [Content("").join([heading] * columns)] if device else []
    return [*headings, *(Content("").join(row) for row in rows)]


def _entry(name: str, duration_ms: float, share: float, position: int) -> Content:
    return Content.assemble(
        ("■ ", phase_colour(name, position)),
        f"{_short(name):<{_NAME}}",
        (f"{format_ms(duration_ms):>8}", "bold"),
        (f"{format_percent(share):>6}", DIM),
    )


def _short(name: str) -> str:
    shown = {"host-to-device": "to device"}.get(name, name)
    return shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"
