"""Bars inside an HTML page, in the page's colours. All text is escaped; any name has room, also on a telephone."""

import html
from collections.abc import Iterator

from advisor.records import Phase
from advisor.report.document import Bars, StackedBars

STYLE = """
figure { margin: 1.25rem 0; max-width: 40rem; font-size: .88rem; }
figcaption, .row span, .ticks { color: var(--dim); } .legend { margin: .2rem 0; }
.baseline, .other { --tone: var(--dim); } .stack, .faster { --tone: var(--mark); } .slower { --tone: #d0553f; }
.p0 { --tone: #1d6fb8; } .p1 { --tone: #9a4fb0; } .p2 { --tone: #16806b; } .p3 { --tone: #b3541e; }
.p4 { --tone: #6b6f1d; } .p5 { --tone: #a83a5b; } .p6 { --tone: #5d6470; } .p7 { --tone: #4d56b8; }
.p8 { --tone: #7a5a2f; } .sign { color: var(--tone); font-weight: 700; }
.row { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; }
.track, .ticks { position: relative; flex-basis: 100%; height: .6rem; } .ticks { height: 1.4rem; }
.track i { position: absolute; height: 100%; background: var(--tone); }
.ticks span { position: absolute; transform: translateX(-50%); }
.stacked { display: flex; height: 1.4rem; } .stacked i { overflow: hidden; text-align: center; min-width: 1px; }
.on { background: var(--tone); color: #fff; font-style: normal; padding: 0; }
"""
_PHASES = [phase.value.replace("_", " ") for phase in Phase]
# The least distance between two ticks with names, as a share of the axis.
_APART = 0.08


def figure(chart: Bars | StackedBars) -> str:
    """A chart with its title and a sentence that says what it shows."""
    body = "\n".join(_bars(chart) if isinstance(chart, Bars) else _stacked_bars(chart))
    title, words = html.escape(chart.title), html.escape(chart.words)
    return f"<figure>\n<h3>{title}</h3>\n{body}\n<figcaption>{words}</figcaption>\n</figure>"


def _bars(chart: Bars) -> Iterator[str]:
    """The name and the figures in a line, the bar under it."""
    for bar in chart.bars:
        told = html.escape(" · ".join((bar.text, *bar.details)))
        place = f"left:{100 * bar.start:.1f}%;width:max(2px, {100 * (bar.end - bar.start):.1f}%)"
        area = f'<div class="track"><i class="{bar.tone}" style="{place}"></i></div>'
        yield f'<div class="row"><b>{html.escape(bar.name)}</b><span>{told}</span>{area}</div>'
    if chart.ticks:
        ticks, last = "", -1.0
        for at, name in chart.ticks:
            if at >= last + _APART:
                ticks += f'<span style="left:{100 * at:.1f}%">{name}</span>'
                last = at
        yield f'<div class="ticks">{ticks}</div>'


def _stacked_bars(chart: StackedBars) -> Iterator[str]:
    """Each bar has a scale of its own: shares are compared, the times stand in the legend."""
    for bar in chart.bars:
        # A phase has the same colour in every bar.
        places = [_PHASES.index(part.name) if part.name in _PHASES else len(_PHASES) for part in bar.parts]
        parts = [(part, f"p{at}", html.escape(part.initial)) for part, at in zip(bar.parts, places, strict=True)]
        drawn = (f'<i class="on {kind}" style="flex:{part.size:.4g}">{sign}</i>' for part, kind, sign in parts)
        legend = (
            f'<span class="sign {kind}">{sign}</span> {html.escape(f"{part.name} {part.text}")}'
            for part, kind, sign in parts
        )
        yield f"<b>{html.escape(bar.name)}</b> {html.escape(bar.text)}"
        yield f'<div class="stacked">{"".join(drawn)}</div>'
        yield f'<p class="legend">{" · ".join(legend)}</p>'
