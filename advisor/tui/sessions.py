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
from advisor.report.document import Section
from advisor.report.verdict import result_line
from advisor.tui.keys import key
from advisor.tui.text import DIM, shortened
from advisor.tui.theme import ThemedApp
from advisor.tui.views.report_text import sections_text
from advisor.tui.widgets.table import Column, Table
from advisor.tui.widgets.texts import TextPane, show_text

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
        self._title = title
        self._target = target
        self._besides = besides
        self._rows: dict[str, _Row] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="sessions-dialog") as dialog:
            dialog.border_title, dialog.border_subtitle = self._title, "Enter picks the session"
            yield Input(placeholder="words to look for; Enter goes to the list", id="sessions-filter", compact=True)
            yield Table(id="sessions-table")
            yield Static(Content.styled("Reading the sessions…", DIM), id="sessions-empty")
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
                    self.app.call_from_thread(self._add, known)
                    known, told_at = [], time.monotonic()
        self.app.call_from_thread(self._all_read, [*known, *others])

    def _add(self, rows: Sequence[_Row]) -> None:
        if self.is_attached:  # not closed meanwhile
            self._rows |= {row[0]: row for row in rows}
            self._show()

    def _all_read(self, rest: Sequence[_Row]) -> None:
        if not self.is_attached:
            return
        self._add(rest)
        self.query_one("#sessions-empty", Static).update(Content.styled(_NO_OTHER if self._besides else _NONE, DIM))
        self.query_one("#sessions-empty").display = not self._rows
        self._table.display = bool(self._rows)

    @on(Input.Changed, "#sessions-filter")
    @on(Table.Reordered)
    def _show(self) -> None:
        wanted = self.query_one("#sessions-filter", Input).value.lower().split()
        shown = [row for row in self._rows.values() if all(word in " ".join(row).lower() for word in wanted)]
        order, names = self._table.order, ("session", "target", "result")
        shown = order.sort(shown, lambda row: row[names.index(order.column)] if order.column else "")
        # A narrow screen has to have room for the result.
        target = _TARGET if self.app.size.width >= _BROAD else _NARROW_TARGET
        result = max(0, self._table.size.width - _NAME - target - 8)
        headings = [Column("session", "session", _NAME), Column("target", "target", target)]
        rows = {
            row[0]: {"session": Content(row[0]), "target": Content(_fitting(row[1], target)), "result": Content(row[2])}
            for row in shown
        }
        self._table.show([*headings, Column("result", "result", result)], rows)
        self._tell()

    @on(Input.Submitted, "#sessions-filter")
    def _on_filter_submitted(self) -> None:
        self._table.focus()

    @on(DataTable.RowHighlighted)
    def _tell(self) -> None:
        """Tell the target and the result in full: a narrow screen cuts them in the table."""
        _, target, result = self._rows.get(self._table.cursor_key, ("", "", ""))
        show_text(self.query_one("#sessions-told", Static), Content(f"{target}: {result}" if result else target))

    @on(DataTable.RowSelected)
    def _on_chosen(self) -> None:
        self.dismiss(self._table.cursor_key)

    def action_find(self) -> None:
        self.query_one("#sessions-filter").focus()


def _fitting(target: str, width: int) -> str:
    """A target in so many cells: first without its folders, which many have in common."""
    return target if len(target) <= width else shortened(re.sub(r"^\S*/", "…/", target), width)


class ComparisonScreen(ModalScreen[None]):
    """The comparison of an earlier session with the one on screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("comparison.close", "escape,q", "dismiss", "Close", "Back to the views", key_display="esc")
    ]

    def __init__(self, before: str, now: Measured) -> None:
        super().__init__()
        self._before = before
        self._now = now

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="comparison-dialog") as dialog:
            dialog.border_title = f"From {self._before} to {self._now.session_id}"
            yield TextPane(id="comparison-text")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#comparison-text").focus()
        self._read()

    @work(thread=True, exit_on_error=False, group="sessions", description="comparison")
    def _read(self) -> None:
        try:
            past = open_session(self._before)
        except AdvisorError as error:
            self.app.call_from_thread(self._show, f"{error.message}\n{error.hint}", ())
            return
        before = Measured(past.session_id, past.request, SessionState.of(past.events))
        changed = tuple(comparison_sections(before, self._now))
        self.app.call_from_thread(self._show, summary(before, self._now), changed)

    def _show(self, answer: str, changed: Sequence[Section]) -> None:
        def build(width: int) -> Content:
            tables = sections_text(changed, width, self.app.theme_variables)
            return Content("\n\n").join([Content.styled(answer, "bold"), tables])

        if self.is_attached:  # not closed meanwhile
            self.query_one("#comparison-text", TextPane).show(build)


class SessionPicker(ThemedApp[str]):
    """The list alone, for a command line that names no session."""

    def on_mount(self) -> None:
        self.push_screen(SessionsScreen("Open a session"), self.exit)
