"""The screens that lie over the views: help, what went wrong, and whether a file may be overwritten."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Footer, Static

from advisor.experiment.events import SessionFailed
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


class Overwriting(StrEnum):
    """What to do when a file exists already."""

    OVERWRITE = "overwrite"
    RENAME = "rename"
    CANCEL = "cancel"


class OverwriteScreen(ModalScreen[Overwriting]):
    """A file exists already: overwrite it, write under another name, or leave it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "answer('overwrite')", "Overwrite", tooltip="Replace the file", id="overwrite.yes"),
        Binding("n", "answer('rename')", "Another name", tooltip="Write beside it", id="overwrite.rename"),
        Binding("escape", "answer('cancel')", "Cancel", tooltip="Write nothing", id="overwrite.cancel"),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        _QUIT,
    ]

    def __init__(self, path: Path, other: Path) -> None:
        super().__init__()
        self._path = path
        self._other = other

    def compose(self) -> ComposeResult:
        """The question and the answers; the safe one has the focus."""
        with Vertical(classes="dialog", id="overwrite-dialog") as dialog:
            dialog.border_title = "The file exists"
            yield Static(Content.assemble((str(self._path), "bold"), " exists already."), id="overwrite-question")
            yield Static(Content.styled(f"Another name that is free: {self._other.name}", DIM))
            with Horizontal(id="overwrite-answers"):
                yield Button("Another name", id="rename", compact=True)
                yield Button("Overwrite", id="overwrite", compact=True)
                yield Button("Cancel", id="cancel", compact=True)
        yield Footer(show_command_palette=False)

    def action_answer(self, answer: str) -> None:
        """Close with an answer."""
        self.dismiss(Overwriting(answer))

    @on(Button.Pressed)
    def _on_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(Overwriting(event.button.id or Overwriting.CANCEL))
