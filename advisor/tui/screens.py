"""The screens over the views: help, failures, and questions before an action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Button, Footer, Static

from advisor.experiment.events import SessionFailed
from advisor.tui.facts import fact_lines
from advisor.tui.keys import key
from advisor.tui.text import DIM, trial_name
from advisor.tui.views import ViewInfo
from advisor.tui.views.base import View
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import TextPane

# Cells for the name of a trial in a question.
_WIDEST_NAME = 40
_QUIT = key("screen.quit", "q", "app.quit", "Quit", "Leave the app", priority=True)


class HelpScreen(ModalScreen[None]):
    """The keys that do something now, words, and how the numbers are made."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("help.close", "escape,question_mark,f1", "dismiss", "Close", "Close the help", key_display="esc"),
        _QUIT,
    ]

    def __init__(self, view: ViewInfo, active: Sequence[ActiveBinding]) -> None:
        super().__init__()
        self._view = view
        self._active = active

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="help-dialog") as dialog:
            dialog.border_title = "Help"
            yield TextPane(id="help-text")
        yield Footer(show_command_palette=False)

    def _keys(self) -> Keys:
        """The keys that have an id, of the view, of the session and of every view; each action once."""
        keys: Keys = {"view": [], "session": [], "all": []}
        seen = set[str]()
        for node, binding, _, _ in sorted(self._active, key=lambda active: active.binding.priority):
            if binding.id and binding.id not in seen:
                seen.add(binding.id)
                steers = binding.id.startswith("session.")
                kind = "view" if isinstance(node, View | Table) else "session" if steers else "all"
                keys[kind].append((self.app.get_key_display(binding), binding.tooltip))
        return keys

    def on_mount(self) -> None:
        text, keys = self.query_one("#help-text", TextPane), self._keys()
        text.show(lambda width: help_text(self._view, keys, width))
        text.focus()


class FailureScreen(ModalScreen[None]):
    """The screen for a session that cannot go on: the error, what to do, and the details."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "failure.close",
            "escape,enter",
            "dismiss",
            "Look around",
            "Close this panel; the views stay",
            key_display="esc",
        ),
        _QUIT,
    ]

    def __init__(self, failure: SessionFailed) -> None:
        super().__init__()
        self._failure = failure

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="failure-dialog") as dialog:
            dialog.border_title = "The session cannot go on"
            yield Static(Content.styled(self._failure.message, "bold $text-error"), id="failure-message")
            yield Static(Content(self._failure.hint), id="failure-hint")
            with VerticalScroll(id="failure-details"):
                yield Static(Content.styled(self._failure.details.rstrip(), DIM))
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        details = self.query_one("#failure-details")
        details.display = bool(self._failure.details.strip())
        if details.display:
            details.focus()


class Question(ModalScreen[ScreenResultType]):
    """A question: nothing behind it is done by a key."""


class Choice(Question[str]):
    """A question that is answered by a button or by its key. ``answers`` have their labels; the first has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, question: Content, about: str, answers: Mapping[str, str]) -> None:
        super().__init__()
        self._title, self._question, self._about, self._answers = title, question, about, answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = self._title
            yield Static(self._question)
            yield Static(Content.styled(self._about, DIM))
            with Horizontal(classes="answers"):
                for answer, label in self._answers.items():
                    yield Button(label, id=answer, compact=True)
        yield Footer(show_command_palette=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys of answers that are not offered."""
        return action != "answer" or parameters[0] in self._answers

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)

    @on(Button.Pressed)
    def _on_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id)


class OverwriteScreen(Choice):
    """A file exists already: ``overwrite`` it, ``rename`` what is written, or ``cancel``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("overwrite.yes", "o", "answer('overwrite')", "Overwrite", "Replace the file"),
        key("overwrite.rename", "n", "answer('rename')", "Another name", "Write beside it"),
        key("overwrite.cancel", "escape,q", "answer('cancel')", "Cancel", "Write nothing"),
    ]

    def __init__(self, path: Path, other: Path, about: str = "") -> None:
        question = Content.assemble((str(path), "bold"), " exists already.", f" {about}".rstrip())
        answers = {"rename": "Another name", "overwrite": "Overwrite", "cancel": "Cancel"}
        super().__init__("The file exists", question, f"Another name that is free: {other.name}", answers)


