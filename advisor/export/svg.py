"""Charts as SVG inside an HTML page, in the page's colours; all text is escaped.

A picture is 420 units wide and 13 units a line, so that it can be read on a telephone, where a unit is a pixel or less.
"""

import html
from collections.abc import Iterable, Iterator

from advisor.report.charts import Axis, Bar, Bars, Chart, Plot, Stacked, StackedBars, Tone

WIDTH = 420.0
_HEIGHT = 250.0
_LINE = 14.0
# About what a character of the sans-serif face is wide, at 12 units high.
_CHARACTER = 6.6
_LEFT, _BOTTOM, _TOP, _RIGHT = 46.0, 34.0, 18.0, 8.0
_NAMES, _ROW = 118.0, 31.0
_THICK = 20.0
_MOST_PHASES = 8

STYLE = """
figure { margin: 1.25rem 0; max-width: 40rem; }
figure svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
figure figcaption { color: var(--dim); font-size: .88rem; }
svg text { fill: var(--text); } svg .dim { fill: var(--dim); } svg .on { fill: #fff; font-weight: 700; }
svg .grid { stroke: var(--line); } svg line, svg polyline { fill: none; stroke-width: 1.5; }
figure .baseline { --tone: var(--dim); } figure .stack { --tone: var(--mark); } figure .front { --tone: #2f7fd1; }
figure .chosen { --tone: #c4459a; } figure .faster { --tone: var(--mark); } figure .slower { --tone: #d0553f; }
figure .other { --tone: var(--dim); } figure .limit { --tone: #a8780b; }
.sign { fill: var(--tone); color: var(--tone); font-weight: 700; } .legend { margin: .2rem 0; font-size: .88rem; }
svg .line { stroke: var(--tone); } svg .area { fill: var(--tone); }
svg .p0 { fill: #1d6fb8; } svg .p1 { fill: #9a4fb0; } svg .p2 { fill: #16806b; } svg .p3 { fill: #b3541e; }
svg .p4 { fill: #6b6f1d; } svg .p5 { fill: #a83a5b; } svg .p6 { fill: #5d6470; } svg .p7 { fill: #4d56b8; }
"""


def figure(chart: Chart) -> str:
    """A chart with its title and a sentence that says what it shows."""
    match chart:
        case Plot():
            height, parts = _HEIGHT, _plot(chart)
        case Bars():
            height, parts = _ROW * len(chart.bars) + _BOTTOM, _bars(chart)
        case StackedBars():
            rows = sum(_legend_rows(bar) for bar in chart.bars)
            height, parts = (_THICK + 8) * len(chart.bars) + _LINE * rows + 8, _stacked_bars(chart)
    title, words = html.escape(chart.title), html.escape(chart.words)
    head = f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{title}: {words}">'
    body = "\n".join(parts)
    foot = f"{_legend(chart)}<figcaption>{words}</figcaption>"
    return f"<figure>\n<h3>{title}</h3>\n{head}\n{body}\n</svg>\n{foot}\n</figure>"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{styled}>{html.escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'


# --- marks and lines ----------------------------------------------------------------------------------------------


def _plot(plot: Plot) -> Iterator[str]:
    width, height, floor = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM

    def spot(x: float, y: float) -> tuple[float, float]:
        return _LEFT + plot.x.place(x) * width, floor - plot.y.place(y) * height

    for value, name in _apart(plot.x, width, _CHARACTER):
        x, _ = spot(value, plot.y.low)
        yield _line(x, floor - height, x, floor, "grid")
        yield _text(min(x, WIDTH - len(name) * _CHARACTER / 2), floor + 13, name, "dim", "middle")
    for value, name in plot.y.ticks:
        _, y = spot(plot.x.low, value)
        yield _line(_LEFT, y, _LEFT + width, y, "grid")
        yield _text(_LEFT - 5, y + 4, name, "dim", "end")
    yield _text(_LEFT + width / 2, floor + 28, plot.x.title, "dim", "middle")
    yield _text(2, 11, plot.y.title, "dim")
    for line in plot.lines:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (spot(*point) for point in line.points))
        dashed = ' stroke-dasharray="5 3"' if line.tone in (Tone.LIMIT, Tone.BASELINE) else ""
        yield f'<polyline points="{points}" class="line {line.tone}"{dashed}/>'
    for mark in plot.marks:
        x, y = spot(mark.x, mark.y)
        yield _text(x, y + 4, mark.sign, f"sign {mark.tone}", "middle")


