"""View 3: every candidate, live, and the log of the selected one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import var
from textual.widget import Widget
from textual.widgets import Input, Static

from advisor.experiment.control import Decision
from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.recipe.settings import Settings
from advisor.records import TrialRecord, Verdict
from advisor.report.figures import own_figures, verdict_shown
from advisor.report.pareto import BASELINE, STACK
from advisor.tui.context import Context
from advisor.tui.deciding import can_decide, can_measure_stack, value_to_accept
from advisor.tui.keys import key
from advisor.tui.messages import Decided
from advisor.tui.text import DIM, trial_name, waiting_text
from advisor.tui.views.base import SORT, DecidingView
from advisor.tui.views.readings import start_up_s
from advisor.tui.views.trial_rows import (
    EFFECT,
    NAME,
    SKIPPED_PREFIX,
    WIDE,
    Column,
    Row,
    build_rows,
    fitting_columns,
    name_width,
    running_row,
    tally,
)
from advisor.tui.views.trial_text import selection_text
from advisor.tui.widgets.lists import Placeholder
from advisor.tui.widgets.log_tail import LogTail
from advisor.tui.widgets.row_table import Heading, RowTable
from advisor.tui.widgets.texts import Details, show_text, show_titles

_TALL = 30


# On top, whatever the order: everything is compared with them.
_PINNED = (BASELINE, STACK)
_VERDICTS = (Verdict.FASTER, Verdict.SAME, Verdict.UNCLEAR, Verdict.SLOWER, Verdict.FAILED, Verdict.SKIPPED)
# Columns whose largest figure comes first; of all others the smallest does.
_LARGEST_FIRST = (EFFECT, "bar")


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the rows: by a ``column`` (empty: as planned), with a ``query`` in them, skipped ones or not."""

    column: str = ""
    backwards: bool = False
    query: str = ""
    show_skipped: bool = False

    def by(self, column: str) -> Order:
        """Sorted by a column; the other way round when it is that one already; a third time as planned."""
        if self.column != column:
            return replace(self, column=column, backwards=False)
        return replace(self, column="" if self.backwards else column, backwards=not self.backwards)

    def by_next(self, columns: Sequence[Column]) -> Order:
        """Sorted by the column behind the present one; behind the last one as planned."""
        keys = ["", *(column.key for column in columns if column.label)]
        place = keys.index(self.column) if self.column in keys else 0
        return replace(self, column=keys[(place + 1) % len(keys)], backwards=False)

    @property
    def largest_first(self) -> bool:
        """Whether the rows begin with the largest figure."""
        return (self.column in _LARGEST_FIRST) is not self.backwards

    def label(self, column: Column) -> str:
        """A heading, marked where the rows are sorted by it: ``▼`` where the figures fall from row to row."""
        return f"{column.label}{'▼' if self.largest_first else '▲'}" if column.key == self.column else column.label


