"""View 2: where a step's time goes, how efficient it is, and what habits cost."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import var
from textual.widget import Widget
from textual.widgets import DataTable, Static

from advisor.experiment.ranking import INSTRUMENTED
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_outcome
from advisor.records import Outcome, Profile, TrialResult
from advisor.report.charts import Plot
from advisor.report.evidence import roof_section
from advisor.report.pictures import phases_chart, roofline_chart, steps_chart
from advisor.report.whole import habits_section
from advisor.tui.context import Context
from advisor.tui.exporting import copy_trace
from advisor.tui.keys import key
from advisor.tui.text import DIM, waiting_text
from advisor.tui.views.base import BROAD, PLOT, View
from advisor.tui.views.report_text import sections_text
from advisor.tui.widgets.lists import Placeholder
from advisor.tui.widgets.operator_table import OperatorTable
from advisor.tui.widgets.phase_bar import PhaseBar
from advisor.tui.widgets.picture_panel import PicturePanel
from advisor.tui.widgets.table import Table
from advisor.tui.widgets.texts import show_text, show_titles

_WAITING = "The profile is taken soon after the baseline."
# The panels under the phase bar, in the order of the key; a narrow screen shows one of them at a time.
_PANELS = ("operators", "roof", "habits")
# On a broad screen: the cells of the panel on efficiency; and those of a panel's frame with its scroll bar.
_ROOF, _FRAME = 44, 5


class ProfileView(View):
    """The phase bar over the operators, the roof and the habits."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("profile.panel", "m", "panel", "More", "Go to the next panel: operators, efficiency, waits and habits"),
        PLOT,
        key("profile.shapes", "g", "shapes", "Shapes", "Group the operators by the shapes of their inputs"),
        key("profile.trace", "t", "trace", "Trace", "Save the Chrome trace of the profiled steps, for ui.perfetto.dev"),
        Binding("escape", "back", "Back", show=False),
    ]

    panel: var[str] = var(_PANELS[0])

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="profile")
        self._there: list[str] = []  # the panels that there is something for

    def compose(self) -> ComposeResult:
        yield Placeholder(id="profile-empty")
        with Vertical(classes="panel", id="phases-panel"):
            yield Static(id="verdict", markup=False)
            yield PhaseBar()
        with Horizontal(id="profile-columns", classes="frame"):
            with Vertical(id="profile-main", classes="frame"):
                with Vertical(classes="panel", id="operators-panel"):
                    yield OperatorTable(id="operators")
                    yield Static(id="operator-row", markup=False)
                with VerticalScroll(classes="panel", id="habits-panel"):
                    yield Static(id="habits", markup=False)
            with VerticalScroll(classes="panel", id="roof-panel"):
                yield Static(id="roof", markup=False)
        yield PicturePanel()

    def on_mount(self) -> None:
        self.query_one("#phases-panel").border_title = "Where a step goes"
        self.query_one("#roof-panel").border_title = "Efficiency"
        self.query_one("#habits-panel").border_title = "Waits and habits"

    @property
    def _table(self) -> OperatorTable:
        return self.query_one("#operators", OperatorTable)

    def show(self) -> None:
        """Draw what is known of the profile: what is not known has no panel."""
        state, profile = self.context.state, self.context.state.profile
        chart, roof = phases_chart(state), list(roof_section(state))
        habits = list(habits_section(state, self.context.catalog)) if profile and not profile.phases_alone else []
        has_rows = profile is not None and bool(profile.operators)
        there = {"phases": chart is not None, "operators": has_rows, "habits": bool(habits), "roof": bool(roof)}
        for name, is_there in there.items():
            self.query_one(f"#{name}-panel").set_class(not is_there, "-missing")
        self.query_one("#profile-main").set_class(not has_rows and not habits, "-missing")
        self.query_one("#profile-columns").set_class(not any(there.values()), "-missing")
        self._there = [panel for panel in _PANELS if there[panel]]
        missing = _missing(state, _WAITING)
        show_text(self.query_one("#profile-empty", Static), Content.styled(missing, DIM))
        self.query_one("#profile-empty").display = not any(there.values())
        phases = self.query_one(PhaseBar)
        phases.chart, phases.device = chart, profile.device_phases if profile else {}
        self._show_verdict(profile)
        for name, sections, width in (("roof", roof, self._roof_width), ("habits", habits, self._habits_width)):
            told = sections_text(sections, width, self.app.theme_variables, titled=False)
            show_text(self.query_one(f"#{name}", Static), told)
        self._table.profile = profile
        if self._there and self.panel not in self._there:
            self.panel = self._there[0]
        self._tell_operators()
        self.show_pictures()

    @property
    def _roof_width(self) -> int:
        return (_ROOF if self.width >= BROAD else self.width) - _FRAME

    @property
    def _habits_width(self) -> int:
        return self.width - (_ROOF if self.width >= BROAD else 0) - _FRAME

    def _show_verdict(self, profile: Profile | None) -> None:
        verdict = self.query_one("#verdict", Static)
        verdict.display = profile is not None and bool(profile.kind_of_step)
        if profile and profile.kind_of_step:
            name = profile.kind_of_step.capitalize()
            show_text(verdict, Content.assemble((name, "bold $accent"), ": ", (profile.evidence, DIM)))

    @on(DataTable.RowHighlighted)
    @on(Table.Reordered)
    def _tell_operators(self) -> None:
        line, table = self.query_one("#operator-row", Static), self._table
        show_titles(self.query_one("#operators-panel"), table.caption)
        line.display = table.by_shape
        show_text(line, table.row_text)

    # --- keys ------------------------------------------------------------------------------------------------

    def can(self, name: str) -> bool:
        """Whether an action is possible: the profile has to hold the data to sort or save."""
        profile = self.context.state.profile
        if name == "plot":
            return bool(self.pictures)
        if name == "back":
            return self.query_one(PicturePanel).is_open
        if profile is None:
            return False
        needed = {
            "panel": len(self._there) > 1,
            "shapes": bool(profile.by_shape),
            "trace": bool(profile.trace_path),
        }
        return needed.get(name, True)

    def action_shapes(self) -> None:
        """Group the operators by the shapes of their inputs, or no longer."""
        self._go_to(_PANELS[0])
        self._table.by_shape = not self._table.by_shape
        self._tell_operators()

    def action_panel(self) -> None:
        """Go to the next of the panels under the phase bar."""
        self._go_to(self._there[(self._there.index(self.panel) + 1) % len(self._there)])

    def make_pictures(self) -> list[Plot]:
        drawn = (roofline_chart(self.context.state), steps_chart(self.context.state))
        return [plot for plot in drawn if plot is not None]

    def make_room(self, *, pictured: bool) -> None:
        """Hide the panels while a picture is shown, and on a short screen the phases too."""
        self.query_one("#profile-columns").display = not pictured
        self.set_class(pictured, "-picture")

    def _go_to(self, panel: str) -> None:
        self.panel = panel
        self.call_after_refresh(self.first_focus().focus)

    def watch_panel(self, before: str, panel: str) -> None:
        self.set_classes(self.classes - {f"-{before}"} | {f"-{panel}"})  # at once: each has all styles looked up

    def first_focus(self) -> Widget:
        picture = self.query_one(PicturePanel)
        if picture.is_open:
            return picture
        if not self._there:
            return self.query_one(Placeholder)
        return self._table if self.panel == _PANELS[0] else self.query_one(f"#{self.panel}-panel")

    def action_back(self) -> None:
        """Leave the plot."""
        self.query_one(PicturePanel).close()
        self.make_room(pictured=False)
        self.first_focus().focus()

    # --- the trace -------------------------------------------------------------------------------------------

    def action_trace(self) -> None:
        """Copy the Chrome trace to where exports go."""
        if self.context.state.profile and self.context.state.profile.trace_path:
            self._copy_trace(Path(self.context.state.profile.trace_path))

    @work(thread=True, group="trace")
    def _copy_trace(self, source: Path) -> None:
        """A trace can be large, so it is copied in a thread."""
        try:
            path = copy_trace(source, Path())
        except OSError as error:
            told = f"{error.strerror or error}: {source.name}"
            self.app.call_from_thread(self.notify, told, title="The trace was not saved", severity="error")
        else:
            self.app.call_from_thread(self.notify, f"{path}; open it in ui.perfetto.dev.", title="Trace saved")


def _missing(state: SessionState, waiting: str) -> str:
    """The reason that a part of the profile is missing: a failed trial, the end of the session, or ``waiting``."""
    ended = state.ended.get(INSTRUMENTED)
    if ended is None or ended.outcome is Outcome.MEASURED or state.running == INSTRUMENTED:
        return waiting_text(state, waiting)
    return f"Not known: {format_outcome(TrialResult(ended.outcome, ended.reason))}."
