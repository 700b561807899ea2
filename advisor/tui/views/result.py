"""View 1: the headline, the ranked settings, and a card about the selected one, which can be accepted or rejected."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import var
from textual.widgets import Digits, Static

from advisor.experiment.control import RAISE_BUDGET, Decision
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_ms, format_within
from advisor.report.document import Section, grouped, section
from advisor.report.pictures import phase_bars
from advisor.report.rows import Figures, Ranking, Row, Tick
from advisor.report.settings import setting_sections, stack_blocks
from advisor.report.whole import session_card
from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.keys import key
from advisor.tui.text import COLOURS, DIM, line_of
from advisor.tui.views import headline
from advisor.tui.views.base import LIST_KEYS, ListView
from advisor.tui.widgets.table import Cell, Column, Table, fitting
from advisor.tui.widgets.texts import TextPane, show_text

_TINY = 16  # a screen of fewer lines


class ResultView(ListView):
    """The headline over the table and the card."""

    number, title = "1", "Result"
    about = "The result so far, and every setting with its figures; accept or reject it"

    BINDINGS = [
        key("result.accept", "a", "accept", "Accept", "Use this setting, even if it changes results"),
        key("result.reject", "r", "reject", "Reject", "Do not use this setting; the rest is measured without it"),
        key("result.unfold", "right,l", "unfold(True)", "Unfold", "Show the other values of the row", show=False),
        key("result.fold", "left", "unfold(False)", "Fold", "Fold the other values of the row", show=False),
        *LIST_KEYS,
    ]

    unfolded: var[frozenset[str]] = var(frozenset(), init=False)

    def __init__(self, context: Context, controller: Controller) -> None:
        super().__init__(context, controller, Table(id="rows"), TextPane(id="card", classes="panel card"))
        self._figure, self._headline = Digits(id="figure"), Static(id="headline-text")
        self._phases, self._alert = Static(id="phases"), Static(id="alert")
        self._over = False

    def compose(self) -> ComposeResult:
        yield from (Horizontal(self._figure, self._headline, id="headline"), self._phases, self._alert)
        yield from super().compose()

    # --- drawing ---------------------------------------------------------------------------------------------

    def show(self) -> None:
        self._show_headline()
        state = self.context.state
        bars, alert = phase_bars(state), headline.alert_text(self.context)
        kind = state.profile.kind_of_step if state.profile else ""
        phases = line_of(bars[0], kind, self.width - 2) if bars else Content("")
        for widget, text in ((self._phases, phases), (self._alert, alert)):
            widget.set_class(not text, "-missing")
            show_text(widget, text)
        self._show_table()
        self.show_card()

    def show_live(self) -> None:
        if self.context.state.baseline is None:  # the headline follows the baseline's trial until it is measured
            self._show_headline()

    def _show_headline(self) -> None:
        found = headline.headline(self.context.state, self.context.ranking, self.context.tries)
        self._figure.set_class(not found.figure, "-missing")
        if self._figure.value != found.figure:
            self._figure.update(found.figure)
        self._figure.styles.color = self.app.theme_variables.get(found.style.removeprefix("$"), "")
        lines = Content("\n").join(found.lines)
        if found.figure and self.app.size.height < _TINY:  # there is no room for large digits
            lines = Content.styled(f"{found.figure} ", f"bold {found.style}") + lines
        show_text(self._headline, lines)

    def _show_table(self) -> None:
        columns = columns_of(self.table_width)
        self.table.show(columns, table_rows(self.context, self.unfolded, columns))
        over = self.context.state.finished is not None
        if not self.table.touched or (over and not self._over):  # the best row is selected when the session ends
            self.table.touched = False
            self.table.go_to(next(iter(self.table.keys), ""))
        self._over = over

    @property
    def row(self) -> Row | None:
        """The selected setting."""
        return self.context.ranking.row(self.selected)

    def card(self) -> tuple[str, tuple[Section, ...]]:
        """The title and sections of the card: a setting's, the combination's, a folded line's or your own settings'."""
        context, state, row = self.context, self.context.state, self.row
        if row is not None:
            return row.title, setting_sections(row, state, context.catalog)
        if self.selected == TOGETHER and state.stack is not None:
            return f"{len(state.stack_settings)} settings together", (section("", *stack_blocks(state)),)
        for fold in context.ranking.folds:
            if fold.key == self.selected:
                tries = f"{context.tries} tries it"
                told = (f"{names}: {reason.replace(RAISE_BUDGET, tries)}" for names, reason in grouped(fold.entries))
                return fold.title, (section("", tuple(told)),)
        return "Your settings", session_card(state, context.catalog, context.budget_s)

    # --- keys ------------------------------------------------------------------------------------------------

    def can(self, name: str) -> bool:
        state, row = self.context.state, self.row
        if name in ("accept", "reject"):
            if row is None or not state.can_decide(row.candidate.recipe):
                return False
            return not (row.rejected if name == "reject" else row.tick in (Tick.ON, Tick.WAITING))
        if name == "retry" and self.selected == TOGETHER:  # only if the combination still has to be measured
            left = state.finished is not None and not (state.stack and state.stack_settings and state.stack.confirmed)
            return left and self.context.recorded is None
        return super().can(name)

    def action_accept(self) -> None:
        """Use the selected setting."""
        self._decide(self.row, Decision.ACCEPTED)

    def action_reject(self) -> None:
        """Leave the selected setting out."""
        self._decide(self.row, Decision.REJECTED)

    def _decide(self, row: Row | None, decision: Decision) -> None:
        if row is None:
            return
        several = sum(each.recipe == row.candidate.recipe for each in self.context.state.candidates.values()) > 1
        value = row.candidate.value if several and decision is Decision.ACCEPTED else None
        self.controller.decide(row.candidate.recipe, decision, value)

    @on(Table.CellClicked)
    def _on_cell_clicked(self, message: Table.CellClicked) -> None:
        """Tick or untick the setting whose tick was clicked."""
        row = self.context.ranking.row(message.row)
        if message.column == "tick" and row is not None and self.context.state.can_decide(row.candidate.recipe):
            used = row.tick in (Tick.ON, Tick.WAITING)
            self._decide(row, Decision.REJECTED if used else Decision.ACCEPTED)

    def action_unfold(self, unfold: bool) -> None:
        """Show the values that are folded under the selected row, or fold them again."""
        rows, name = self.context.ranking.rows, self.selected
        name = next((row.key for row in rows if name in [value.key for value in row.values]), name)
        self.unfolded = self.unfolded | {name} if unfold else self.unfolded - {name}
        self.table.go_to(name)

    def watch_unfolded(self) -> None:
        self._show_table()


# --- the columns and the cells of the ranked list ------------------------------------------------------------------

TOGETHER, YOURS = "together", "yours"
TICKS: Mapping[Tick, tuple[str, str]] = {
    Tick.ON: ("☑", "bold $success"),
    Tick.OFF: ("☐", DIM),
    Tick.WAITING: ("◷", "$accent"),
    Tick.REFUSED: ("☒", "bold $error"),
}

_NAME = Column("name", "setting", 17)
_SPEED = Column("speed", "speed-up", 8, number=True)
_BAR = Column("bar", "interval", 9)
_STEP = Column("step", "step", 8, number=True)
_STEPS = Column("steps", "without → with", 15, number=True)
_MEMORY = Column("memory", "memory", 9, number=True)
_MEMORIES = Column("memories", "memory", 17, number=True)
_NUMERICS = Column("numerics", "numerics", 8)
_TICK = Column("tick", "use", 3)
# The columns in the order in which a wider table gets them; the least important comes last.
_BY_WEIGHT = (_NAME, _SPEED, _TICK, _STEP, _MEMORY, _BAR, _NUMERICS)
_LEFT_TO_RIGHT = (_NAME, _SPEED, _BAR, _STEP, _STEPS, _MEMORY, _MEMORIES, _NUMERICS, _TICK)
_LONGEST_NAME, _WIDEST_BAR = 36, 33


def columns_of(width: int) -> tuple[Column, ...]:
    """The columns for a table of this width: the most important ones that fit."""
    kept, room = fitting(_BY_WEIGHT, width)
    if _NAME not in kept:
        return (replace(_NAME, width=max(1, width - 3)),)
    for narrow, wide in ((_STEP, _STEPS), (_MEMORY, _MEMORIES)):
        if len(kept) == len(_BY_WEIGHT) and room >= wide.width - narrow.width:
            kept[kept.index(narrow)] = wide
            room -= wide.width - narrow.width
    wider = {_NAME: min(max(0, room), _LONGEST_NAME - _NAME.width)}
    wider[_BAR] = min(max(0, room - wider[_NAME]), _WIDEST_BAR - _BAR.width)
    return tuple(replace(one, width=one.width + wider.get(one, 0)) for one in _LEFT_TO_RIGHT if one in kept)


Cells = dict[str, Cell]
Scale = tuple[float, float, int]  # the axis of all intervals: its lowest and highest speed-up, and its width in cells


def table_rows(context: Context, unfolded: Iterable[str], columns: Sequence[Column]) -> dict[str, Cells]:
    """The cells of each row, by the row's key: the combination, the settings, your own settings, the folded lines."""
    ranking, state, open_rows = context.ranking, context.state, set(unfolded)
    rows: dict[str, Cells] = {}
    bar = next((column.width for column in columns if column.key == "bar"), 0)
    scale, width, count = (*_scale(ranking), bar), columns[0].width, len(state.stack_settings)
    if ranking.together and count > 1:
        name = Content.assemble(("★ ", "$accent"), (f"all {count} together", "bold"))
        rows[TOGETHER] = {**_figure_cells(ranking.together, scale), "name": Cell(name, ""), "tick": _ticked(Tick.ON)}
    elif ranking.pending and count:
        name = Content.assemble("  ", (f"{count} together", "bold"))
        rows[TOGETHER] = {"name": Cell(name, ""), "speed": Cell(Content.styled("not yet", "$warning"))}
    for row in ranking.rows:
        is_open = row.key in open_rows or any(value.tick in (Tick.WAITING, Tick.REFUSED) for value in row.values)
        rows[row.key] = row_cells(row, scale, width, unfolded=is_open)
        if is_open:
            rows |= {value.key: row_cells(value, scale, width, inner=True) for value in row.values}
    rows[YOURS] = _own_cells(ranking, state)
    return rows | {fold.key: {"name": Cell(Content.styled(f"  {fold.title}", DIM))} for fold in ranking.folds}


