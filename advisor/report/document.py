"""The building blocks of any report. A block holds only text; a renderer gives it a form."""

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
    brief: tuple[str, ...] = ()  # the columns that are shown if there is little room; empty for all columns
    remarks: str = ""  # the column whose cells move under the table then, each after the first cell of its row

    def __bool__(self) -> bool:
        return bool(self.rows)


def pairs(rows: Iterable[tuple[str, Inline]]) -> Table:
    """A table of names and their values, without headings."""
    return Table(("", ""), tuple(rows))


def table_of(rows: Sequence[Mapping[str, Inline]], words: Iterable[str] = (), **more: Any) -> Table:
    """Return a table from cells by heading, without the columns that are empty in all rows.

    The columns named in ``words`` hold text, all others numbers. ``more`` are further fields of the table.
    """
    headings = tuple(name for name in (rows[0] if rows else ()) if any(row[name] not in ("", MISSING) for row in rows))
    cells = tuple(tuple(row[name] for name in headings) for row in rows)
    return Table(headings, cells, frozenset(headings).difference(words), **more)


def by_heading(headings: Iterable[str], *rows: Iterable[Inline]) -> list[dict[str, Inline]]:
    """The cells of rows by their headings."""
    return [dict(zip(headings, row, strict=True)) for row in rows]


def grouped(told: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Group names by their texts: each text appears once, after all the names that have it."""
    names: dict[str, list[str]] = {}
    for name, text in told:
        names.setdefault(text, []).append(name)
    return [(", ".join(of), text) for text, of in names.items() if text]


Tone = Literal["baseline", "stack", "faster", "slower", "other"]  # the role of a bar; it decides the colour


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from ``start`` to ``end``, both from 0 to 1, with a ``point`` in between. ``text`` is its figure."""

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
    """A part of a stacked bar. If its name does not fit, only the first letter is drawn."""

    name: str
    size: float
    text: str


@dataclass(frozen=True, slots=True)
class Stacked:
    """A bar of several parts, with its own scale."""

    name: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars under one another; ``words`` describe them. Stacked bars have their own scales, the others share one."""

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
    whole: bool = False  # this section is in the whole report, but not in a summary
    warns: bool = False  # a reader has to know this section before believing the others
    folded: bool = False  # a web page shows this section after a click


def section(title: str, *blocks: Block | None, **more: bool) -> Section:
    """Return a section without the empty blocks. ``more`` are further fields of the section."""
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
