"""A line of text with parts that can be clicked, each with a tooltip.

Textual's own tabs and footer are a dozen widgets each: they took a fifth of the time of a switch between views.
"""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.style import Style
from textual.widget import Widget


class LinksLine(Widget):
    """A line of one widget; subclasses render it with :func:`link`."""

    ALLOW_SELECT = False
    auto_links = False  # they have colours of their own

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self.tooltip = event.style.meta.get("about")


def link(text: Content, action: str, about: str) -> Content:
    """A text that carries out an action on a click; ``about`` is its tooltip."""
    return text.stylize(Style.from_meta({"@click": action, "about": about}))
