"""Text on a terminal or in a file: never markup, control characters shown, tables without frames."""

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from advisor.figures.formatting import plain, printable

PLAIN_WIDTH = 100


def print_text(text: RenderableType, file: TextIO) -> None:
    """Print text as it is, never as markup; where there is no terminal, plain and 100 columns wide."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
    if file.isatty():
        console.print(_Shown(text))
        return
    with console.capture() as capture:
        console.print(_Shown(text))
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


class _Shown:
    """A text whose control characters are shown; rich's own, for colours, are not in the text."""

    def __init__(self, text: RenderableType) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._text, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table without frames; the columns named in ``right`` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=column in right, overflow="fold"
        )
    return made


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and texts, without a heading."""
    made = table("", "")
    made.show_header = False
    for name, text in rows:
        made.add_row(Text(name, style="bold"), Text(plain(text)))
    return made
