"""View 3: everything that ran, in the order in which it began, and the log of the selected trial."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.reactive import var
from textual.widget import Widget
from textual.widgets import DataTable, Static

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_outcome, format_seconds
from advisor.recipe.settings import Settings
from advisor.records import Outcome, TrialResult
from advisor.report.pictures import block_times
from advisor.report.several_gpus import row_details, row_of
from advisor.tui.context import Context
from advisor.tui.keys import key
from advisor.tui.messages import RetryWanted
from advisor.tui.text import DIM, sparkline, trial_label, trial_name, waiting_text
from advisor.tui.views.base import COPY, View
from advisor.tui.views.readings import energy_text, live_state, readings_text, remarks
from advisor.tui.widgets.lists import Placeholder
from advisor.tui.widgets.log_tail import LogTail
from advisor.tui.widgets.table import Column, Table, fitting
from advisor.tui.widgets.texts import Details, show_text, show_titles

_TALL, _WIDEST = 30, 200
# The widest line of step times, in cells.
_SPARK = 24
_NUMBER = Column("number", "#", 3, number=True)
_NAME = Column("name", "trial", 18)
_OUTCOME = Column("outcome", "outcome", 13)
_STEP = Column("step", "step", 8, number=True)
_MEMORY = Column("memory", "memory", 9, number=True)
_TOOK = Column("took", "took", 8, number=True)
_BY_WEIGHT = (_NAME, _OUTCOME, _STEP, _MEMORY, _NUMBER, _TOOK)


@dataclass(frozen=True, slots=True)
class Run:
    """A trial that has begun: its number, how it ended, and its figures. Without an outcome it still runs."""

    number: int
    name: str
    outcome: Outcome | None
    reason: str = ""
    step_ms: float | None = None
    peak_bytes: int | None = None
    wall_s: float | None = None
    log_path: str = ""


def runs_of(state: SessionState) -> list[Run]:
    """All that ran, in the order in which it began."""
    ran = [name for name, record in state.trials.items() if record.alone and state.has_run(name)]
    return [_run(number, name, state) for number, name in enumerate(dict.fromkeys([*state.logs, *ran]), 1)]


def _run(number: int, name: str, state: SessionState) -> Run:
    ended, record, log_path = state.ended.get(name), state.trials.get(name), state.logs.get(name, "")
    if name == state.running:
        return Run(number, name, None, log_path=log_path)
    if ended is not None:
        figures = ended.step_ms, ended.peak_reserved_bytes, ended.wall_s
        return Run(number, name, ended.outcome, ended.reason, *figures, log_path)
    result = state.baseline.result if name == "baseline" and state.baseline else record.result if record else None
    if result is None:
        return Run(number, name, Outcome.CANCELLED if state.finished else None, log_path=log_path)
    step_ms = median(block_times(result)) if result.blocks else None
    figures = step_ms, result.peak_reserved_bytes, result.wall_s
    return Run(number, name, result.outcome, result.reason, *figures, log_path or result.log_path)


class TrialsView(View):
    """The table, what is known of the selected trial, and its log. The cursor follows what runs until it is moved."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("trials.log", "l", "log", "Log", "Show or hide the log of the selected trial"),
        key("trial.retry", "t", "retry", "Retry", "Run the selected trial again"),
        COPY,
        Binding("escape", "back", "Back", show=False),
    ]

    log_wanted: var[bool | None] = var(None, init=False)

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="trials")
        self._runs: dict[str, Run] = {}

    def compose(self) -> ComposeResult:
        yield Placeholder(id="trials-empty")
        yield Table(id="trials-table")
        yield Details(id="selection")
        yield LogTail(id="log")

    @on(Table.Reordered)
    def show(self) -> None:
        state, table = self.context.state, self._table
        self._runs = {run.name: run for run in table.order.sort(runs_of(state), self._figure)}
        nothing = Content.styled(waiting_text(state, "Nothing has run yet."), DIM)
        show_text(self.query_one("#trials-empty", Static), nothing)
        self.query_one("#trials-empty").display = not self._runs
        table.display = bool(self._runs)
        columns = self._columns()
        width = next(column.width for column in columns if column.key == "name")
        table.show(columns, {name: self._cells(run, width) for name, run in self._runs.items()})
        if not table.touched:
            table.go_to(state.running or next(reversed(self._runs), ""))
        self._show_selection()

    def _figure(self, run: Run) -> float | str | None:
        column = self._table.order.column
        figures = {"step": run.step_ms, "memory": run.peak_bytes, "took": run.wall_s, "number": float(run.number)}
        if column in figures:
            return figures[column]
        return run.name if column == "name" else run.outcome or "" if column else 0.0

    def _columns(self) -> list[Column]:
        kept, room = fitting(_BY_WEIGHT, self.width)
        name = Column(_NAME.key, _NAME.label, _NAME.width + max(0, room - 2))
        return [name if column is _NAME else column for column in (_NUMBER, *_BY_WEIGHT[:4], _TOOK) if column in kept]

    def _cells(self, run: Run, width: int) -> dict[str, Content]:
        running = run.outcome is None and self.context.state.finished is None
        ended = "running" if running else (run.outcome or Outcome.CANCELLED).value.replace("_", " ")
        failed = run.outcome not in (None, Outcome.MEASURED)
        return {
            "number": Content.styled(str(run.number), DIM),
            "name": Content.styled(trial_label(run.name, self.context.state, width), "$accent" if running else ""),
            "outcome": Content.styled(ended, "$accent" if running else "$warning" if failed else DIM),
            "step": Content(format_ms(run.step_ms) if run.step_ms is not None else ""),
            "memory": Content(format_bytes(run.peak_bytes) if run.peak_bytes is not None else ""),
            "took": Content.styled(format_seconds(run.wall_s) if run.wall_s is not None else "", DIM),
        }

    def show_live(self) -> None:
        """Follow the running trial where it is selected, and the log."""
        if self.selected == self.context.state.running:
            self._show_details()
        self.query_one(LogTail).poll()

    @property
    def _table(self) -> Table:
        return self.query_one("#trials-table", Table)

    @property
    def selected(self) -> str:
        """The name of the selected trial."""
        return self._table.cursor_key

    @property
    def subject(self) -> str:
        return self.selected

    @on(DataTable.RowHighlighted)
    def _on_row_highlighted(self) -> None:
        self._show_selection()
        self.refresh_bindings()

    def on_key(self, event: events.Key) -> None:
        """At the end of the list the cursor follows what runs again."""
        if event.key == "end":
            self._table.touched = False

    @on(DataTable.RowSelected)
    def _on_row_selected(self) -> None:
        """Enter goes into the log; Escape comes back."""
        self.log_wanted = True
        self.query_one(LogTail).focus()

    def _show_selection(self) -> None:
        self._show_details()
        log, run = self.query_one(LogTail), self._runs.get(self.selected)
        log.display = run is not None and self._log_shown
        if run is not None and log.display:
            show_titles(log, f"Log of {trial_name(run.name, self.width - 12)}")
            log.follow(run.log_path)

    def _show_details(self) -> None:
        run, details = self._runs.get(self.selected), self.query_one("#selection", Details)
        details.display = run is not None
        if run is not None:
            details.tell(Content("\n").join(details_of(run, self.context.state)), self.width)

    @property
    def _log_shown(self) -> bool:
        return self.app.size.height >= _TALL if self.log_wanted is None else self.log_wanted

    def can(self, name: str) -> bool:
        """Whether an action does anything just now: most are about the selected row."""
        if name == "back":
            return self.query_one(LogTail).has_focus
        if name == "retry":
            is_there = self.selected in self.context.state.trials and self.selected not in self.context.waiting
            return is_there and self.context.recorded is None
        return bool(self.text_to_copy() if name == "copy" else self._runs)

    def action_retry(self) -> None:
        """Ask for the selected trial to run again."""
        self.post_message(RetryWanted(self.selected))

    def choose(self, name: str) -> None:
        self._table.touched = True
        self._table.go_to(name)

    def watch_log_wanted(self) -> None:
        self._show_selection()

    def action_back(self) -> None:
        """Leave the log."""
        self.first_focus().focus()

    def action_log(self) -> None:
        """Show or hide the log."""
        self.log_wanted = not self._log_shown

    def text_to_copy(self) -> str:
        """The settings of the selected trial, as a settings file has them."""
        candidate = self.context.state.candidates.get(self.selected)
        return Settings(candidate.settings).to_yaml() if candidate else ""

    def first_focus(self) -> Widget:
        return self._table if self._table.display else self.query_one(Placeholder)