class TrialsView(DecidingView):
    """The tally, the table, what is known of the selected row, and its log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("trials.log", "l", "log", "Log", "Show or hide the log of the selected trial"),
        key(
            "trials.filter",
            "slash",
            "filter",
            "Filter",
            "Show only the trials with these words in their name, verdict or reason; Escape clears it",
        ),
        key("trials.hide", "h", "hide", "Hidden", "Show or hide the recipes that do not apply, each with its reason"),
        key(
            "trials.follow",
            "f",
            "follow",
            "Follow",
            "Have the cursor and the log follow the running trial again",
            show=False,
        ),
        SORT,
        Binding("escape", "clear_filter", "Show all", show=False),
    ]

    order: var[Order] = var(Order(), init=False)
    follows: var[bool] = var(True, init=False)
    log_wanted: var[bool | None] = var(None, init=False)

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="trials")
        self._rows: dict[str, Row] = {}

    def compose(self) -> ComposeResult:
        with Horizontal(id="trials-head"):
            yield Static(id="tally")
        yield Placeholder(id="trials-empty")
        yield Input(placeholder="words to look for; Enter goes to the table, Escape clears", id="filter", compact=True)
        yield RowTable(id="trials-table")
        yield Details(id="selection")
        yield LogTail(id="log")

    def on_mount(self) -> None:
        self.query_one("#filter").display = False

    def show(self) -> None:
        state = self.context.state
        every = build_rows(state, self.context.waiting, self.width)
        rows = rows_to_show(every, self.order, state)
        show_text(self.query_one("#tally", Static), self._tally(every, rows))
        waiting = waiting_text(state, "Candidates are chosen once the baseline is measured.")
        waiting = f"Nothing here has “{self.order.query}” in it. Escape shows all." if self.order.query else waiting
        show_text(self.query_one("#trials-empty", Static), Content.styled(waiting, DIM))
        self.query_one("#trials-empty").display = not rows
        self._table.display = bool(rows)
        self._rows = {row.key: row for row in rows}
        columns = fitting_columns(self.width, name_width(state))
        headings = [Heading(column.key, self.order.label(column), width, column.number) for column, width in columns]
        self._table.show(headings, {row.key: [row.cells[column.key] for column, _ in columns] for row in rows})
        if self.follows:
            self._table.go_to(state.running)
        self._show_selection()

    def show_live(self) -> None:
        """Draw the running trial's row, its details where it is selected, and the log."""
        running = self.context.state.running
        if running in self._rows:
            row = running_row(self.context.state)
            self._table.show_row(running, [row.cells[heading.key] for heading in self._table.headings])
            if self.selected_key == running:
                self._show_details(running)
        self.query_one(LogTail).poll()

    def _tally(self, every: Sequence[Row], shown: Sequence[Row]) -> Content:
        """The number of candidates tried, and of rows not shown, with the key that shows them, where there is room."""
        tried, rest = tally(self.context.state, wide=self.width >= WIDE), Content("")
        if self.order.query:
            rest = Content.styled(f"/{self.order.query}: {len(shown)} of {len(every)} rows", "$accent")
        elif hidden := len(every) - len(shown):
            rest = Content.styled(f"{hidden} do not apply: h shows them", DIM)
        both = Content.styled("  ·  ", DIM).join([tried, rest] if rest else [tried])
        if both.cell_length <= self.width - 2:
            return both
        return rest if self.order.query else tried

    @property
    def _table(self) -> RowTable:
        return self.query_one("#trials-table", RowTable)

    @property
    def selected_key(self) -> str:
        """The key of the row under the cursor, empty when there are no rows."""
        return self._table.cursor_key

    @property
    def subject(self) -> str:
        return self.selected_key.removeprefix(SKIPPED_PREFIX)

    @on(RowTable.Moved)
    def _on_moved(self) -> None:
        """The person picked a row: the log stays with it."""
        self.follows = self.selected_key == self.context.state.running

    @on(RowTable.HeadingChosen)
    def _on_heading_chosen(self, message: RowTable.HeadingChosen) -> None:
        self.order = self.order.by(message.key)

    @on(RowTable.Highlighted)
    def _on_highlighted(self) -> None:
        self._show_selection()
        self.refresh_bindings()

    def _show_selection(self) -> None:
        key = self.selected_key
        self.query_one("#selection").display = bool(key)
        self._show_details(key)
        self._show_log(key)

    def _show_details(self, key: str) -> None:
        recorded = self.context.recorded is not None
        text = selection_text(key, self.context.state, self.context.catalog, recorded=recorded) if key else Content("")
        self.query_one("#selection", Details).tell(text, self.width)

    def _show_log(self, key: str) -> None:
        log = self.query_one(LogTail)
        log.display = bool(key) and self._log_shown
        if log.display:
            show_titles(log, f"Log of {trial_name(self.subject, self.width - 12)}")
            log.follow(self._rows[key].log_path)

    @property
    def _log_shown(self) -> bool:
        return self.app.size.height >= _TALL if self.log_wanted is None else self.log_wanted

    def can(self, name: str) -> bool:
        """Whether an action does anything just now: most are about the selected row."""
        checks: dict[str, Callable[[], object]] = {
            "log": lambda: self._rows,
            "sort": lambda: self._rows or self.order.query,
            "filter": lambda: (self._rows or self.order.query) and not self.query_one("#filter").has_focus,
            "follow": lambda: self.context.state.running in self._rows and not self.follows,
            "hide": lambda: self.context.state.skipped,
            "copy": self.text_to_copy,
            "undo": lambda: self.context.can_undo,
            "clear_filter": lambda: self.query_one("#filter").display,
            "retry": self._can_retry,
            "accept": partial(self._can_decide, Decision.ACCEPTED),
            "reject": partial(self._can_decide, Decision.REJECTED),
        }
        return name not in checks or bool(checks[name]())

    def _can_retry(self) -> bool:
        """Whether the selected trial has ended, or is a stack that is left to be measured."""
        state, key = self.context.state, self.selected_key
        again = key in state.trials and key not in self.context.waiting
        return self.context.recorded is None and (again or (key == STACK and can_measure_stack(state)))

    def _can_decide(self, decision: Decision) -> bool:
        candidate = self.context.state.candidate(self.selected_key)
        return candidate is not None and can_decide(self.context.state, candidate, decision)

    @property
    def trial(self) -> str:
        return self.selected_key

    def decide(self, decision: Decision) -> None:
        if candidate := self.context.state.candidate(self.selected_key):
            accepted = decision is Decision.ACCEPTED
            value = value_to_accept(self.context.state, candidate) if accepted else None
            self.post_message(Decided(candidate.recipe, decision, value))

    def choose_recipe(self, recipe: str) -> None:
        candidates = {row: self.context.state.candidate(row) for row in self._rows}
        rows = [row for row, candidate in candidates.items() if candidate and candidate.recipe == recipe]
        self.follows = False
        if rows and self.selected_key not in rows:
            self._table.go_to(rows[0])

    def choose_row(self, key: str) -> None:
        """Go to a row, also to one that is hidden or filtered out now."""
        self.follows = False
        if key not in self._rows:
            self.order = replace(self.order, query="", show_skipped=True)
        self._table.go_to(key)

    def watch_order(self) -> None:
        self.show()
        self.refresh_bindings()

    def watch_follows(self, follows: bool) -> None:
        if follows:
            self._table.go_to(self.context.state.running)
        self.refresh_bindings()

    def watch_log_wanted(self) -> None:
        self._show_selection()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.order = self.order.by_next([column for column, _ in fitting_columns(self.width)])

    def action_hide(self) -> None:
        """Hide rows that do not apply, or show them again."""
        self.order = replace(self.order, show_skipped=not self.order.show_skipped)

    def action_filter(self) -> None:
        """Put the cursor into the filter."""
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.focus()

    @on(Input.Changed, "#filter")
    def _on_filter_changed(self, event: Input.Changed) -> None:
        if event.value != self.order.query:
            self.order = replace(self.order, query=event.value)

    @on(Input.Submitted, "#filter")
    def _on_filter_submitted(self) -> None:
        self.query_one("#filter").display = bool(self.order.query)
        self._table.focus()

    def action_clear_filter(self) -> None:
        """Show all rows again."""
        entry = self.query_one("#filter", Input)
        if entry.display:
            entry.value = ""
            self.order = replace(self.order, query="")
            entry.display = False
            self._table.focus()

    def action_follow(self) -> None:
        """Have the cursor and the log follow the running trial."""
        self.follows = True

    def action_log(self) -> None:
        """Show or hide the log."""
        self.log_wanted = not self._log_shown

    def text_to_copy(self) -> str:
        """The settings of the selected row, as a settings file has them."""
        state, key = self.context.state, self.selected_key
        candidate = state.candidate(key)
        settings = state.stack_settings if key == STACK else candidate.settings if candidate else {}
        return Settings(settings).to_yaml() if settings else ""

    def first_focus(self) -> Widget:
        return self._table if self._table.display else self.query_one(Placeholder)


