"""Recorded sessions: a list to pick one from, and the changes from one to another."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from advisor.errors import AdvisorError
from advisor.experiment.past.journal import list_sessions, open_session
from advisor.experiment.state import SessionState
from advisor.report.comparison import Changes, Measured, compare, summary
from advisor.report.verdict import result_line
from advisor.tui.text import DIM, shortened
from advisor.tui.theme import ThemedApp

_NONE = "There is no recorded session yet: `perf-advisor demo` makes one."
_NO_OTHER = "There is no other recorded session."
_NAME, _TARGET = 17, 32
# Width from which on the whole target is shown; below it the target makes room for the result. Cells.
_BROAD, _NARROW_TARGET = 100, 20


# The widest column of names in a comparison, the sides' where there is no room for more, the last's least. Cells.
_WHAT, _SIDE, _LEAST_TOLD = 24, 20, 12


class SessionsScreen(ModalScreen[str | None]):
    """The recorded sessions, the latest first; answers with the id of the one that was picked.

    The list fills while the journals are read. ``besides`` names the session on screen, which is not offered; those of
    ``target`` come before all others.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", tooltip="Pick none", id="sessions.close"),
        Binding("slash", "find", "Filter", key_display="/", tooltip="Show only some", id="sessions.find"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
        Binding("q", "dismiss(None)", show=False),
    ]

    def __init__(self, title: str, besides: str = "", target: str = "") -> None:
        super().__init__()
        self._title = title
        self._target = target
        self._besides = besides
        self._rows: dict[str, tuple[str, ...]] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="sessions-dialog") as dialog:
            dialog.border_title, dialog.border_subtitle = self._title, "Enter picks the session"
            yield Input(placeholder="words to look for; Enter goes to the list", id="sessions-filter", compact=True)
            yield DataTable[Text](id="sessions-table", cursor_type="row")
            yield Static(Content.styled("Reading the sessions…", DIM), id="sessions-empty")
            yield Static(id="sessions-told", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        table = self._table
        for label, width in (("session", _NAME), ("target", self._target_cells), ("result", None)):
            table.add_column(label, width=width)
        table.focus()
        self._read()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#sessions-table", DataTable)

    @property
    def _target_cells(self) -> int:
        """A narrow screen has to have room for the result."""
        return _TARGET if self.app.size.width >= _BROAD else _NARROW_TARGET

    @work(thread=True, exit_on_error=False, group="sessions")
    def _read(self) -> None:
        others: list[tuple[str, ...]] = []
        for past in list_sessions():
            if not self.is_attached:
                return
            target = past.request.target
            row = (past.session_id, target.command, result_line(SessionState.of(past.events)))
            if past.session_id == self._besides:
                continue
            if self._target in ("", target.target):
                self.app.call_from_thread(self._add, row)
            else:
                others.append(row)
        self.app.call_from_thread(self._all_read, others)

    def _add(self, *rows: tuple[str, ...]) -> None:
        if not self.is_attached:  # closed meanwhile
            return
        for row in rows:
            self._rows[row[0]] = row
            self._show_row(row[0])

    def _all_read(self, others: list[tuple[str, ...]]) -> None:
        if not self.is_attached:
            return
        self._add(*others)
        self.query_one("#sessions-empty", Static).update(Content.styled(_NO_OTHER if self._besides else _NONE, DIM))
        self.query_one("#sessions-empty").display = not self._rows
        self._table.display = bool(self._rows)

    def _show_row(self, session_id: str) -> None:
        row = self._rows[session_id]
        wanted = self.query_one("#sessions-filter", Input).value.lower().split()
        if all(word in " ".join(row).lower() for word in wanted):
            name, target, result = row
            self._table.add_row(Text(name), Text(shortened(target, self._target_cells)), Text(result), key=session_id)

    @on(Input.Changed, "#sessions-filter")
    def _on_filter_changed(self) -> None:
        self._table.clear()
        for session_id in self._rows:
            self._show_row(session_id)

    @on(Input.Submitted, "#sessions-filter")
    def _on_filter_submitted(self) -> None:
        self._table.focus()

    @on(DataTable.RowHighlighted)
    def _on_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell the target and the result in full: a narrow screen cuts them in the table."""
        _, target, result = self._rows.get(event.row_key.value or "", ("", "", ""))
        self.query_one("#sessions-told", Static).update(Content(f"{target}: {result}" if result else target))

    @on(DataTable.RowSelected)
    def _on_row_selected(self, event: DataTable.RowSelected) -> None:
        self.dismiss(event.row_key.value)

    def action_find(self) -> None:
        self.query_one("#sessions-filter").focus()

    def action_move(self, rows: int) -> None:
        self._table.move_cursor(row=self._table.cursor_row + rows)


class ComparisonScreen(ModalScreen[None]):
    """The comparison of an earlier session with the one on screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close", key_display="esc", tooltip="Back to the views", id="comparison.close")
    ]

    def __init__(self, before: str, now: Measured) -> None:
        super().__init__()
        self._before = before
        self._now = now

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="comparison-dialog") as dialog:
            dialog.border_title = f"From {self._before} to {self._now.session_id}"
            with VerticalScroll(id="comparison-text"):
                yield Static(id="comparison", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#comparison-text").focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        widget = self.query_one("#comparison", Static)
        try:
            past = open_session(self._before)
        except AdvisorError as error:
            widget.update(Content(f"{error.message}\n{error.hint}"))
            return
        before = Measured(past.session_id, past.request, SessionState.of(past.events))
        blocks = [_kind(kind, widget.size.width) for kind in compare(before, self._now)]
        answer = Content.styled(summary(before, self._now), "bold")
        widget.update(Content("\n\n").join([answer, *blocks]))


def _kind(kind: Changes, width: int) -> Content:
    """A table of what changed: each column as wide as its longest entry, the last one wrapped to what is left."""
    what = min(_WHAT, max((len(change.what) for change in kind.changes), default=0))
    kept = _LEAST_TOLD if any(change.told for change in kind.changes) else 0
    side = max(_SIDE, (width - what - kept - 7) // 2)
    before = min(side, max((len(change.before) for change in kind.changes), default=0))
    after = min(side, max((len(change.after) for change in kind.changes), default=0))
    indent = what + before + after + 7
    lines = [Content.styled(kind.title, "bold $accent")]
    for change in kind.changes:
        names = (shortened(change.what, what).ljust(what), shortened(change.before, before).ljust(before))
        figures = Content.assemble(f"{names[1]} ", ("→ ", DIM), f"{shortened(change.after, after):<{after}} ")
        head = Content.assemble((f"  {names[0]} ", DIM), figures)
        told = Content.styled(change.told, "" if change.matters else DIM).wrap(max(_LEAST_TOLD, width - indent))
        for part in told or [Content("")]:
            lines.append(head + part)
            head = Content(" " * indent)
    return Content("\n").join(lines)


class SessionPicker(ThemedApp[str]):
    """The list alone, for a command line that names no session."""

    def on_mount(self) -> None:
        self.push_screen(SessionsScreen("Open a session"), self.exit)
