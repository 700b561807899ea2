"""The summary at the end of a session: the brief parts of its report, as text."""

from collections.abc import Iterator
from typing import TextIO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_percent, plain, printable
from advisor.headless.terminal import print_text, table
from advisor.recipe.catalog import Catalog
from advisor.records import Verdict
from advisor.report.document import Block, Bullets, Code, Inline, Listing, Paragraph, Picture, Section, Share, Table
from advisor.report.verdict import verdict
from advisor.report.whole import sections

_STYLES = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.FAILED: "yellow",
    **dict.fromkeys((Verdict.SAME, Verdict.UNCLEAR, Verdict.SKIPPED), "dim"),
}


def print_summary(state: SessionState, file: TextIO, catalog: Catalog) -> None:
    """Print the result, its caveats, the settings, the recommendations, and the evidence."""
    if state.baseline:
        _print("Result", Text(plain(verdict(state))), file)
    for section in sections(state, catalog):
        blocks = section.blocks if section.brief is None else section.brief
        if blocks:
            _print(section.title, _body(section, blocks), file)


def _print(title: str, body: RenderableType, file: TextIO) -> None:
    print_text(Group(Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2), expand=False)), file)


def _body(section: Section, blocks: tuple[Block, ...]) -> Group:
    style = "yellow" if section.warns else ""
    return Group(*(_shown(block, style) for block in blocks))


def _shown(block: Block, style: str) -> RenderableType:
    match block:
        case Paragraph(text):
            return Text(plain(text), style=style)
        case Bullets(items):
            return Text("\n".join(map(plain, items)), style=style)
        case Listing(text):
            return Text(printable(text.rstrip("\n")))
        case Picture(chart):
            return Text(plain(chart.words), style=style)
        case Table():
            return Group(_table(block), *_remarks(block))


def _table(block: Table) -> RichTable:
    columns = [place for place, heading in enumerate(block.headings) if heading in (block.brief or block.headings)]
    headings = [block.headings[place].lower() for place in columns]
    made = table(*headings, right=[heading.lower() for heading in block.numbers])
    made.show_header = any(headings)
    for row in block.rows:
        made.add_row(*(_cell(row[place]) for place in columns))
    return made


def _remarks(block: Table) -> Iterator[Text]:
    """Lines with the remarks on a table's rows, for a column that the table has no room for; equal ones in one line."""
    if not (block.brief and block.remarks):
        return
    name, remark = block.headings.index(block.brief[0]), block.headings.index(block.remarks)
    named: dict[str, list[str]] = {}
    for row in block.rows:
        if said := _cell(row[remark]).plain:
            named.setdefault(said, []).append(_cell(row[name]).plain)
    for said, names in named.items():
        yield Text(f"{', '.join(names)}: {said}", style="dim")


def _cell(inline: Inline) -> Text:
    match inline:
        case Code(text):
            return Text(plain(text))
        case Share(share):
            return Text(format_percent(share, digits=1))
        case _:
            style = next((style for told, style in _STYLES.items() if inline.startswith(told)), "")
            return Text(plain(inline), style=style)
