"""Recorded sessions: a list to pick one from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from advisor.experiment.past.journal import list_sessions
from advisor.experiment.state import SessionState
from advisor.report.verdict import result_line
from advisor.tui.keys import key
from advisor.tui.text import DIM
from advisor.tui.theme import ThemedApp
from advisor.tui.widgets.lists import ChoiceList

_NONE = "There is no recorded session yet: `perf-advisor demo` makes one."
_NO_OTHER = "There is no other recorded session."
# While the journals are read the list is drawn this often. Seconds.
_TOLD_EVERY_S = 0.1
_Row = tuple[str, str, str]  # a session's id, its target and its result


class SessionsScreen(ModalScreen[str | None]):
    """The recorded sessions, the latest first; answers with the id of the one that was picked.

    The list fills while the journals are read. ``besides`` names the session on screen, which is not offered.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("sessions.close", "escape", "dismiss(None)", "Close", "Pick none"),
        key("sessions.find", "slash", "find", "Filter", "Show only some", key_display="/"),
        Binding("q", "dismiss(None)", show=False),
    ]

    def __init__(self, besides: str = "") -> None:
        super().__init__()
        self._besides = besides
        self._rows: Sequence[_Row] = ()
        self._words = Input(placeholder="words to look for; Enter goes to the list", id="sessions-filter", compact=True)
        self._told = Static("Reading the sessions…", id="sessions-told")
        self._list = ChoiceList(id="sessions", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title, dialog.border_subtitle = "Open a session", "Enter picks the session"
            yield from (self._words, self._told, self._list)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._list.focus()
        self._read()

    @work(thread=True, exit_on_error=False, group="sessions")
    def _read(self) -> None:
        rows, told_at = list[_Row](), 0.0
        with contextlib.suppress(OSError):  # a folder that one may not read
            for past in list_sessions():
                if not self.is_attached:
                    return
                if past.session_id != self._besides:
                    result = result_line(SessionState.of(past.events))
                    rows.append((past.session_id, past.request.target.command, result))
                if time.monotonic() - told_at > _TOLD_EVERY_S:
                    self.app.call_from_thread(self._take, tuple(rows))
                    told_at = time.monotonic()
        self.app.call_from_thread(self._take, tuple(rows), _NO_OTHER if self._besides else _NONE)

    def _take(self, rows: Sequence[_Row], nothing: str = "") -> None:
        """Show the sessions read so far; ``nothing`` is what to say once all are read and there is none."""
        if self.is_attached:  # not closed meanwhile
            self._rows = rows
            self._show()
            if nothing:
                self._told.update(nothing)
                self._told.display = not rows

    @on(Input.Changed, "#sessions-filter")
    def _show(self) -> None:
        words = self._words.value.lower().split()
        shown = [row for row in self._rows if all(word in " ".join(row).lower() for word in words)]
        place = self._list.highlighted or 0
        self._list.set_options(
            Option(Content.assemble((f"{name}  ", "$accent"), (target, "bold"), "\n", (f"  {result}", DIM)), id=name)
            for name, target, result in shown
        )
        self._list.highlighted = min(place, len(shown) - 1) if shown else None

    @on(Input.Submitted, "#sessions-filter")
    def _on_filter_submitted(self) -> None:
        self._list.focus()

    @on(OptionList.OptionSelected)
    def _on_chosen(self, chosen: OptionList.OptionSelected) -> None:
        self.dismiss(chosen.option_id)

    def action_find(self) -> None:
        self._words.focus()


class SessionPicker(ThemedApp[str]):
    """The list alone, for a command line that names no session."""

    def on_mount(self) -> None:
        self.push_screen(SessionsScreen(), self.exit)
