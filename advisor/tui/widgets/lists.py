"""A list to choose from; the palette, a list as well.

Textual 8.2 ends with a KeyError when a page is turned before the list is laid out: by a key held down, say.
"""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette
from textual.widgets import OptionList


class ChoiceList(OptionList):
    """Textual's list, walked by ``j`` and ``k`` too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("pageup", "turn('page_up')", "Page up", show=False),
        Binding("pagedown", "turn('page_down')", "Page down", show=False),
    ]

    def action_turn(self, action: str) -> None:
        turn(self, action)


class Palette(CommandPalette):
    """Textual's palette."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "turn('page_up')", show=False),
        Binding("pagedown", "turn('page_down')", show=False),
    ]

    def action_turn(self, action: str) -> None:
        turn(self.query_one(CommandList), action)


def turn(options: OptionList, action: str) -> None:
    """Turn a page of a list that is laid out."""
    with suppress(KeyError):
        getattr(options, f"action_{action}")()
