"""The screens over the views: texts (the help, a failure), the command palette, and the question before quitting."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.command import CommandPalette
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from advisor.report.document import Section, pairs, section
from advisor.report.whole import METHOD
from advisor.tui.keys import key
from advisor.tui.text import DIM, trial_name
from advisor.tui.views.base import View
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import TextPane


class TextScreen(ModalScreen[None]):
    """A text over the views, as sections of the report."""

    BINDINGS = [
        key("text.close", "escape,enter,question_mark,f1", "dismiss", "Close", "Back to the views", key_display="esc"),
        key("text.quit", "q", "app.quit", "Quit", "Leave the app", priority=True),
    ]

    def __init__(self, title: str, sections: tuple[Section, ...], *, kind: str = "") -> None:
        super().__init__()
        self._title, self._sections, self._kind = title, sections, kind
        self._pane = TextPane(id="text")

    def compose(self) -> ComposeResult:
        with Vertical(classes=f"dialog {self._kind}") as dialog:
            dialog.border_title = self._title
            yield self._pane
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._pane.focus()
        self._pane.show(self._sections)


class Palette(CommandPalette):
    """Textual's palette, without the KeyError that ``views.export.ChoiceList`` describes."""

    def _action_command_list(self, action: str) -> None:
        with suppress(KeyError):
            super()._action_command_list(action)


class QuitScreen(ModalScreen[bool]):
    """Asks whether to quit while something is being measured."""

    BINDINGS = [
        key("quit.leave", "q,y", "dismiss(True)", "Leave", "Stop measuring and leave", key_display="q"),
        key("quit.stay", "escape,n", "dismiss(False)", "Keep measuring", "Stay", key_display="esc"),
    ]

    def __init__(self, running: str) -> None:
        super().__init__()
        self._trial = trial_name(running) if running else "The session"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = "Still measuring"
            yield Static(Content(f"{self._trial} is not finished."))
            yield Static(Content.styled("What was measured is kept; `perf-advisor --resume` goes on later.", DIM))
        yield Footer(show_command_palette=False)


MARKS = (
    ("★", "recommended"),
    ("☑", "used: it is in what 4 exports"),
    ("☐", "not used"),
    ("◷", "accepted by you, to be measured with the others"),
    ("☒", "accepted by you, and not exported: the card says why"),
    ("!", "changes results, and is used only if you accept it"),
    ("▸", "folded: other values of the setting; → unfolds, ← folds"),
    ("▶", "runs now"),
)


def help_sections(shown: View, active: Iterable[ActiveBinding], display: Callable[[Binding], str]) -> Iterator[Section]:
    """The sections of the help: the keys that do something now, the marks, and how the numbers are made."""
    of_view, of_session, of_all = list[tuple[str, str]](), list[tuple[str, str]](), list[tuple[str, str]]()
    for node, binding, _, _ in sorted(active, key=lambda one: one.binding.priority):
        of = of_view if isinstance(node, View | Table) else of_all
        of = of_session if (binding.id or "").startswith("session.") else of
        if binding.id and (line := (display(binding), binding.tooltip)) not in of:
            of.append(line)
    of_all += [
        ("^p", "Command palette: every action by name, and the themes"),
        ("tab", "Go from one panel to the next"),
        ("j k", "Down and up in lists; Enter opens the detail, Escape goes back"),
    ]
    titles = f"Keys of view {shown.number}, {shown.title}, now", "The session", "All views"
    for title, keys in zip(titles, (of_view, of_session, of_all), strict=True):
        yield section(title, pairs(keys))
    yield section("Marks", pairs(MARKS))
    yield section("How the numbers are made", *METHOD)
