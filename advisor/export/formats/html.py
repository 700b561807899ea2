"""The report as one HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from advisor.export import charts
from advisor.export.format import File, Format, Found, Offer
from advisor.figures.formatting import printable
from advisor.report.document import (
    Bars,
    Block,
    Bullets,
    Code,
    Document,
    Inline,
    Listing,
    Paragraph,
    Share,
    StackedBars,
    Table,
)

if TYPE_CHECKING:
    from advisor.experiment.request import Request
    from advisor.experiment.state import SessionState
    from advisor.recipe.catalog import Catalog


class HtmlReport(Format):
    """The report for people, as one HTML file that needs nothing else."""

    option = "--report"
    brief = ".html"
    suffixes = (".html",)
    order = 50
    offered = Offer("html", "Report (HTML)", "report.html", "html", "The same as a page of its own")

    def files(self, found: Found, path: str) -> Iterable[File]:
        yield File("Report", path, lambda: html_report(found.state, found.request, found.catalog, found.change))


_LONGEST_LISTING = 30  # lines


def html_report(state: SessionState, request: Request, catalog: Catalog, change: str = "") -> str:
    """The report of a session as a page, light or dark as the reader's system is. The session may still run."""
    from advisor.report.whole import document_of

    return printable(_page(document_of(state, request, catalog, change, drawn=True)))


def _page(document: Document) -> str:
    title = html.escape(document.title)
    parts = [f"<h1>{title}</h1>", f'<p class="summary">{html.escape(document.summary)}</p>']
    titles = [html.escape(section.title) for section in document.sections]
    links = (f'<a href="#s{place}">{name}</a>' for place, name in enumerate(titles))
    parts.append(f"<nav>{' · '.join(links)}</nav>" if titles else "")
    for place, section in enumerate(document.sections):
        body = "\n".join(_html_block(block) for block in section.blocks)
        body = f"<details><summary>Show</summary>\n{body}\n</details>" if section.folded else body
        kind = ' class="pictures"' if all(isinstance(block, Bars | StackedBars) for block in section.blocks) else ""
        parts.append(f'<section id="s{place}">\n<h2>{titles[place]}</h2>\n<div{kind}>\n{body}\n</div>\n</section>')
    parts.append(f"<footer>{html.escape(document.footer)}</footer>")
    filled = {"@title@": title, "@body@": "\n".join(parts), "@style@": charts.STYLE}
    return re.sub("@(title|body|style)@", lambda match: filled[match[0]], _PAGE)


def _html_block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"
        case Listing(text):
            return _html_listing(text)
        case Table():
            return _html_table(block)
        case Bars() | StackedBars():
            return charts.figure(block)


def _html_listing(text: str) -> str:
    """Code or a chart as it is; what is longer than a screen opens on a click."""
    listing, lines = f"<pre>{html.escape(text)}</pre>", len(text.splitlines())
    return listing if lines <= _LONGEST_LISTING else f"<details><summary>{lines} lines</summary>{listing}</details>"


def _html_table(table: Table) -> str:
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


def _html_inline(inline: Inline) -> str:
    match inline:
        case Code(text):
            return f"<code>{html.escape(text)}</code>"
        case Share(share, text):
            width = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
            return f'<span class="bar"><i style="width:{width}"></i></span> {html.escape(text)}'
        case _:
            return html.escape(inline)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>@title@</title>
<style>
:root { --text: #1c2024; --dim: #60646c; --line: #d9dde2; --back: #fcfcfd; --soft: #f0f2f5; --mark: #0b7a5c; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --dim: #9ba1a9; --line: #363a40; --back: #15181b; --soft: #1f2328; --mark: #3fc79a; }
}
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; color: var(--text); background: var(--back);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; } h3 { font-size: 1rem; margin: 0 0 .4rem; }
nav { margin: 1rem 0; font-size: .92rem; } nav a { color: var(--mark); }
.summary { font-size: 1.15rem; border-left: .25rem solid var(--mark); padding-left: .9rem; }
.wide, pre { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
td:last-child:not(.number, :first-child) { min-width: 12rem; }
@media (max-width: 599px) {
  table, tbody, tr, td { display: block; }
  thead, td:empty { display: none; }
  tr { border-bottom: 1px solid var(--line); padding: .4rem 0; }
  td, td.number { border: 0; padding: .1rem 0; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  td[data-label]::before { content: attr(data-label) ": "; color: var(--dim); }
}
@media (min-width: 1101px) {
  .pictures { columns: 2; column-gap: 2.5rem; } .pictures figure { break-inside: avoid; margin-top: 0; }
}
code, pre { font: .88em/1.5 ui-monospace, monospace; background: var(--soft); border-radius: .25rem; }
code { padding: .1rem .3rem; } summary { color: var(--dim); cursor: pointer; }
pre { padding: .8rem 1rem; }
.bar { display: inline-block; width: min(8rem, 18vw); height: .6rem; background: var(--soft); border-radius: .2rem; }
.bar i { display: block; height: 100%; background: var(--mark); }
footer { margin-top: 3rem; color: var(--dim); font-size: .88rem; }
@style@</style>
</head>
<body>
@body@
</body>
</html>
"""