def details_of(run: Run, state: SessionState) -> list[Content]:
    """The lines about a trial: its whole name, how it ended, its steps, the GPU's readings and remarks."""
    record = state.trials.get(run.name)
    lines = [Content.styled(trial_name(run.name, _WIDEST), "bold")]
    if run.name == state.running:
        return [*lines, Content.styled("running: ", DIM) + live_state(state)]
    if row := row_of(state.scaling, run.name):
        lines.append(Content.styled(row_details(row), DIM))
    elif run.outcome not in (None, Outcome.MEASURED):
        lines.append(Content.styled(format_outcome(TrialResult(run.outcome, run.reason)), "$warning"))
    if record is None or not record.alone:
        return lines
    result = record.result
    if result.hint:
        lines.append(Content.styled(result.hint, DIM))
    if len(result.blocks) > 1:
        baseline = [("baseline", state.baseline.result)] if state.baseline else []
        timed = [_sparkline(name, one) for name, one in [("steps", result), *baseline] if len(one.blocks) > 1]
        lines.append(Content("   ").join(timed))
    read = [text for text in (energy_text(result, state.baseline), readings_text(result.gpu)) if text is not None]
    lines += [Content.styled("  ·  ", DIM).join(read)] if read else []
    return lines + [Content.assemble((f"{label} ", DIM), text) for label, text in remarks(result)]


def _sparkline(name: str, result: TrialResult) -> Content:
    """Half as high as it can be is the median, the top is a tenth above it: a steady trial is a level line."""
    times = block_times(result)
    usual = median(times)
    drawn = [100 * (0.5 + (time - usual) / (0.2 * usual)) for time in times] if usual else []
    shown = sparkline([min(99.0, max(0.0, value)) for value in drawn], min(_SPARK, len(drawn)))
    spread = f" {' to '.join(dict.fromkeys((format_ms(min(times)), format_ms(max(times)))))}"
    return Content.assemble((f"{name} ", DIM), (shown, "$primary"), (spread, DIM))
