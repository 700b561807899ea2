"""View 2, where a step's time goes: the operators, the phases, the efficiency, the waits and the habits."""

from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from advisor.experiment.ranking import INSTRUMENTED
from advisor.figures.formatting import format_count, format_ms, format_outcome
from advisor.records import OperatorRow, Outcome, Profile, TrialResult
from advisor.report.document import section
from advisor.report.figures import by_own_time
from advisor.report.pictures import phase_bars
from advisor.report.whole import profile_sections
from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.text import BROAD, DIM, bars, waiting_text
from advisor.tui.views.base import View
from advisor.tui.widgets.table import Cell, Column, Table
from advisor.tui.widgets.texts import TextPane, show_text

_WAITING = "The profile is taken soon after the baseline."
_DEVICE = Column("device", "GPU", 8, number=True)
_HOST = Column("host", "host", 8, number=True)
_CALLS = Column("calls", "calls", 6, number=True)
_LEAST_NAME = 14
_FRAME = 4  # cells of a panel's border and padding


class ProfileView(View):
    """The phases as bars, and under them the operators and the report's sections; Tab goes from one to the other."""

    number, title = "2", "Profile"
    about = "Where one step spends its time, and what the machine could do"

    def __init__(self, context: Context, controller: Controller) -> None:
        super().__init__(context, controller)
        self._step = Static(id="step")
        self._table, self._sections = Table(id="operators"), TextPane(id="sections")
        self._operators = Vertical(self._table, classes="panel", id="operators-panel")

    def compose(self) -> ComposeResult:
        yield self._step
        yield Container(self._operators, self._sections, id="profile-columns", classes="frame")

    def show(self) -> None:
        """Draw the profile as far as it is known. A part that is not known has no panel."""
        state, profile = self.context.state, self.context.state.profile
        ended, waiting = state.ended.get(INSTRUMENTED), waiting_text(state, _WAITING)
        if ended and ended.outcome is not Outcome.MEASURED and state.running != INSTRUMENTED:
            waiting = f"Not known: {format_outcome(TrialResult(ended.outcome, ended.reason))}."
        has_rows = profile is not None and bool(profile.operators)
        self.set_class(not has_rows, "-without-operators")
        phases, lines = phase_bars(state), []
        if profile and profile.kind_of_step:
            kind = profile.kind_of_step.capitalize()
            lines.append(Content.assemble((kind, "bold $accent"), ": ", (profile.evidence, DIM)))
        if phases:
            lines.append(bars(phases, self.width - 2))
        text = Content("\n").join(lines)
        show_text(self._step, text)
        self._step.set_class(not text, "-missing")
        found = profile_sections(state, self.context.catalog, waiting)
        self._sections.set_class(bool(found), "panel")  # no frame before there are results
        self._sections.show(found or (section("", waiting),))
        self._show_operators(profile)

    def _show_operators(self, profile: Profile | None) -> None:
        """Draw the operators, the longest first. There is no GPU column if the model runs on the CPU."""
        on_device, rows = by_own_time(() if profile is None else profile.operators)
        figures = [*([_DEVICE] if on_device else []), _HOST, _CALLS]
        room = self.width // (2 if self.width >= BROAD else 1) - _FRAME - 3 - sum(one.width + 2 for one in figures)
        columns = [Column("name", "operator", max(_LEAST_NAME, room)), *figures]
        self._table.show(columns, {str(place): _cells(row) for place, row in enumerate(rows)})
        self._operators.border_title = "Operators, per step"

    def first_focus(self) -> Widget:
        return self._sections if self.has_class("-without-operators") else self._table


def _cells(row: OperatorRow) -> dict[str, Cell]:
    return {
        "name": Cell(Content(row.name.removeprefix("aten::")), row.name),
        "device": Cell(Content(format_ms(row.device_ms)), -row.device_ms),
        "host": Cell(Content(format_ms(row.host_ms)), -row.host_ms),
        "calls": Cell(Content(format_count(row.calls)), -row.calls),
    }
