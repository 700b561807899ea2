"""Charts inside an HTML page, in the page's colours: plots as SVG, bars as boxes. All text is escaped.

A plot is 420 units wide and 13 units a line, so that it can be read on a telephone, where a unit is a pixel or less.
"""

import html
from collections.abc import Iterable, Iterator

from advisor.records import Phase
from advisor.report.charts import Axis, Bars, Chart, Plot, StackedBars, Tone

WIDTH, _HEIGHT = 420.0, 250.0
# About what a character of the sans-serif face is wide, at 12 units high.
_CHARACTER = 6.6
_LEFT, _BOTTOM, _TOP, _RIGHT = 46.0, 34.0, 18.0, 8.0

STYLE = """
figure { margin: 1.25rem 0; max-width: 40rem; font-size: .88rem; }
figure svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
figcaption, .row span, .ticks { color: var(--dim); } .legend { margin: .2rem 0; }
svg text { fill: var(--text); } svg .dim { fill: var(--dim); } svg .grid { stroke: var(--line); }
svg path, svg polyline { fill: none; stroke-width: 1.5; } svg .line { stroke: var(--tone); }
figure .baseline { --tone: var(--dim); } figure .stack { --tone: var(--mark); } figure .front { --tone: #2f7fd1; }
figure .chosen { --tone: #c4459a; } figure .faster { --tone: var(--mark); } figure .slower { --tone: #d0553f; }
figure .other { --tone: var(--dim); } figure .limit { --tone: #a8780b; }
.p0 { --tone: #1d6fb8; } .p1 { --tone: #9a4fb0; } .p2 { --tone: #16806b; } .p3 { --tone: #b3541e; }
.p4 { --tone: #6b6f1d; } .p5 { --tone: #a83a5b; } .p6 { --tone: #5d6470; } .p7 { --tone: #4d56b8; }
.p8 { --tone: #7a5a2f; } .sign { fill: var(--tone); color: var(--tone); font-weight: 700; }
.row { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; }
.track, .ticks { position: relative; flex-basis: 100%; height: .6rem; } .ticks { height: 1.4rem; }
.track i { position: absolute; height: 100%; background: var(--tone); }
.ticks span { position: absolute; transform: translateX(-50%); }
.stacked { display: flex; height: 1.4rem; } .stacked i { overflow: hidden; text-align: center; min-width: 1px; }
.on { background: var(--tone); color: #fff; font-style: normal; padding: 0 .25em; } .stacked .on { padding: 0; }
"""


def figure(chart: Chart) -> str:
    """A chart with its title, its legend and a sentence that says what it shows."""
    title, words = html.escape(chart.title), html.escape(chart.words)
    match chart:
        case Plot():
            head = f'<svg viewBox="0 0 {WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{title}: {words}">'
            parts = [head, *_plot(chart), "</svg>", _legend(chart.legend)]
        case Bars():
            parts = list(_bars(chart))
        case StackedBars():
            parts = list(_stacked_bars(chart))
    body = "\n".join(parts)
    return f"<figure>\n<h3>{title}</h3>\n{body}\n<figcaption>{words}</figcaption>\n</figure>"


def _legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Signs, in the colours of their classes, with their meaning."""
    signs = ((f'<span class="sign {kind}">{html.escape(sign)}</span>', told) for sign, kind, told in entries)
    return f'<p class="legend">{" · ".join(f"{sign} {html.escape(told)}" for sign, told in signs)}</p>'


# --- marks and lines ----------------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{styled}>{html.escape(text)}</text>'


def _plot(plot: Plot) -> Iterator[str]:
    width, height, floor = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM

    def spot(x: float, y: float) -> tuple[float, float]:
        return _LEFT + plot.x.place(x) * width, floor - plot.y.place(y) * height

    for value, name in _apart(plot.x, width):
        x, _ = spot(value, plot.y.low)
        yield f'<path d="M{x:.1f} {floor}v-{height}" class="grid"/>'
        yield _text(min(x, WIDTH - len(name) * _CHARACTER / 2), floor + 13, name, "dim", "middle")
    for value, name in plot.y.ticks:
        _, y = spot(plot.x.low, value)
        yield f'<path d="M{_LEFT} {y:.1f}h{width}" class="grid"/>'
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


def _apart(axis: Axis, width: float) -> Iterator[tuple[float, str]]:
    """The ticks of an axis whose names leave each other room."""
    end = -1e9
    for value, name in axis.ticks:
        half = len(name) * _CHARACTER / 2
        if axis.place(value) * width - half > end + _CHARACTER:
            end = axis.place(value) * width + half
            yield value, name


# --- bars ---------------------------------------------------------------------------------------------------------


def _bars(chart: Bars) -> Iterator[str]:
    """The name and the figures in a line, the bar under it: any name has room."""
    for bar in chart.bars:
        low, high = sorted(100 * chart.axis.place(end) for end in (bar.start, bar.end))
        told = html.escape(" · ".join((bar.text, *bar.details)))
        width = "2px" if bar.is_mark else f"max(2px, {high - low:.1f}%)"
        area = f'<div class="track"><i class="{bar.tone}" style="left:{low:.1f}%;width:{width}"></i></div>'
        yield f'<div class="row"><b>{html.escape(bar.name)}</b><span>{told}</span>{area}</div>'
    apart = ((100 * chart.axis.place(value), name) for value, name in _apart(chart.axis, WIDTH))
    ticks = (f'<span style="left:{place:.1f}%">{name}</span>' for place, name in apart)
    yield f'<div class="ticks">{"".join(ticks)}</div>'


def _stacked_bars(chart: StackedBars) -> Iterator[str]:
    """Each bar has a scale of its own: shares are compared, the times stand in the legend."""
    for bar in chart.bars:
        parts = [(part, _phase(part.name), html.escape(part.initial)) for part in bar.parts]
        drawn = (f'<i class="on {kind}" style="flex:{part.size:.4g}">{sign}</i>' for part, kind, sign in parts)
        yield f"<b>{html.escape(bar.name)}</b> {html.escape(bar.text)}"
        yield f'<div class="stacked">{"".join(drawn)}</div>'
        yield _legend((part.initial, kind, f"{part.name} {part.text}") for part, kind, _ in parts)


def _phase(name: str) -> str:
    """The class of a phase's colour: the same in every bar."""
    known = [phase.value.replace("_", " ") for phase in Phase]
    return f"p{known.index(name) if name in known else len(known)}"
