"""A list to choose from, and the sentence that stands in its place while it is empty."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static


class ChoiceList(OptionList):
    """Textual's list, walked by ``j`` and ``k`` too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
    ]


class Placeholder(Static, can_focus=True):
    """It takes the focus in the place of the list, so that the keys of the view around it work."""
