"""View 3: all trials that ran, in the order in which they began, and the log of the selected trial."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from textual.content import Content
from textual.widget import Widget

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_outcome, format_seconds
from advisor.records import Outcome, TrialResult
from advisor.report.document import Inline, Section, pairs, section
from advisor.report.figures import block_words, energy_words, gpu_words
from advisor.report.settings import doubts_and_notes
from advisor.report.several_gpus import row_words
from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.keys import key
from advisor.tui.text import DIM, LISTED, trial_name, waiting_text
from advisor.tui.views.base import LIST_KEYS, ListView
from advisor.tui.widgets.table import Cell, Column, Table, fitting
from advisor.tui.widgets.texts import LogTail, TextPane

# Cells for a sparkline of step times, and for the full name of a trial.
_SPARK, _WIDEST = 24, 200
_NUMBER = Column("number", "#", 3, number=True)
_NAME = Column("name", "trial", 18)
_OUTCOME = Column("outcome", "outcome", 13)
_STEP = Column("step", "step", 8, number=True)
_MEMORY = Column("memory", "memory", 9, number=True)
_TOOK = Column("took", "took", 8, number=True)
_BY_WEIGHT = (_NAME, _OUTCOME, _STEP, _MEMORY, _NUMBER, _TOOK)


@dataclass(frozen=True, slots=True)
class Run:
    """A trial that has begun, and its result as far as known; ``result`` is None while it runs."""

    name: str
    log_path: str
    result: TrialResult | None = None
    step_ms: float | None = None


def runs_of(state: SessionState) -> list[Run]:
    """All trials that ran, in the order in which they began."""
    ran = [name for name, record in state.trials.items() if record.alone and state.has_run(name)]
    return [_run(name, state) for name in dict.fromkeys([*state.logs, *ran])]


def _run(name: str, state: SessionState) -> Run:
    ended, record, log_path = state.ended.get(name), state.trials.get(name), state.logs.get(name, "")
    if name == state.running:
        return Run(name, log_path)
    if ended is not None:
        peak_bytes, wall_s = ended.peak_reserved_bytes, ended.wall_s
        result = TrialResult(ended.outcome, ended.reason, peak_reserved_bytes=peak_bytes, wall_s=wall_s)
        return Run(name, log_path, result, ended.step_ms)
    known = state.baseline.result if name == "baseline" and state.baseline else record.result if record else None
    if known is None:
        return Run(name, log_path, TrialResult(Outcome.CANCELLED) if state.finished else None)
    step_ms = median(block.step_ms for block in known.blocks) if known.blocks else None
    return Run(name, log_path or known.log_path, known, step_ms)


class TrialsView(ListView):
    """The table, a card about the selected trial, and its log. The cursor follows the running trial until moved."""

    number, title = "3", "Trials"
    about = "Everything that ran, with its log"

    BINDINGS = [
        key("trials.log", "l", "read", "Log", "Go into the log of the selected trial; Escape comes back"),
        *LIST_KEYS,
    ]

    def __init__(self, context: Context, controller: Controller) -> None:
        table, pane, log_tail = Table(id="trials-table"), TextPane(id="selection", classes="panel card"), LogTail()
        super().__init__(context, controller, table, pane, log_tail)
        self.log_tail = log_tail
        self._runs: dict[str, Run] = {}

    def show(self) -> None:
        state = self.context.state
        self._runs = {run.name: run for run in runs_of(state)}
        self._show_table()
        if not self.table.touched:
            self.table.go_to(state.running or next(reversed(self._runs), ""))
        self.show_card()

    def _show_table(self) -> None:
        kept, room = fitting(_BY_WEIGHT, self.table_width)
        name = replace(_NAME, width=_NAME.width + max(0, room - 2))
        columns = [name if each is _NAME else each for each in (_NUMBER, *_BY_WEIGHT[:4], _TOOK) if each in kept]
        first, numbered = (
            next((name for name in self._runs if name.startswith(LISTED)), ""),
            enumerate(self._runs.values(), 1),
        )
        self.table.show(columns, {run.name: self._cells(number, run, (name.width, first)) for number, run in numbered})

    def _cells(self, number: int, run: Run, short: tuple[int, str]) -> dict[str, Cell]:
        result, state = run.result, self.context.state
        running = result is None and state.finished is None
        ended = "running" if running else (result.outcome if result else Outcome.CANCELLED).value.replace("_", " ")
        well = result is None or result.outcome is Outcome.MEASURED
        style = "$accent" if running else DIM if well else "$warning"
        peak, wall_s = (result.peak_reserved_bytes, result.wall_s) if result else (None, None)
        step_ms = median(state.live_ms) if run.name == state.running and state.live_ms else run.step_ms
        name = Content.styled(trial_name(run.name, *short), "$accent" if running else "")
        return {
            "number": Cell(Content.styled(str(number), DIM), number),
            "name": Cell(name, run.name),
            "outcome": Cell(Content.styled(ended, style), ended),
            "step": Cell(Content.styled(format_ms(step_ms) if step_ms is not None else "", style), step_ms),
            "memory": Cell(Content(format_bytes(peak) if peak is not None else ""), peak),
            "took": Cell(Content.styled(format_seconds(wall_s) if wall_s is not None else "", DIM), wall_s),
        }

    def show_live(self) -> None:
        """Draw the running trial's steps and the end of the log."""
        if self.context.state.running:
            self._show_table()
        self.log_tail.poll()

    def card(self) -> tuple[str, tuple[Section, ...]]:
        run = self._runs.get(self.selected)
        self.log_tail.set_class(run is None, "-missing")
        if run is None:
            return "", (section("", waiting_text(self.context.state, "Nothing has run yet.")),)
        self.log_tail.follow(run.log_path)
        return trial_name(run.name, _WIDEST), (section("", pairs(details_of(run, self.context.state))),)

    def can(self, name: str) -> bool:
        return bool(self._runs) if name == "read" else super().can(name)

    def second_focus(self) -> Widget:
        return self.log_tail if self._runs else self.pane


def details_of(run: Run, state: SessionState) -> Iterator[tuple[str, Inline]]:
    """The lines about a trial: how it ended, its step times, the GPU's readings, doubts and notes."""
    record, baseline = state.trials.get(run.name), state.baseline.result if state.baseline else None
    if run.name == state.running:
        yield "Now", "running"
        return
    rows = state.scaling.rows if state.scaling else ()
    if several := next((row for row in rows if row.trial == run.name), None):
        yield "GPUs", row_words(several)
    elif run.result:
        yield "Ended", format_outcome(run.result)
    if record is None or not record.alone:
        return
    result = record.result
    if result.hint:
        yield "Hint", result.hint
    if len(result.blocks) > 1:
        spread, series = block_words([block.step_ms for block in result.blocks], _SPARK)
        yield "Steps", f"{series} {spread}"  # steady steps draw a level line
    if energy := energy_words(result.energy_j_per_sample, baseline.energy_j_per_sample if baseline else None):
        yield "Energy", energy
    if result.gpu and (readings := gpu_words(result.gpu)):
        yield "GPU", readings
    yield from doubts_and_notes(result, state)
