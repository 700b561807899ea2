"""From the baseline to the stack as bars, one for each setting. Pure functions."""

from __future__ import annotations

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.report.charts import Axis, Bar, Tone
from advisor.report.pictures import waterfall_chart
from advisor.tui.text import DIM, TONES, shortened

_NAME = 18
_LEAST_BAR = 12
_WIDEST_BAR = 46
_WIDE_FIGURE, _FIGURE = 66, 30
_LEAST_WIDE_BAR = 24


def waterfall_text(state: SessionState, width: int) -> Content:
    """The baseline, a line for each setting of the stack, and the stack; empty while no contribution is known."""
    chart = waterfall_chart(state)
    if chart is None:
        return Content("")
    wide = width >= _NAME + _LEAST_WIDE_BAR + _WIDE_FIGURE + 3
    room = max(_LEAST_BAR, min(_WIDEST_BAR, width - _NAME - (_WIDE_FIGURE if wide else _FIGURE) - 3))
    ends = [end for bar in chart.bars for end in (bar.start, bar.end)]
    axis = Axis("", min(ends), max(ends), log=True)  # a cell is too much to leave free beside the bars
    return Content("\n").join([_line(bar, axis, room, wide=wide) for bar in chart.bars])


def _line(bar: Bar, axis: Axis, room: int, *, wide: bool) -> Content:
    name = f"{shortened(bar.name, _NAME):<{_NAME}} "
    return Content.assemble(name, _drawn(bar, axis, room), "  ", _figure(bar, wide=wide))


def _drawn(bar: Bar, axis: Axis, room: int) -> Content:
    """The bar in so many cells; what goes back is hatched."""
    low, high = sorted(round(axis.place(end) * (room - 1)) for end in (bar.start, bar.end))
    if bar.is_mark:
        return Content.assemble(" " * low, ("▏", DIM), " " * (room - low - 1))
    length = max(1, high - low)
    low = min(low, room - length)
    filled = ("▒" if bar.end < bar.start else "█") * length
    return Content.assemble(" " * low, (filled, TONES[bar.tone]), " " * (room - low - length))


def _figure(bar: Bar, *, wide: bool) -> Content:
    styles = {Tone.STACK: "bold", Tone.FASTER: f"bold {TONES[bar.tone]}", Tone.SLOWER: f"bold {TONES[bar.tone]}"}
    details = [part for part in bar.details if wide or bar.tone is Tone.STACK]
    return Content.assemble((bar.text, styles.get(bar.tone, DIM)), *((f"  {part}", DIM) for part in details))
