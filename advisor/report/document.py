"""A report's building blocks, of whatever it is. All that is in a block is text; a renderer gives it a form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from advisor.figures.formatting import MISSING


@dataclass(frozen=True, slots=True)
class Code:
    """Text in a fixed-width face: a setting, a path."""

    text: str


Inline = str | Code


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines in a fixed-width face, kept as they are; ``language`` is their language, if known."""

    text: str
    language: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]
    numbers: frozenset[str] = frozenset()  # the columns that are aligned to the right
    brief: tuple[str, ...] = ()  # the columns that are shown where there is little room; empty for all
    remarks: str = ""  # the column whose cells stand under the table there, each after the first cell of its row

    def __bool__(self) -> bool:
        return bool(self.rows)


def pairs(rows: Iterable[tuple[str, Inline]]) -> Table:
    """A table of names and their values, without headings."""
    return Table(("", ""), tuple(rows))


def table_of(rows: Sequence[Mapping[str, Inline]], words: Iterable[str] = (), **more: Any) -> Table:
    """A table of cells by their headings, without the columns that are empty in all rows.

    The columns named in ``words`` hold text, all others numbers. ``more`` are further fields of the table.
    """
    headings = tuple(name for name in (rows[0] if rows else ()) if any(row[name] not in ("", MISSING) for row in rows))
    cells = tuple(tuple(row[name] for name in headings) for row in rows)
    return Table(headings, cells, frozenset(headings).difference(words), **more)


def by_heading(headings: Iterable[str], *rows: Iterable[Inline]) -> list[dict[str, Inline]]:
    """The cells of rows by their headings."""
    return [dict(zip(headings, row, strict=True)) for row in rows]


def grouped(told: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Names with what is told of each, by that: each text once, behind all names that it is told of."""
    names: dict[str, list[str]] = {}
    for name, text in told:
        names.setdefault(text, []).append(name)
    return [(", ".join(of), text) for text, of in names.items() if text]


Tone = Literal["baseline", "stack", "faster", "slower", "other"]  # the role of a bar, which has a colour


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar between two places of 0 to 1. ``text`` is its figure; ``details`` follow it. The point is in the bar."""

    name: str
    start: float
    end: float
    text: str
    tone: Tone
    details: tuple[str, ...] = ()
    point: float | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stacked bar; where there is no room for its name, the first letter stands in it."""

    name: str
    size: float
    text: str


@dataclass(frozen=True, slots=True)
class Stacked:
    """A bar of parts, on a scale of its own."""

    name: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars under one another; ``words`` say what they show. Only the stacked ones have their own scales."""

    title: str
    words: str
    bars: tuple[Bar | Stacked, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    line: float | None = None  # the place of a line through all bars


Block = str | tuple[str, ...] | Listing | Table | Bars  # a text is a paragraph, several are a list


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]
    whole: bool = False  # only the whole report has it, not a summary
    warns: bool = False  # a reader has to know it before believing the rest
    folded: bool = False  # a page shows it on a click


def section(title: str, *blocks: Block | None, **more: bool) -> Section:
    """A section of those blocks that have something to show. ``more`` are further fields of it."""
    return Section(title, tuple(block for block in blocks if block), **more)


def shown(sections: Iterable[Section | None]) -> tuple[Section, ...]:
    """The sections that have something to show."""
    return tuple(each for each in sections if each and each.blocks)


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report: its title, the result in a paragraph, the sections, and the last line."""

    title: str
    summary: str
    sections: tuple[Section, ...]
    footer: str