def _own_cells(ranking: Ranking, state: SessionState) -> Cells:
    name = Cell(Content("  your settings"))
    if ranking.step_ms is None:
        return {"name": name}
    step = Cell(Content(format_ms(ranking.step_ms)), ranking.step_ms)
    memory = Cell(Content(format_bytes(state.baseline_bytes)), state.baseline_bytes)
    return {
        "name": name,
        "speed": Cell(Content("1x"), -1.0),
        "bar": Cell(Content.styled(format_within(state.baseline.half_width) if state.baseline else "", DIM)),
        **dict.fromkeys(("step", "steps"), step),
        **dict.fromkeys(("memory", "memories"), memory),
        "numerics": Cell(Content.styled("yours", DIM)),
    }


def row_cells(row: Row, scale: Scale, width: int, *, unfolded: bool = False, inner: bool = False) -> Cells:
    """The cells of a setting's row. A star means recommended; a tick means exported."""
    only = not row.values and not inner
    told = row.candidate.recipe if only and len(row.name) > width - 2 else row.name
    sign = ("★ ", "$accent") if row.star else ("▶ ", "$accent") if row.running else ("  ", "")
    values = f" {'▾' if unfolded else '▸'}{len(row.values)}" if row.values else ""
    style = f"{DIM} strike" if row.rejected else ""
    name = Content.assemble("  " if inner else "", sign, (told, style), (values, DIM))
    cells = {"name": Cell(name, row.name), "tick": _ticked(row.tick, consent=row.consent)}
    if row.figures is not None:
        return _figure_cells(row.figures, scale) | cells
    state = Content.styled("running", "$accent") if row.running else Content.styled("failed", "$warning")
    return cells | {"speed": Cell(state)}


