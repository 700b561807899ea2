"""The phases of a step as stacked bars, before and after, with a legend."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from advisor.figures.formatting import format_ms, format_percent
from advisor.report.charts import Part, Stacked, StackedBars
from advisor.tui.text import DIM, phase_colour

_NAME = 11
_LABEL = 7
_CELL = 2 + _NAME + 8 + 6
_GPU_CELL = 8
_GAP = 3
_TALL = 30


class PhaseBar(Widget):
    """A stacked bar of the phases before, and after where they were timed, with each phase's initial in it.

    Under them each phase's colour, initial, name, ms and share, and how long the GPU worked for it; then what the
    phases take afterwards. ``device`` has the ms of kernels and copies that each launched; empty on a CPU.
    """

    DEFAULT_CSS = """
    PhaseBar { height: auto; width: 1fr; }
    """

    chart: reactive[StackedBars | None] = reactive(None, layout=True)
    device: reactive[Mapping[str, float]] = reactive(dict, layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(self.chart, width)) if self.chart else 1

    def render(self) -> Content:
        if self.chart is None:
            return Content("")
        return Content("\n").join(self._lines(self.chart, self.content_size.width))

    def _lines(self, chart: StackedBars, width: int) -> list[Content]:
        tall = self.app.size.height >= _TALL and len(chart.bars) == 1
        lines = bars(chart, width)
        return [
            *([lines[0], Content("")] if tall else lines),
            *legend(chart.bars[0], self.device, width),
            *(afterwards(bar, width) for bar in chart.bars[1:]),
        ]


def cells(values: list[float], width: int) -> list[int]:
    """Share ``width`` cells in proportion; each value above zero gets at least one."""
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


def bars(chart: StackedBars, width: int) -> list[Content]:
    """The bars, each on a scale of its own, with names if there are several. A part has its colour and its initial."""
    several = len(chart.bars) > 1
    room = width - (_LABEL if several else 0)
    lines = []
    for bar in chart.bars:
        name = Content.styled(f"{bar.name:<{_LABEL}}" if several else "", DIM)
        lines.append(name + _pieces(bar, max(1, room)))
    return lines


def _pieces(bar: Stacked, width: int, *, named: bool = False) -> Content:
    """The parts in their colours, each with its initial in the middle or, where there is room, its name and share."""
    parts = cells([part.size for part in bar.parts], width)
    return Content.assemble(
        *(
            (_label(part, bar, count, named=named).center(count), f"#10141a on {phase_colour(part.name, position)}")
            for position, (part, count) in enumerate(zip(bar.parts, parts, strict=True))
        )
    )


def _label(part: Part, bar: Stacked, count: int, *, named: bool) -> str:
    told = f"{_short(part.name)} {format_percent(part.size / bar.size) if bar.size else ''}"
    labels = (told, _short(part.name), part.initial) if named else (part.initial,)
    return next((label for label in labels if len(label) <= count), "")


def line_of(chart: StackedBars, kind: str, width: int) -> Content:
    """The parts of a step in one line, behind the ``kind`` of the step: what limits it."""
    head = Content.assemble((f"{kind} ", "bold $accent")) if kind else Content("")
    return head + _pieces(chart.bars[0], max(1, width - head.cell_length), named=True)


def legend(bar: Stacked, device: Mapping[str, float], width: int) -> list[Content]:
    """The legend in as many columns as fit, filled row by row; with the GPU's times under a heading of their own."""
    cell = _CELL + (_GPU_CELL if device else 0)
    columns = max(1, min((width + _GAP) // (cell + _GAP), len(bar.parts)))
    on_device = {name.replace("_", " "): spent_ms for name, spent_ms in device.items()}
    entries = [
        _entry(part, bar.size or 1.0, position)
        + (Content.styled(f"{format_ms(on_device.get(part.name)):>{_GPU_CELL}}", DIM) if device else Content(""))
        for position, part in enumerate(bar.parts)
    ]
    padded = [entry.pad_right(cell + _GAP - entry.cell_length) for entry in entries]
    rows = [padded[start : start + columns] for start in range(0, len(padded), columns)]
    heading = Content.styled(f"{'':<{2 + _NAME}}{'step':>8}{'share':>6}{'GPU':>{_GPU_CELL}}{'':<{_GAP}}", DIM)
    headings = [Content("").join([heading] * columns)] if device else []
    return [*headings, *(Content("").join(row) for row in rows)]


def afterwards(bar: Stacked, width: int) -> Content:
    """A bar's parts in a line, as many as fit, the longest first."""
    line = Content.styled(f"{bar.name} {bar.text}", "bold")
    for part in sorted(bar.parts, key=lambda part: part.size, reverse=True):
        longer = line + Content.styled(f"  {part.initial} {part.name} {format_ms(part.size)}", DIM)
        if longer.cell_length > width:
            break
        line = longer
    return line


def _entry(part: Part, total: float, position: int) -> Content:
    return Content.assemble(
        (part.initial, f"bold #10141a on {phase_colour(part.name, position)}"),
        f" {_short(part.name):<{_NAME}}",
        (f"{format_ms(part.size):>8}", "bold"),
        (f"{format_percent(part.size / total):>6}", DIM),
    )


def _short(name: str) -> str:
    shown = {"host-to-device": "to device"}.get(name, name)
    return shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"
