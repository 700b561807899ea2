"""View 1: the headline, the one ranked list of settings, and the card of the selected one; accept and reject there."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import var
from textual.widgets import Digits, Static

from advisor.experiment.control import RAISE_BUDGET, Decision
from advisor.recipe.settings import Settings
from advisor.report.document import Bullets, Section
from advisor.report.pictures import phase_bars
from advisor.report.rows import Row, Tick
from advisor.report.settings import code_of, setting_sections, stack_blocks
from advisor.report.whole import session_card
from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.keys import key
from advisor.tui.text import line_of
from advisor.tui.views import headline, result_table
from advisor.tui.views.base import LIST_KEYS, ListView
from advisor.tui.views.result_table import TOGETHER
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import TextPane, show_text

_TINY = 16  # a screen of fewer lines


class ResultView(ListView):
    """The headline over the table and the card."""

    BINDINGS = [
        key("result.accept", "a", "accept", "Accept", "Use this setting, even if it changes results"),
        key("result.reject", "r", "reject", "Reject", "Do not use this setting; the rest is measured without it"),
        key("result.undo", "u", "undo", "Undo", "Take back the last decision, one after another"),
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
        if self.context.state.baseline is None:  # until then the headline and the table follow the baseline's trial
            self._show_headline()
            self._show_table()

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
        columns = result_table.columns_of(self.table_width)
        self.table.show(columns, result_table.table_rows(self.context, self.unfolded, columns))
        over = self.context.state.finished is not None
        if not self.table.touched or (over and not self._over):  # at the end the best is selected
            self.table.touched = False
            self.table.go_to(next(iter(self.table.keys), ""))
        self._over = over

    @property
    def row(self) -> Row | None:
        """The selected setting."""
        return self.context.ranking.row(self.selected)

    def card(self) -> tuple[str, tuple[Section, ...]]:
        """The title and the sections of the card: of a setting, of all together, of a folded line, or your own."""
        context, state, row = self.context, self.context.state, self.row
        if row is not None:
            return row.title, tuple(setting_sections(row, state, context.catalog))
        if self.selected == TOGETHER and state.stack is not None:
            blocks = tuple(stack_blocks(state, state.stack))
            return f"{len(state.stack_settings)} settings together", (Section("", blocks),)
        for fold in context.ranking.folds:
            if fold.key == self.selected:
                tries = f"{context.tries} tries it"
                entries = (f"{name}: {reason.replace(RAISE_BUDGET, tries)}" for name, reason in fold.entries)
                return fold.title, (Section("", (Bullets(tuple(entries)),)),)
        return "Your settings", tuple(session_card(state, context.catalog, context.budget_s))

    # --- keys ------------------------------------------------------------------------------------------------

    def can(self, name: str) -> bool:
        if name in ("accept", "reject"):
            return self._can_decide(Decision.ACCEPTED if name == "accept" else Decision.REJECTED)
        if name == "undo":
            return self.controller.can_undo
        return (name == "retry" and self._can_measure_again()) or super().can(name)

    def _can_decide(self, decision: Decision) -> bool:
        row = self.row
        if row is None or not self.context.state.can_decide(row.candidate.recipe):
            return False
        return not (row.rejected if decision is Decision.REJECTED else row.tick in (Tick.ON, Tick.WAITING))

    def _can_measure_again(self) -> bool:
        """Whether the combination is selected, and left to be measured."""
        state = self.context.state
        left = state.finished is not None and not (state.stack and state.stack_settings and state.stack.confirmed)
        return self.selected == TOGETHER and left and self.context.recorded is None

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
        """A click on a tick turns it round."""
        row = self.context.ranking.row(message.row)
        if message.column == "tick" and row is not None and self.context.state.can_decide(row.candidate.recipe):
            used = row.tick in (Tick.ON, Tick.WAITING)
            self._decide(row, Decision.REJECTED if used else Decision.ACCEPTED)

    def action_undo(self) -> None:
        """Take the last decision back."""
        self.controller.undo()

    def action_unfold(self, unfold: bool) -> None:
        """Show what is folded under the selected row, or fold it again."""
        parents = [
            row.key for row in self.context.ranking.rows if any(value.key == self.selected for value in row.values)
        ]
        name = parents[0] if parents else self.selected
        self.unfolded = self.unfolded | {name} if unfold else self.unfolded - {name}
        self.table.go_to(name)

    def watch_unfolded(self) -> None:
        self._show_table()

    def text_to_copy(self) -> str:
        if self.selected == TOGETHER:
            return Settings(self.context.state.stack_settings).to_yaml()
        return code_of(self.row.candidate, self.context.catalog) if self.row else ""
