"""The two forms of a report's blocks that are files: Markdown, and one HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from advisor.export import svg
from advisor.figures.formatting import format_percent
from advisor.report.document import Block, Bullets, Code, Document, Inline, Listing, Paragraph, Picture, Share, Table


def markdown(document: Document) -> str:
    """The document as Markdown."""
    lines = [f"# {_markdown(document.title)}", "", _markdown(document.summary)]
    for section in document.sections:
        lines += ["", f"## {section.title}"]
        for block in section.blocks:
            lines += ["", *_markdown_block(block)]
    return "\n".join([*lines, "", document.footer]) + "\n"


def page(document: Document) -> str:
    """The document as one HTML file that needs nothing else, light or dark as the reader's system is."""
    title = html.escape(document.title)
    parts = [f"<h1>{title}</h1>", f'<p class="summary">{html.escape(document.summary)}</p>']
    for section in document.sections:
        blocks = "\n".join(_html_block(block) for block in section.blocks)
        parts.append(f"<section>\n<h2>{html.escape(section.title)}</h2>\n{blocks}\n</section>")
    parts.append(f"<footer>{html.escape(document.footer)}</footer>")
    filled = {"@title@": title, "@body@": "\n".join(parts), "@style@": svg.STYLE}
    return re.sub("@(title|body|style)@", lambda match: filled[match[0]], _PAGE)


# --- Markdown -------------------------------------------------------------------------------------------------


def _markdown_block(block: Block) -> list[str]:
    match block:
        case Paragraph(text):
            return [_markdown(text)]
        case Bullets(items):
            return [f"- {_markdown(item)}" for item in items]
        case Listing(text, language):
            fence = "`" * max(3, 1 + _longest_run(text))
            return [f"{fence}{language}", *text.rstrip("\n").split("\n"), fence]
        case Table():
            return _markdown_table(block)
        case Picture(chart):
            return [f"**{_markdown(chart.title)}.** {_markdown(chart.words)}"]


def _markdown_table(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rules = ["---:" if heading in table.numbers else "---" for heading in table.headings]
    return [row(table.headings), row(rules), *(row([_markdown_inline(cell) for cell in cells]) for cells in table.rows)]


def _markdown_inline(inline: Inline) -> str:
    match inline:
        case Code(text):
            return _markdown_code(text)
        case Share(share):
            return format_percent(share, digits=1)
        case _:
            return _markdown(inline)


def _markdown(text: str) -> str:
    """Text with everything that Markdown or HTML would take for markup escaped, on one line."""
    escaped = re.sub(r"([\\`*\[\]<>|#~&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)


def _markdown_code(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (1 + _longest_run(line))
    space = " " if len(ticks) > 1 else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


# --- HTML -----------------------------------------------------------------------------------------------------


def _html_block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"
        case Listing(text):
            return f"<pre>{html.escape(text)}</pre>"
        case Table():
            return _html_table(block)
        case Picture(chart):
            return svg.figure(chart)


def _html_table(table: Table) -> str:
    kinds = [' class="number"' if heading in table.numbers else "" for heading in table.headings]

    def row(tag: str, cells: Sequence[str]) -> str:
        return (
            "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
        )

    head = [f"<thead>{row('th', table.headings)}</thead>"] if any(table.headings) else []
    body = [row("td", [_html_inline(cell) for cell in cells]) for cells in table.rows]
    return "\n".join(['<div class="wide"><table>', *head, "<tbody>", *body, "</tbody>", "</table></div>"])


def _html_inline(inline: Inline) -> str:
    match inline:
        case Code(text):
            return f"<code>{html.escape(text)}</code>"
        case Share(share):
            width = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
            return f'<span class="bar"><i style="width:{width}"></i></span> {format_percent(share, digits=1)}'
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
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
.summary { font-size: 1.15rem; border-left: .25rem solid var(--mark); padding-left: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
code, pre { font: .88em/1.5 ui-monospace, monospace; background: var(--soft); border-radius: .25rem; }
code { padding: .1rem .3rem; }
pre { padding: .8rem 1rem; overflow-x: auto; }
.bar { display: inline-block; width: 8rem; height: .6rem; background: var(--soft); border-radius: .2rem; }
.bar i { display: block; height: 100%; background: var(--mark); border-radius: .2rem; }
footer { margin-top: 3rem; color: var(--dim); font-size: .88rem; }
@style@</style>
</head>
<body>
@body@
</body>
</html>
"""