class QuitScreen(Choice):
    """Something is being measured: ``leave`` it, ``finish`` it with a report, or ``stay``.

    Without a baseline nothing is reported.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("quit.leave", "q,y", "answer('leave')", "Leave", "Stop measuring and leave", key_display="q"),
        key("quit.finish", "e", "answer('finish')", "End and report", "End the session and stay"),
        Binding("escape,n", "answer('stay')", "Keep measuring", key_display="esc", id="quit.stay"),
    ]

    def __init__(self, running: str, *, can_finish: bool) -> None:
        name = trial_name(running, _WIDEST_NAME) if running else "The session"
        finish = {"finish": "End and report"} if can_finish else {}
        answers = {"stay": "Keep measuring", **finish, "leave": "Leave"}
        about = "What was measured is kept; `perf-advisor --resume` goes on later."
        super().__init__("Still measuring", Content(f"{name} is not finished."), about, answers)


WORDS = (
    ("baseline", "the trial with your present settings; every speed-up is against it"),
    ("candidate", "a recipe and one value to try"),
    ("trial", "the workload run under some settings, in a process of its own"),
    ("verdict", "faster, slower, same (within 3 %), unclear, failed or skipped, always with the reason"),
    ("combination", "several settings applied together; effects do not add up, so it is measured as one"),
    ("interval", "the range that holds a speed-up: 95 % of those measured in turn do, 99 % of the others"),
    ("numerics", "exact: bit-equal; close: rounding; changed: other results, an opt-in"),
)
MARKS_TEXT = (
    ("★", "$accent", "recommended"),
    ("☑", "$success", "used: it is in what 4 exports"),
    ("☐", "", "not used"),
    ("◷", "$accent", "accepted by you, to be measured with the others"),
    ("☒", "$error", "accepted by you, and not exported: the card says why"),
    ("!", "$warning", "changes results, and is used only if you accept it"),
    ("▸", "", "folded: other values, or settings without figures; → unfolds, ← folds"),
    ("▶", "$accent", "runs now"),
)
NUMBERS = """\
Steps run in blocks without synchronising in between; the headline is wall time per step. Warm-up goes on until \
the step time is steady and is reported apart, with the number of steps after which a slower start has paid back.

A speed-up is the ratio of samples per second to the baseline's, with its interval: 1.62x (1.60 to 1.64). \
It holds how blocks of a process scatter and how far processes of the same settings lie apart. The verdict is faster \
when the whole interval lies above 1.01, slower when it lies below 1/1.01, same when it lies within 3 % of 1, and \
unclear otherwise. The stack is measured in turn with the baseline, A B B A, so that drift cancels.

Memory is the peak that PyTorch reserved on the GPU (on a CPU, the process's peak resident memory). Numerics compare \
the first losses and outputs with the baseline's under the same seed and batches; what rounding explains is \
close. A run in float64, where there is time and memory for it, shows how much that is.

Energy is what the whole GPU took while the blocks were timed, by its own counter, its idle draw included. The roof is \
what this machine reached in products of large matrices and in large copies."""


# Keys as a person types them with what they do, by what they belong to: the view, the session, all views.
Keys = dict[str, list[tuple[str, str]]]


def help_text(view: ViewInfo, keys: Keys, width: int) -> Content:
    """The keys of a view that do something now, the words, the marks, and how the numbers are made."""
    others = [
        *keys.get("all", []),
        ("^p", "Command palette: every action by name, and the themes"),
        ("j k", "Down and up in lists; Enter opens the detail, Escape goes back"),
    ]
    groups = (
        (f"Keys of view {view.key}, {view.title}, now", keys.get("view", []), 7),
        ("The session", keys.get("session", []), 7),
        ("All views", others, 7),
        ("Words", WORDS, 13),
    )
    sections = [(title, fact_lines(lines, width, room, "bold $accent")) for title, lines, room in groups if lines]
    sections.append(("Marks", [Content.assemble((sign, style), f" {text}") for sign, style, text in MARKS_TEXT]))
    sections.append(("How the numbers are made", [Content(NUMBERS)]))
    return Content("\n\n").join(
        Content("\n").join([Content.styled(title, "bold $accent"), *lines]) for title, lines in sections
    )