def rows_to_show(rows: Sequence[Row], order: Order, state: SessionState) -> list[Row]:
    """The rows to show, in their order."""
    shown = [row for row in rows if order.show_skipped or order.query or not row.key.startswith(SKIPPED_PREFIX)]
    words = order.query.lower().split()
    shown = [row for row in shown if not words or all(word in _told_by(row, state) for word in words)]
    if not order.column:
        return shown
    pinned = [row for row in shown if row.key in _PINNED]
    others = [row for row in shown if row.key not in _PINNED]
    figures = {row.key: _figure(row.key, order.column, state) for row in others}
    known = [(figure, row) for row in others if (figure := figures[row.key]) is not None]
    known.sort(key=lambda pair: pair[0], reverse=order.largest_first)
    return [*pinned, *(row for _, row in known), *(row for row in others if figures[row.key] is None)]


def _told_by(row: Row, state: SessionState) -> str:
    """A row's name, verdict and reason, to look for words in."""
    record = state.trials.get(row.key)
    verdict = (record.contribution.verdict if record.contribution else verdict_shown(record)) if record else None
    return " ".join([row.key, row.cells[EFFECT].plain, verdict or ""]).lower()


def _figure(key: str, column: str, state: SessionState) -> tuple[float, str] | None:
    """The sort key of a row in a column; None where it has nothing there."""
    if column == NAME:
        return (0.0, key.removeprefix(SKIPPED_PREFIX).lower())
    record = state.trials.get(key)
    if record is None or record.candidate.recipe == CONTROL:
        ended = state.ended.get(key)
        figure = {"step": ended.step_ms, "memory": ended.peak_reserved_bytes}.get(column) if ended else None
    else:
        figure = _figure_of(own_figures(record), column)
    return None if figure is None else (float(figure), key)


def _figure_of(record: TrialRecord, column: str) -> float | None:
    effect = record.contribution or record.comparison
    if column in (EFFECT, "bar"):
        return effect.speedup if effect else None
    if column == "state":
        return _VERDICTS.index(record.verdict)
    if column == "numerics":
        return record.numerics.measured.severity if record.numerics else None
    figures = {"step": record.step_ms, "memory": record.result.peak_reserved_bytes, "start": start_up_s(record.result)}
    return figures[column]