def _legend(chart: Chart) -> str:
    """The signs of a plot with their meaning, in lines under it."""
    entries = chart.legend if isinstance(chart, Plot) else ()
    words = [
        f'<span class="sign {tone}">{html.escape(sign)}</span> {html.escape(told)}' for sign, tone, told in entries
    ]
    return f'<p class="legend">{" · ".join(words)}</p>\n' if words else ""


def _apart(axis: Axis, width: float, character: float) -> Iterator[tuple[float, str]]:
    end = -1e9
    for value, name in axis.ticks:
        half = len(name) * character / 2
        if axis.place(value) * width - half > end + character:
            end = axis.place(value) * width + half
            yield value, name


# --- bars ---------------------------------------------------------------------------------------------------------


def _bars(chart: Bars) -> Iterator[str]:
    width = WIDTH - 2 * _RIGHT
    floor = _ROW * len(chart.bars) + 2
    for value, name in _apart(chart.axis, width, _CHARACTER):
        x = _RIGHT + chart.axis.place(value) * width
        yield _line(x, 2, x, floor, "grid")
        yield _text(x, floor + 13, name, "dim", "middle")
    yield _text(WIDTH / 2, floor + 28, chart.axis.title, "dim", "middle")
    for row, bar in enumerate(chart.bars):
        yield from _bar(bar, chart.axis, _ROW * row, width)


def _bar(bar: Bar, axis: Axis, top: float, width: float) -> Iterator[str]:
    """The name and the figure in a line, the bar under it: any name has room."""
    low, high = sorted((_RIGHT + axis.place(bar.start) * width, _RIGHT + axis.place(bar.end) * width))
    yield _text(0, top + 12, bar.name)
    told = "  ".join((bar.text, *bar.details))
    fits = (len(bar.name) + len(told) + 2) * _CHARACTER < WIDTH
    yield _text(WIDTH, top + 12, told if fits else bar.text, "dim", "end")
    yield _box(low, top + 17, 2.0 if bar.is_mark else max(2.0, high - low), _ROW - 20, f"area {bar.tone}")


# --- stacked bars -------------------------------------------------------------------------------------------------


def _stacked_bars(chart: StackedBars) -> Iterator[str]:
    longest = max(bar.size for bar in chart.bars) or 1.0
    names = list(dict.fromkeys(part.name for bar in chart.bars for part in bar.parts))
    kinds = {name: f"p{place % _MOST_PHASES}" for place, name in enumerate(names)}
    top = 0.0
    for bar in chart.bars:
        yield _text(0, top + _THICK - 6, f"{bar.name}  {bar.text}")
        yield from _pieces(bar, kinds, longest, top)
        top += _THICK + 2
        for place, part in enumerate(bar.parts):
            x, y = (place % 2) * WIDTH / 2, top + _LINE * (place // 2) + 11
            yield _box(x, y - 9, 10, 10, kinds[part.name])
            yield _text(x + 14, y, f"{part.initial}  {part.name}  {part.text}", "dim")
        top += _LINE * _legend_rows(bar) + 6


def _pieces(bar: Stacked, kinds: dict[str, str], longest: float, top: float) -> Iterable[str]:
    left, room = _NAMES, WIDTH - _NAMES
    for part in bar.parts:
        width = part.size / longest * room
        yield _box(left, top, width, _THICK, kinds[part.name])
        if width > _CHARACTER + 3:
            yield _text(left + width / 2, top + _THICK - 6, part.initial, "on", "middle")
        left += width


def _legend_rows(bar: Stacked) -> int:
    return (len(bar.parts) + 1) // 2
