"""Reports of sessions as text, and parts of one in Markdown."""

import re

from advisor.export.formats.html import html_page
from advisor.export.formats.markdown import markdown_text
from advisor.report.document import Document, Section
from advisor.report.whole import document_of


def html_report(state, request, catalog) -> str:
    return html_page(document_of(state, request, catalog, drawn=True))


def html_block(block) -> str:
    """A block as the page has it."""
    page = html_page(Document("", "", (Section("", (block,)),), ""))
    return re.search(r"<div[^>]*>\n(.*)</div>\n</section>", page, re.S)[1].strip()


def markdown_report(state, request, catalog) -> str:
    return markdown_text(document_of(state, request, catalog))


def body_of(text: str, section: str) -> str:
    return text.split(f"\n## {section}\n")[1].partition("\n## ")[0]


def table_rows(text: str, section: str) -> list[list[str]]:
    rows = [line for line in body_of(text, section).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
