"""Sections and tables of the report in the app's colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import RenderableType
from textual.color import Color
from textual.content import Content

from advisor.report.document import Section
from advisor.report.terminal import body_of, lines_of


def sections_text(sections: Iterable[Section], width: int, theme: Mapping[str, str], *, titled: bool = True) -> Content:
    """Sections under one another in lines of a width; ``theme`` are the app's colours."""
    parts = []
    for section in sections:
        body = in_colours(body_of(section.blocks, warns=section.warns), width, theme)
        parts.append(Content.styled(section.title, "bold $accent") + "\n" + body if titled else body)
    return Content("\n\n").join(parts)


def in_colours(text: RenderableType, width: int, theme: Mapping[str, str]) -> Content:
    """A text that rich draws, in lines of this width."""

    def hex_of(name: str) -> str:
        return Color.parse(theme[name]).hex6

    quiet = Color.parse(theme["background"]).blend(Color.parse(theme["foreground"]), 0.6).hex6
    names = {"good": "success", "bad": "error", "warning": "warning", "name": "secondary"}
    colours = {name: hex_of(colour) for name, colour in names.items()} | {"quiet": quiet}
    return Content.from_rich_text(lines_of(text, width, colours))
