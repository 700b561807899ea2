"""The report as Markdown."""

import re
from collections.abc import Iterable

from advisor.export.format import File, Format, Found, Offer
from advisor.figures.formatting import printable
from advisor.report import document as doc


class MarkdownReport(Format):
    """The report for people, as Markdown."""

    option = "--report"
    suffixes = (".md",)
    order = 40
    offered = Offer("markdown", "Report (Markdown)", "report.md", "markdown", "Everything measured, to read")

    def files(self, found: Found, path: str) -> Iterable[File]:
        yield File("Report", path, lambda: markdown_text(found.report()))


def markdown_text(document: doc.Document) -> str:
    """A report as Markdown."""
    lines = [f"# {_markdown(document.title)}", "", _markdown(document.summary)]
    for section in document.sections:
        lines += ["", f"## {section.title}"]
        for block in section.blocks:
            lines += ["", *_markdown_block(block)]
    return printable("\n".join([*lines, "", document.footer]) + "\n")


def _markdown_block(block: doc.Block) -> list[str]:
    match block:
        case str():
            return [_markdown(block)]
        case tuple():
            return [f"- {_markdown(item)}" for item in block]
        case doc.Listing(text, language):
            fence = "`" * max(3, 1 + _longest_run(text))
            return [f"{fence}{language}", *text.rstrip("\n").split("\n"), fence]
        case doc.Table():
            rules = ["---:" if heading in block.numbers else "---" for heading in block.headings]
            rows = ([_markdown_inline(cell) for cell in cells] for cells in block.rows)
            return [f"| {' | '.join(row)} |" for row in (block.headings, rules, *rows)]
        case doc.Bars():
            return []  # Markdown has no pictures


def _markdown_inline(inline: doc.Inline) -> str:
    if not isinstance(inline, doc.Code):
        return _markdown(inline)
    line = " ".join(inline.text.split()).replace("|", "\\|")
    ticks = "`" * (1 + _longest_run(line))
    space = " " if len(ticks) > 1 else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _markdown(text: str) -> str:
    """The text on one line, with all markup of Markdown and HTML escaped."""
    escaped = re.sub(r"([\\`*\[\]<>|#~&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
