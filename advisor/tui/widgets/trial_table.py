"""The table of trials: it says when the person, and not the session, moves its cursor."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable


class TrialTable(DataTable[Text]):
    """Rows with a cursor, which also ``j`` and ``k`` move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("home", "scroll_top", "Top", show=False),
        Binding("end", "scroll_bottom", "Bottom", show=False),
    ]

    class Moved(Message):
        """The person moved the cursor."""

    def action_cursor_down(self) -> None:
        """Go to the next row."""
        super().action_cursor_down()
        self.post_message(self.Moved())

    def action_cursor_up(self) -> None:
        """Go to the row before."""
        super().action_cursor_up()
        self.post_message(self.Moved())

    def action_page_down(self) -> None:
        """Go a screen down."""
        super().action_page_down()
        self.post_message(self.Moved())

    def action_page_up(self) -> None:
        """Go a screen up."""
        super().action_page_up()
        self.post_message(self.Moved())

    def action_scroll_top(self) -> None:
        """Go to the first row."""
        super().action_scroll_top()
        self.post_message(self.Moved())

    def action_scroll_bottom(self) -> None:
        """Go to the last row."""
        super().action_scroll_bottom()
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """A click chooses a row."""
        self.post_message(self.Moved())
