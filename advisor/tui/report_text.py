"""Sections of the report in the app's colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from textual.color import Color
from textual.content import Content

from advisor.report.document import Block, Listing, Section
from advisor.report.terminal import body_of, lines_of

_COLOURS = {"good": "success", "bad": "error", "warning": "warning", "name": "secondary"}


def sections_text(sections: Iterable[Section], width: int, theme: Mapping[str, str]) -> Content:
    """Sections under one another in lines of a width; ``theme`` are the app's colours."""
    parts: list[Content] = []
    for section in sections:
        lines = [Content.styled(section.title, "bold $accent")] if section.title else []
        lines += [_block_text(block, width, theme, warns=section.warns) for block in section.blocks]
        parts.append(Content("\n").join(lines))
    return Content("\n\n").join(parts)


def _block_text(block: Block, width: int, theme: Mapping[str, str], *, warns: bool) -> Content:
    if isinstance(block, Listing):
        lines = highlighted(block.text.rstrip("\n"), block.language or "text").wrap(max(1, width - 2))
        padded = ((Content(" ") + line.pad_right(width)).truncate(width) for line in lines)
        return Content("\n").join(line.stylize_before("on $surface") for line in padded)
    quiet = Color.parse(theme["background"]).blend(Color.parse(theme["foreground"]), 0.6).hex6
    colours = {name: Color.parse(theme[colour]).hex6 for name, colour in _COLOURS.items()} | {"quiet": quiet}
    return Content.from_rich_text(lines_of(body_of([block], warns=warns), width, colours))


@lru_cache(maxsize=64)
def highlighted(code: str, language: str) -> Content:
    """A text in the colours of its language."""
    from textual.highlight import highlight

    return highlight(code, language=language)
