"""The report as one HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from advisor.export.format import File, Format, Found, Offer
from advisor.figures.formatting import printable
from advisor.records import Phase
from advisor.report import document as doc


class HtmlReport(Format):
    """The report for people, as one HTML file that needs nothing else."""

    option = "--report"
    suffixes = (".html",)
    order = 50
    offered = Offer("html", "Report (HTML)", "report.html", "html", "The same as a page of its own")

    def files(self, found: Found, path: str) -> Iterable[File]:
        yield File("Report", path, lambda: html_page(found.report(drawn=True)))


_LONGEST_LISTING = 30  # lines; a longer one opens on a click
_PHASES = [phase.value.replace("_", " ") for phase in Phase]
# The least distance between two ticks with names, as a share of the axis.
_APART = 0.08


def html_page(document: doc.Document) -> str:
    """A report as a page, light or dark as the reader's system."""
    title = html.escape(document.title)
    parts = [f"<h1>{title}</h1>", f'<p class="summary">{html.escape(document.summary)}</p>']
    titles = [html.escape(section.title) for section in document.sections]
    links = (f'<a href="#s{place}">{name}</a>' for place, name in enumerate(titles))
    parts.append(f"<nav>{' · '.join(links)}</nav>" if titles else "")
    for place, section in enumerate(document.sections):
        body = "\n".join(_html_block(block) for block in section.blocks)
        body = f"<details><summary>Show</summary>\n{body}\n</details>" if section.folded else body
        pictures = all(isinstance(block, doc.Bars) for block in section.blocks)
        kind = ' class="pictures"' if pictures else ""
        parts.append(f'<section id="s{place}">\n<h2>{titles[place]}</h2>\n<div{kind}>\n{body}\n</div>\n</section>')
    parts.append(f"<footer>{html.escape(document.footer)}</footer>")
    filled = {"@title@": title, "@body@": "\n".join(parts)}
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return printable(re.sub("@(title|body)@", lambda match: filled[match[0]], page))


def _html_block(block: doc.Block) -> str:
    match block:
        case doc.Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case doc.Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"
        case doc.Listing(text):
            listing, lines = f"<pre>{html.escape(text)}</pre>", len(text.splitlines())
            folded = f"<details><summary>{lines} lines</summary>{listing}</details>"
            return folded if lines > _LONGEST_LISTING else listing
        case doc.Table():
            return _html_table(block)
        case doc.Bars():
            return figure(block)


def _html_table(table: doc.Table) -> str:
    """A table; each cell knows its heading, which stands before it where a narrow page shows rows as cards."""
    kinds = [' class="number"' if heading in table.numbers else "" for heading in table.headings]
    labels = [f' data-label="{html.escape(heading)}"' if heading else "" for heading in table.headings]
    head = "".join(f"<th{kind}>{html.escape(name)}</th>" for kind, name in zip(kinds, table.headings, strict=True))
    rows = []
    for cells in table.rows:
        drawn = zip(kinds, labels, map(_html_inline, cells), strict=True)
        rows.append("<tr>" + "".join(f"<td{kind}{label}>{cell}</td>" for kind, label, cell in drawn) + "</tr>")
    headed = [f"<thead><tr>{head}</tr></thead>"] if any(table.headings) else []
    return "\n".join(['<div class="wide"><table>', *headed, "<tbody>", *rows, "</tbody>", "</table></div>"])


def _html_inline(inline: doc.Inline) -> str:
    return f"<code>{html.escape(inline.text)}</code>" if isinstance(inline, doc.Code) else html.escape(inline)


# --- bar charts, styled by page.html ------------------------------------------------------------------------------


def figure(chart: doc.Bars) -> str:
    """A chart with its title and a sentence that says what it shows."""
    body = "\n".join(
        line for bar in chart.bars for line in (_stacked(bar) if isinstance(bar, doc.Stacked) else _bar(bar))
    )
    ticks, last = "", -1.0
    for at, name in chart.ticks:
        if at >= last + _APART:
            ticks += f'<span style="left:{100 * at:.1f}%">{name}</span>'
            last = at
    axis = f'\n<div class="ticks">{ticks}</div>' if ticks else ""
    title, words = html.escape(chart.title), html.escape(chart.words)
    return f"<figure>\n<h3>{title}</h3>\n{body}{axis}\n<figcaption>{words}</figcaption>\n</figure>"


def _bar(bar: doc.Bar) -> Iterator[str]:
    """The name and the figures in a line, the bar under it."""
    told = html.escape(" · ".join((bar.text, *bar.details)))
    place = f"left:{100 * bar.start:.1f}%;width:max(2px, {100 * (bar.end - bar.start):.1f}%)"
    area = f'<div class="track"><i class="{bar.tone}" style="{place}"></i></div>'
    yield f'<div class="row"><b>{html.escape(bar.name)}</b><span>{told}</span>{area}</div>'


def _stacked(bar: doc.Stacked) -> Iterator[str]:
    """The bar on a scale of its own, since shares are compared. The times are in the legend."""
    # A phase has the same colour in every bar.
    places = [_PHASES.index(part.name) if part.name in _PHASES else len(_PHASES) for part in bar.parts]
    parts = [(part, f"p{at}", html.escape(part.name[:1].upper())) for part, at in zip(bar.parts, places, strict=True)]
    drawn = (f'<i class="on {kind}" style="flex:{part.size:.4g}">{sign}</i>' for part, kind, sign in parts)
    legend = (
        f'<span class="sign {kind}">{sign}</span> {html.escape(f"{part.name} {part.text}")}'
        for part, kind, sign in parts
    )
    yield f"<b>{html.escape(bar.name)}</b> {html.escape(bar.text)}"
    yield f'<div class="stacked">{"".join(drawn)}</div>'
    yield f'<p class="legend">{" · ".join(legend)}</p>'
