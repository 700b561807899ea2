"""A list to choose from, and the palette.

Textual 8.2 ends with a KeyError when a page is turned before the list is laid out: by a key held down, say.
"""

from __future__ import annotations

from contextlib import suppress

from textual.binding import Binding
from textual.command import CommandPalette
from textual.widgets import OptionList


class ChoiceList(OptionList):
    """Textual's list, walked by ``j`` and ``k`` too."""

    BINDINGS = [Binding("j", "cursor_down", "Down", show=False), Binding("k", "cursor_up", "Up", show=False)]

    def action_page_down(self) -> None:
        with suppress(KeyError):
            super().action_page_down()  # type: ignore[no-untyped-call]

    def action_page_up(self) -> None:
        with suppress(KeyError):
            super().action_page_up()  # type: ignore[no-untyped-call]


class Palette(CommandPalette):
    """Textual's palette."""

    def _action_command_list(self, action: str) -> None:
        with suppress(KeyError):
            super()._action_command_list(action)