def _ticked(tick: Tick, *, consent: bool = False) -> Cell:
    sign, style = TICKS[tick]
    text = Content.assemble((f" {sign}", style), ("!", "$warning") if consent and tick is Tick.OFF else "")
    return Cell(text, float(list(Tick).index(tick)))


def _figure_cells(figures: Figures, scale: Scale) -> Cells:
    colour = COLOURS.get(figures.verdict, DIM)
    peak, numerics = figures.memory_bytes[1], figures.numerics
    worse = numerics is not None and numerics.worse_than_declared
    gain, bold = -figures.effect.speedup, f"bold {colour}" if colour != DIM else DIM
    measured = Content.styled(numerics.measured.value if numerics else "unknown", "$error" if worse else "")
    return {
        "speed": Cell(Content.styled(figures.speed, bold), gain),
        "bar": Cell(Content.styled(_drawn(figures, scale), colour), gain),
        "step": Cell(Content(format_ms(figures.after_ms)), figures.after_ms),
        "steps": Cell(Content(figures.steps), figures.after_ms),
        "memory": Cell(Content(format_bytes(peak)), peak),
        "memories": Cell(Content(figures.memory), peak),
        "numerics": Cell(measured, float(numerics.measured.severity) if numerics else None),
    }


def _scale(ranking: Ranking) -> tuple[float, float]:
    """The lowest and highest speed-up of the axis; an interval reaches at most 1.5 times beyond its speed-up."""
    effects = [known.effect for known in (ranking.together, *(row.figures for row in ranking.rows)) if known]
    low = min([0.9, *(max(effect.ci_low, effect.speedup / 1.5) for effect in effects)])
    high = max([1.25, *(min(effect.ci_high, effect.speedup * 1.5) for effect in effects)])
    return max(0.05, low), max(high, 1.1 * max(0.05, low))


def _drawn(figures: Figures, scale: Scale) -> str:
    """Draw an interval on a logarithmic axis, with 1x marked: ``│ ─●─``; ``○`` stands for an unconfirmed speed-up."""
    (low, high, width), effect = scale, figures.effect
    if not width or not all(map(math.isfinite, scale)):
        return ""

    def place(ratio: float) -> int:
        share = math.log(max(ratio, 1e-6) / low) / math.log(high / low)
        return round(max(0.0, min(1.0, share)) * (width - 1))

    begin, middle, end = (place(ratio) for ratio in (effect.ci_low, effect.speedup, effect.ci_high))
    cells = [" "] * width
    cells[place(1.0)] = "│"
    cells[begin : end + 1] = "─" * (end + 1 - begin)
    cells[middle] = "●" if figures.confirmed else "○"
    return "".join(cells)
