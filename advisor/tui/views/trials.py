"""View 3: everything that ran, in the order in which it began, and the log of the selected trial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from advisor.report.figures import energy_words, gpu_sentence, sparkline, step_series
from advisor.report.pictures import block_times
from advisor.report.several_gpus import row_details, row_of
from advisor.tui.context import Context
from advisor.tui.keys import key
from advisor.tui.messages import RetryWanted
from advisor.tui.text import DIM, trial_label, trial_name, waiting_text
from advisor.tui.views.base import COPY, View
from advisor.tui.widgets.lists import Placeholder
from advisor.tui.widgets.log_tail import LogTail
from advisor.tui.widgets.table import Cell, Column, Table, fitting
from advisor.tui.widgets.texts import Details, show_text, show_titles

_TALL, _WIDEST = 30, 200
# The widest lines of step times: of a trial that has ended, and of the one that runs. Cells.
_SPARK, _LIVE_SPARK = 24, 16
_NUMBER = Column("number", "#", 3, number=True)
_NAME = Column("name", "trial", 18)
_OUTCOME = Column("outcome", "outcome", 13)
_STEP = Column("step", "step", 8, number=True)
_MEMORY = Column("memory", "memory", 9, number=True)
_TOOK = Column("took", "took", 8, number=True)
_BY_WEIGHT = (_NAME, _OUTCOME, _STEP, _MEMORY, _NUMBER, _TOOK)


@dataclass(frozen=True, slots=True)
class Run:
    """A trial that has begun: its number, and its result as far as it is known; without one it still runs."""

    number: int
    name: str
    log_path: str
    result: TrialResult | None = None
    step_ms: float | None = None


def runs_of(state: SessionState) -> list[Run]:
    """All that ran, in the order in which it began."""
    ran = [name for name, record in state.trials.items() if record.alone and state.has_run(name)]
    return [_run(number, name, state) for number, name in enumerate(dict.fromkeys([*state.logs, *ran]), 1)]


def _run(number: int, name: str, state: SessionState) -> Run:
    ended, record, log_path = state.ended.get(name), state.trials.get(name), state.logs.get(name, "")
    if name == state.running:
        return Run(number, name, log_path)
    if ended is not None:
        peak_bytes, wall_s = ended.peak_reserved_bytes, ended.wall_s
        result = TrialResult(ended.outcome, ended.reason, peak_reserved_bytes=peak_bytes, wall_s=wall_s)
        return Run(number, name, log_path, result, ended.step_ms)
    known = state.baseline.result if name == "baseline" and state.baseline else record.result if record else None
    if known is None:
        return Run(number, name, log_path, TrialResult(Outcome.CANCELLED) if state.finished else None)
    step_ms = median(block_times(known)) if known.blocks else None
    return Run(number, name, log_path or known.log_path, known, step_ms)


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

    def show(self) -> None:
        state, table = self.context.state, self._table
        self._runs = {run.name: run for run in runs_of(state)}
        nothing = Content.styled(waiting_text(state, "Nothing has run yet."), DIM)
        show_text(self.query_one("#trials-empty", Static), nothing)
        self.query_one("#trials-empty").display = not self._runs
        table.display = bool(self._runs)
        kept, room = fitting(_BY_WEIGHT, self.width)
        name = replace(_NAME, width=_NAME.width + max(0, room - 2))
        columns = [name if each is _NAME else each for each in (_NUMBER, *_BY_WEIGHT[:4], _TOOK) if each in kept]
        table.show(columns, {run.name: self._cells(run, name.width) for run in self._runs.values()})
        if not table.touched:
            table.go_to(state.running or next(reversed(self._runs), ""))
        self._show_selection()

    def _cells(self, run: Run, width: int) -> dict[str, Cell]:
        result, running = run.result, run.result is None and self.context.state.finished is None
        ended = "running" if running else (result.outcome if result else Outcome.CANCELLED).value.replace("_", " ")
        well = result is None or result.outcome is Outcome.MEASURED
        style = "$accent" if running else DIM if well else "$warning"
        peak, wall_s = (result.peak_reserved_bytes, result.wall_s) if result else (None, None)
        name = Content.styled(trial_label(run.name, self.context.state, width), "$accent" if running else "")
        return {
            "number": Cell(Content.styled(str(run.number), DIM), run.number),
            "name": Cell(name, run.name),
            "outcome": Cell(Content.styled(ended, style), ended),
            "step": Cell(Content(format_ms(run.step_ms) if run.step_ms is not None else ""), run.step_ms),
            "memory": Cell(Content(format_bytes(peak) if peak is not None else ""), peak),
            "took": Cell(Content.styled(format_seconds(wall_s) if wall_s is not None else "", DIM), wall_s),
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

    subject = selected

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

    watch_log_wanted = _show_selection

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


def details_of(run: Run, state: SessionState) -> Iterator[Content]:
    """The lines about a trial: its whole name, how it ended, its steps, the GPU's readings and remarks."""
    yield Content.styled(trial_name(run.name, _WIDEST), "bold")
    record, baseline = state.trials.get(run.name), state.baseline.result if state.baseline else None
    if run.name == state.running:
        yield Content.styled("running: ", DIM) + live_state(state)
        return
    if row := row_of(state.scaling, run.name):
        yield Content.styled(row_details(row), DIM)
    elif run.result and run.result.outcome is not Outcome.MEASURED:
        yield Content.styled(format_outcome(run.result), "$warning")
    if record is None or not record.alone:
        return
    result = record.result
    if result.hint:
        yield Content.styled(result.hint, DIM)
    if len(result.blocks) > 1:
        beside = [("baseline", baseline)] if baseline and len(baseline.blocks) > 1 else []
        yield Content("   ").join(_steps(name, one) for name, one in [("steps", result), *beside])
    gpu = gpu_sentence(result.gpu) if result.gpu and result.gpu.samples else ""
    if read := [text for text in (energy_words(result, baseline), gpu) if text]:
        yield Content("  ·  ".join(read))
    if result.disturbed:
        yield Content.styled(f"! Unreliable: {result.disturbed}.", "$warning")
    yield from (Content.assemble(("Note ", DIM), note) for note in result.notes)


def _steps(name: str, result: TrialResult) -> Content:
    """The step times of a trial: a steady one is a level line."""
    times = block_times(result)
    spread = " to ".join(dict.fromkeys((format_ms(min(times)), format_ms(max(times)))))
    return Content.assemble((f"{name} ", DIM), (step_series(times, _SPARK), "$primary"), (f" {spread}", DIM))


def live_state(state: SessionState) -> Content:
    """Return the running trial's state and its latest step times: ``measuring ▄▄▄ 25.5 ms, baseline 32.6 ms``.

    The baseline's step is half as high as can be; where its batch has another size, the trial's own median.
    """
    doing = Content.styled(state.activity, "$accent")
    if not state.live_ms:
        return doing
    baseline, step_ms = state.baseline, median(state.live_ms)
    comparable = baseline is not None and baseline.result.batch_size in (None, state.live_samples)
    usual_ms = baseline.step_ms if baseline and comparable else step_ms
    line = sparkline(state.live_ms, min(_LIVE_SPARK, len(state.live_ms)), top=2 * usual_ms)
    beside = f", baseline {format_ms(usual_ms)}" if comparable else ""
    return doing + Content.assemble(" ", (line, "$primary"), f" {format_ms(step_ms)}", (beside, DIM))
