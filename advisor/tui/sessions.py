"""Recorded sessions: a list to pick one from, and the changes from one to another."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from advisor.errors import AdvisorError
from advisor.experiment.past.journal import list_sessions, open_session
from advisor.experiment.state import SessionState
from advisor.report.comparison import Measured, comparison_sections, summary
from advisor.report.document import Paragraph, Section
from advisor.report.verdict import result_line
from advisor.tui.keys import key
from advisor.tui.screens import TextScreen
from advisor.tui.text import shortened
from advisor.tui.theme import ThemedApp
from advisor.tui.widgets.table import Cell, Column, Table
from advisor.tui.widgets.texts import show_text

_NONE = "There is no recorded session yet: `perf-advisor demo` makes one."
_NO_OTHER = "There is no other recorded session."
_NAME, _TARGET = 17, 32
# Width from which on the whole target is shown; below it the target makes room for the result. Cells.
_BROAD, _NARROW_TARGET = 100, 20
# While the journals are read the list is drawn this often. Seconds.
_TOLD_EVERY_S = 0.1
_Row = tuple[str, str, str]  # a session's id, its target and its result


class SessionsScreen(ModalScreen[str | None]):
    """The recorded sessions, the latest first; answers with the id of the one that was picked.

    The list fills while the journals are read. ``besides`` names the session on screen, which is not offered; those of
    ``target`` come before all others.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("sessions.close", "escape", "dismiss(None)", "Close", "Pick none"),
        key("sessions.find", "slash", "find", "Filter", "Show only some", key_display="/"),
        Binding("q", "dismiss(None)", show=False),
    ]

    def __init__(self, title: str, besides: str = "", target: str = "") -> None:
        super().__init__()
        self._title, self._besides, self._target = title, besides, target
        self._rows: dict[str, _Row] = {}
        self._reading = True

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="sessions-dialog") as dialog:
            dialog.border_title, dialog.border_subtitle = self._title, "Enter picks the session"
            yield Input(placeholder="words to look for; Enter goes to the list", id="sessions-filter", compact=True)
            yield Table(id="sessions-table")
            yield Static(id="sessions-told", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._table.focus()
        self._read()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    @property
    def _table(self) -> Table:
        return self.query_one("#sessions-table", Table)

    @work(thread=True, exit_on_error=False, group="sessions")
    def _read(self) -> None:
        known, others, told_at = list[_Row](), list[_Row](), 0.0
        with contextlib.suppress(OSError):  # a folder that one may not read
            for past in list_sessions():
                if not self.is_attached:
                    return
                target = past.request.target
                row = (past.session_id, target.command, result_line(SessionState.of(past.events)))
                if past.session_id != self._besides:
                    (known if self._target in ("", target.target) else others).append(row)
                if time.monotonic() - told_at > _TOLD_EVERY_S:
                    self.app.call_from_thread(self._add, known, done=False)
                    known, told_at = [], time.monotonic()
        self.app.call_from_thread(self._add, [*known, *others], done=True)

    def _add(self, rows: Sequence[_Row], *, done: bool) -> None:
        if self.is_attached:  # not closed meanwhile
            self._rows |= {row[0]: row for row in rows}
            self._reading = not done
            self._show()

    @on(Input.Changed, "#sessions-filter")
    def _show(self) -> None:
        words = self.query_one("#sessions-filter", Input).value.lower().split()
        shown = [row for row in self._rows.values() if all(word in " ".join(row).lower() for word in words)]
        # A narrow screen has to have room for the result.
        target = _TARGET if self.app.size.width >= _BROAD else _NARROW_TARGET
        result = max(0, self._table.size.width - _NAME - target - 8)
        columns = (Column("session", "session", _NAME), Column("target", "target", target))
        cells = {
            session: {
                "session": Cell(Content(session), session),
                "target": Cell(Content(_fitting(name, target)), name),
                "result": Cell(Content(told), told),
            }
            for session, name, told in shown
        }
        self._table.show([*columns, Column("result", "result", result)], cells)
        self._tell()

    @on(Input.Submitted, "#sessions-filter")
    def _on_filter_submitted(self) -> None:
        self._table.focus()

    @on(DataTable.RowHighlighted)
    def _tell(self) -> None:
        """Tell the target and the result in full, which a narrow screen cuts in the table; or why there is nothing."""
        _, target, result = self._rows.get(self._table.cursor_key, ("", "", ""))
        told = f"{target}: {result}" if result else target
        if not self._rows:
            told = "Reading the sessions…" if self._reading else _NO_OTHER if self._besides else _NONE
        self._table.display = self._reading or bool(self._rows)  # a hidden one has no focus
        if self._rows and not self._table.row_count:
            told = "No session has these words."
        show_text(self.query_one("#sessions-told", Static), Content(told))

    @on(DataTable.RowSelected)
    def _on_chosen(self) -> None:
        self.dismiss(self._table.cursor_key)

    def action_find(self) -> None:
        self.query_one("#sessions-filter").focus()


def _fitting(target: str, width: int) -> str:
    """A target in so many cells: first without its folders, which many have in common."""
    return target if len(target) <= width else shortened(re.sub(r"^\S*/", "…/", target), width)


class ComparisonScreen(TextScreen):
    """The comparison of an earlier session with the one on screen."""

    def __init__(self, before: str, now: Measured) -> None:
        super().__init__(f"From {before} to {now.session_id}")
        self._before, self._now = before, now

    def on_mount(self) -> None:
        self._read()

    @work(thread=True, exit_on_error=False, group="sessions", description="comparison")
    def _read(self) -> None:
        try:
            past = open_session(self._before)
        except AdvisorError as error:
            told = [Section("", (Paragraph(error.message), Paragraph(error.hint)), warns=True)]
        else:
            before = Measured(past.session_id, past.request, SessionState.of(past.events))
            told = [Section(summary(before, self._now), ()), *comparison_sections(before, self._now)]
        self.app.call_from_thread(self._show, told)

    def _show(self, told: Sequence[Section]) -> None:
        if self.is_attached:  # not closed meanwhile
            self.show(told)


class SessionPicker(ThemedApp[str]):
    """The list alone, for a command line that names no session."""

    def on_mount(self) -> None:
        self.push_screen(SessionsScreen("Open a session"), self.exit)
