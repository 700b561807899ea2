"""The two screens that lie over the views: help, and what went wrong."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Footer, Static

from advisor.session.events import SessionFailed
from advisor.tui.help import help_sections
from advisor.tui.text import DIM

_QUIT = Binding(
    "q,ctrl+q,ctrl+c", "app.quit", "Quit", key_display="q", tooltip="Leave the app", id="screen.quit", priority=True
)


class HelpScreen(ModalScreen[None]):
    """Keys, words, and how the numbers are made."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,question_mark,f1", "dismiss", "Close", key_display="esc", tooltip="Close the help", id="help.close"
        ),
        _QUIT,
    ]

    def compose(self) -> ComposeResult:
        """One section under another."""
        with Vertical(classes="dialog", id="help-dialog") as dialog:
            dialog.border_title = "Help"
            with VerticalScroll(id="help-text"):
                for title, text in help_sections():
                    yield Static(title, classes="section")
                    yield text if isinstance(text, Widget) else Static(text)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self.query_one("#help-text").focus()


class FailureScreen(ModalScreen[None]):
    """The session cannot go on: what happened, what to do, and the details."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Look around", tooltip="Close this panel; the views stay", id="failure.close"),
        _QUIT,
    ]

    def __init__(self, failure: SessionFailed) -> None:
        super().__init__()
        self._failure = failure

    def compose(self) -> ComposeResult:
        """Message, hint, details."""
        with Vertical(classes="dialog", id="failure-dialog") as dialog:
            dialog.border_title = "The session cannot go on"
            yield Static(Content.styled(self._failure.message, "bold $text-error"), id="failure-message")
            yield Static(Content(self._failure.hint), id="failure-hint")
            with VerticalScroll(id="failure-details"):
                yield Static(Content.styled(self._failure.details.rstrip(), DIM))
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Let the arrow keys scroll the details; hide them when there are none."""
        details = self.query_one("#failure-details")
        details.display = bool(self._failure.details.strip())
        if details.display:
            details.focus()
