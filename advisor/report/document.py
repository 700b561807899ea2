"""A report's building blocks. Whatever is in a block is text; a renderer gives it a form.

Nothing here knows what a session is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """Text in a fixed-width face: a setting, a path."""

    text: str


@dataclass(frozen=True, slots=True)
class Share:
    """A share of 0 to 1, with a bar where bars can be drawn."""

    share: float


Inline = str | Code | Share


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines in a fixed-width face, kept as they are; ``language`` is what they are written in, if in any."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the columns named in ``numbers`` are aligned to the right."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]
    numbers: frozenset[str] = frozenset()


Block = Paragraph | Bullets | Listing | Table


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report: its title, the result in a paragraph, the sections, and the last line."""

    title: str
    summary: str
    sections: tuple[Section, ...]
    footer: str
