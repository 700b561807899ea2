"""The sentence that stands where a list is still empty."""

from __future__ import annotations

from textual.widgets import Static


class Placeholder(Static, can_focus=True):
    """It takes the focus in the place of the list, so that the keys of the view around it work."""
