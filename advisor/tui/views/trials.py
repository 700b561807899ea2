"""View 3: every candidate, live, and the log of the selected one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Static

from advisor.experiment.control import Decision
from advisor.formatting import format_left, format_percent
from advisor.tui.context import Context
from advisor.tui.deciding import can_decide, can_measure_stack, handlers_of
from advisor.tui.messages import Decided, RetryWanted
from advisor.tui.text import DIM, meter
from advisor.tui.views.base import View
from advisor.tui.views.trial_rows import COLUMNS, NAME, STACK, Column, Row, build_rows, tally
from advisor.tui.views.trial_text import selection_text
from advisor.tui.widgets.changes import show_text
from advisor.tui.widgets.log_tail import LogTail
from advisor.tui.widgets.status import COUNT_INTERVAL_S

_WIDE = 104
_TALL = 30


class TrialsView(View):
    """The progress line, the table, what is known of the selected row, and its log."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="trials")
        self._rows: dict[str, Row] = {}
        self._columns: tuple[Column, ...] = ()
        self._log_wanted: bool | None = None

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        with Horizontal(id="trials-head"):
            yield Static(id="tally")
            yield Static(id="trials-progress")
        yield Static(
            Content.styled("Candidates are chosen once the baseline is measured and profiled.", DIM), id="trials-empty"
        )
        yield DataTable[Text](id="trials-table", cursor_type="row")
        yield Static(id="selection")
        with Vertical(classes="panel", id="log-panel"):
            yield LogTail(id="log")

    def on_mount(self) -> None:
        """Title the log, count down the time left, and draw again in the colours of a new theme."""
        self.query_one("#log-panel").border_title = "Log"
        self.app.theme_changed_signal.subscribe(self, lambda _: self._redraw())
        self.set_interval(COUNT_INTERVAL_S, self.show_progress)

    def on_resize(self) -> None:
        """Fit the columns, and the log, to the new size."""
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self._columns = ()
        self.show()

    def show(self) -> None:
        """Draw the present state; rows are updated in place while the list of rows stays the same."""
        state = self.context.state
        rows = build_rows(state, self._colours())
        show_text(self.query_one("#tally", Static), tally(state, wide=self.size.width >= _WIDE))
        self.show_progress()
        self.query_one("#trials-empty").display = not rows
        self._table.display = bool(rows)
        if not self._columns or [row.key for row in rows] != list(self._rows):
            self._fill(rows)
        else:
            self._update(rows)
        self._rows = {row.key: row for row in rows}
        self._show_selection()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#trials-table", DataTable)

    def _colours(self) -> dict[str, str]:
        names = ("primary", "accent", "success", "error", "warning", "secondary")
        return {name: self.app.theme_variables[name] for name in names}

    def show_progress(self) -> None:
        """Draw how far the session is by now."""
        show_text(self.query_one("#trials-progress", Static), self._progress())

    def _progress(self) -> Content:
        state = self.context.state
        if state.finished or state.failure or not state.planned:
            return Content("")
        share, left_s = self.context.countdown.now(state)
        return Content.assemble(
            meter(share, 16 if self.size.width >= _WIDE else 10, "$primary"),
            f" {format_percent(share)} ",
            (format_left(left_s), DIM),
        )

    def _fill(self, rows: list[Row]) -> None:
        table = self._table
        selected = self.selected_key
        table.clear(columns=True)
        fitting = self._fitting_columns()
        self._columns = tuple(column for column, _ in fitting)
        for column, width in fitting:
            label = Text(column.label, justify="right" if column.number else "left")
            table.add_column(label, width=width, key=column.key)
        for row in rows:
            table.add_row(*(row.cells[column.key] for column in self._columns), key=row.key)
        keys = [row.key for row in rows]
        if selected in keys:
            table.move_cursor(row=keys.index(selected), animate=False)

    def _fitting_columns(self) -> list[tuple[Column, int]]:
        width = self.size.width
        widths = {column.key: column.wide if width >= _WIDE else column.width for column in COLUMNS}
        kept = [column for column in COLUMNS if widths[column.key]]
        others = sum(widths[column.key] for column in kept if column.key != NAME)
        widths[NAME] = max(widths[NAME], width - others - 2 * len(kept) - 1)
        return [(column, widths[column.key]) for column in kept]

    def _update(self, rows: list[Row]) -> None:
        for row in rows:
            before = self._rows[row.key].cells
            for column in self._columns:
                if (
                    row.cells[column.key] != before[column.key]
                    or row.cells[column.key].style != before[column.key].style
                ):
                    self._table.update_cell(row.key, column.key, row.cells[column.key])

    @property
    def selected_key(self) -> str:
        """The key of the row under the cursor, empty when there are no rows."""
        keys = list(self._rows)
        position = self._table.cursor_row
        return keys[position] if 0 <= position < len(keys) else ""

    @property
    def subject(self) -> str:
        """The row under the cursor."""
        return self.selected_key

    @on(DataTable.RowHighlighted)
    def _on_row_highlighted(self) -> None:
        self._show_selection()
        self.app.refresh_bindings()

    def _show_selection(self) -> None:
        key = self.selected_key
        strip = self.query_one("#selection", Static)
        strip.display = bool(key)
        show_text(strip, selection_text(key, self.context.state, self.context.catalog) if key else "")
        self._show_log(key)

    def _show_log(self, key: str) -> None:
        panel = self.query_one("#log-panel")
        panel.display = bool(key) and self._log_shown
        if panel.display:
            row = self._rows[key]
            panel.border_title = Content("Log of ") + Content(key)
            self.query_one(LogTail).follow(row.log_path)

    @property
    def _log_shown(self) -> bool:
        return self.app.size.height >= _TALL if self._log_wanted is None else self._log_wanted

    def handlers(self) -> Mapping[str, Callable[[], None]]:
        """The keys of this view."""
        return {"log": self.toggle_log, "retry": self.retry, **handlers_of(self._decide)}

    def can(self, name: str) -> bool:
        """A trial that ran can be retried; a decision can be taken where it changes anything."""
        state, key = self.context.state, self.selected_key
        if name == "log":
            return bool(self._rows)
        if name == "retry":
            return key in state.trials or (key == STACK and can_measure_stack(state))
        candidate = state.candidate(key)
        return candidate is not None and can_decide(state, candidate.recipe, name)

    def _decide(self, decision: Decision | None) -> None:
        candidate = self.context.state.candidate(self.selected_key)
        if candidate:
            self.post_message(Decided(candidate.recipe, decision))

    def toggle_log(self) -> None:
        """Show or hide the log."""
        self._log_wanted = not self._log_shown
        self._show_selection()

    def retry(self) -> None:
        """Ask for the selected trial to run again."""
        if self.can("retry"):
            self.post_message(RetryWanted(self.selected_key))

    def first_focus(self) -> Widget | None:
        """The table, once it has rows."""
        return self._table if self._table.display else None
