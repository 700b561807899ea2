"""Draws a report's blocks with rich, for the terminal and the app. Texts are never markup or control characters."""

from collections.abc import Iterable, Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text
from rich.theme import Theme

from advisor.figures.formatting import plain, printable
from advisor.records import Verdict
from advisor.report import document as doc

PLAIN_WIDTH = 100
COLOURS = {"good": "green", "bad": "red", "warning": "yellow", "name": "bold", "quiet": "dim"}  # for the terminal only
_STYLES = {
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.FAILED: "warning",
    **dict.fromkeys((Verdict.SAME, Verdict.UNCLEAR, Verdict.SKIPPED), "quiet"),
}


def print_text(text: RenderableType, file: TextIO) -> None:
    """Print text literally, never as markup. If the file is no terminal, print without colours, 100 columns wide."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, markup=False, emoji=False, highlight=False, theme=Theme(COLOURS))
    with console.capture() as capture:
        console.print(_Shown(text))
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def print_sections(sections: Iterable[doc.Section], file: TextIO) -> None:
    """Print the sections of a summary, each under its title."""
    for section in sections:
        if not section.whole:
            body = Padding(body_of(section.blocks, warns=section.warns), (0, 0, 0, 2), expand=False)
            print_text(Group(Text(f"\n{section.title}", style="bold"), body), file)


class _Shown:
    """A text whose control characters are shown as text. Rich adds its control characters for colours later."""

    def __init__(self, text: RenderableType) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._text, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


# --- blocks -------------------------------------------------------------------------------------------------------


def body_of(blocks: Iterable[doc.Block], *, warns: bool = False) -> Group:
    """Draw blocks under one another, with ``warns`` in the colour of warnings."""
    return Group(*(_shown(block, "warning" if warns else "") for block in blocks))


def _shown(block: doc.Block, style: str) -> RenderableType:
    match block:
        case str():
            return Text(plain(block), style=style)
        case tuple():
            return Text("\n".join(map(plain, block)), style=style)
        case doc.Listing(text):
            return Text(printable(text.rstrip("\n")))
        case doc.Bars():
            return Text(plain(block.words), style=style)
        case doc.Table():
            return Group(_drawn(block), *_remarks(block))


def _drawn(block: doc.Table) -> RichTable:
    columns = [place for place, heading in enumerate(block.headings) if heading in (block.brief or block.headings)]
    headings = [block.headings[place].lower() for place in columns]
    made = table(*headings, right=[heading.lower() for heading in block.numbers])
    made.show_header = any(headings)
    if not any(headings):
        made.columns[0].style, made.columns[0].no_wrap = "name", True
    for row in block.rows:
        made.add_row(*(_cell(row[place]) for place in columns))
    return made


def _remarks(block: doc.Table) -> Iterator[Text]:
    """The remarks on a table's rows, as lines under it; equal remarks share a line."""
    if not block.brief or block.remarks not in block.headings:
        return
    name, remark = block.headings.index(block.brief[0]), block.headings.index(block.remarks)
    for names, said in doc.grouped((_cell(row[name]).plain, _cell(row[remark]).plain) for row in block.rows):
        yield Text(f"{names}: {said}", style="quiet")


def _cell(inline: doc.Inline) -> Text:
    if isinstance(inline, doc.Code):
        return Text(plain(inline.text))
    style = next((style for told, style in _STYLES.items() if inline.startswith(told)), "")
    return Text(plain(inline), style=style)


def table(*columns: str, right: Iterable[str] = ()) -> RichTable:
    """An empty table without frames; the columns named in ``right`` hold numbers."""
    made = RichTable(box=None, pad_edge=False, header_style="quiet", padding=(0, 2, 0, 0))
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return made
