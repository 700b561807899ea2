"""Texts that are drawn again only when they changed: each update of a text lays the whole screen out again."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static


def look_same(one: object, other: object) -> bool:
    """Whether two texts, or pairs of them, look the same on screen. ``==`` ignores the colours of a Content."""
    if isinstance(one, Content) and isinstance(other, Content):
        return one.is_same(other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(look_same, one, other))
    return type(one) is type(other) and one == other


def show_text(widget: Static, text: Content | str, *, layout: bool = True) -> None:
    """Have a widget show a text. Without ``layout`` its size stays: where that does not depend on the text."""
    before = widget.content
    if not look_same(before, text):
        width = widget.content_size.width
        widget.update(text, layout=layout and not (width and _lines(before, width) == _lines(text, width)))


def _lines(text: object, width: int) -> tuple[int, int]:
    """The lines of a text, as it is and wrapped to a width."""
    content = text if isinstance(text, Content) else Content(str(text))
    return content.plain.count("\n"), len(content.wrap(width))


def show_titles(panel: Widget, title: Content | str, subtitle: Content | str = "") -> None:
    """Show titles in a panel's border. They are set only when they change, since setting one paints the panel again."""
    for name, text in (("border_title", title), ("border_subtitle", subtitle)):
        content = Content(text) if isinstance(text, str) else text
        if (getattr(panel, name) or "") != content.markup:
            setattr(panel, name, content)
