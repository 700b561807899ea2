"""Labelled facts as lines with a hanging indent."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from advisor.tui.text import LABEL

Fact = tuple[str, "Content | str"]


def fact_lines(facts: Iterable[Fact], width: int, label_width: int = 10, label_style: str = LABEL) -> list[Content]:
    """Facts as lines of this width. A plain string is taken literally."""
    room = max(8, width - label_width)
    lines: list[Content] = []
    for label, value in facts:
        head = Content.styled(label.ljust(label_width), label_style)
        for part in (Content(value) if isinstance(value, str) else value).wrap(room) or [Content("")]:
            lines.append(head + part)
            head = Content(" " * label_width)
    return lines
