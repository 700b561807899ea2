"""Bar charts for an HTML page, styled by ``page.html``. All text is escaped; long names fit on a telephone, too."""

import html
from collections.abc import Iterator

from advisor.records import Phase
from advisor.report.document import Bar, Bars, Stacked

_PHASES = [phase.value.replace("_", " ") for phase in Phase]
# The least distance between two ticks with names, as a share of the axis.
_APART = 0.08


def figure(chart: Bars) -> str:
    """A chart with its title and a sentence that says what it shows."""
    body = "\n".join(line for bar in chart.bars for line in (_stacked(bar) if isinstance(bar, Stacked) else _bar(bar)))
    ticks, last = "", -1.0
    for at, name in chart.ticks:
        if at >= last + _APART:
            ticks += f'<span style="left:{100 * at:.1f}%">{name}</span>'
            last = at
    axis = f'\n<div class="ticks">{ticks}</div>' if ticks else ""
    title, words = html.escape(chart.title), html.escape(chart.words)
    return f"<figure>\n<h3>{title}</h3>\n{body}{axis}\n<figcaption>{words}</figcaption>\n</figure>"


def _bar(bar: Bar) -> Iterator[str]:
    """The name and the figures in a line, the bar under it."""
    told = html.escape(" · ".join((bar.text, *bar.details)))
    place = f"left:{100 * bar.start:.1f}%;width:max(2px, {100 * (bar.end - bar.start):.1f}%)"
    area = f'<div class="track"><i class="{bar.tone}" style="{place}"></i></div>'
    yield f'<div class="row"><b>{html.escape(bar.name)}</b><span>{told}</span>{area}</div>'


def _stacked(bar: Stacked) -> Iterator[str]:
    """The bar on a scale of its own, since shares are compared. The times are in the legend."""
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
