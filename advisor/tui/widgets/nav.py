"""The bar of views at the top: number keys and mouse."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from advisor.tui.actions import VIEWS, ViewInfo
from advisor.tui.context import Recorded


class NavTab(Static):
    """One view's tab."""

    ALLOW_SELECT = False

    @dataclass
    class Chosen(Message):
        """The tab was clicked."""

        view_id: str

    def __init__(self, view: ViewInfo) -> None:
        super().__init__(Content.assemble((view.key, "bold $accent"), " ", view.title), id=f"tab-{view.id}")
        self._view = view
        self.tooltip = view.description

    def on_click(self) -> None:
        self.post_message(self.Chosen(self._view.id))


class NavBar(Horizontal):
    """The tabs of the five views and, on the right, what is being measured."""

    def __init__(self, target: str, recorded: Recorded | None = None) -> None:
        super().__init__(id="nav")
        self._target = target
        self._recorded = recorded

    def compose(self) -> ComposeResult:
        for view in VIEWS:
            yield NavTab(view)
        when = Content.styled(f"  recorded {self._recorded.date_text}", "$accent") if self._recorded else Content("")
        yield Static(Content.styled(self._target, "$foreground 60%") + when, id="target")

    def mark(self, view_id: str) -> None:
        """Show which view is on screen."""
        for tab in self.query(NavTab):
            tab.set_class(tab.id == f"tab-{view_id}", "-active")
