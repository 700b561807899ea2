"""View 1: the machine, the workload, the baseline, what limits the step, and the headline."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, ScrollableContainer, Vertical
from textual.widget import Widget
from textual.widgets import Static

from advisor.records import ClockCheck
from advisor.report.evidence import clock_sentences
from advisor.report.pictures import all_reduce_chart
from advisor.report.waterfall import waterfall_chart
from advisor.tui.context import Context
from advisor.tui.views import overview_facts
from advisor.tui.views.base import View
from advisor.tui.views.headline import headline
from advisor.tui.widgets.fact_list import Fact, FactList
from advisor.tui.widgets.picture_panel import Picture, PicturePanel
from advisor.tui.widgets.texts import show_text, show_titles

_BROAD = 100
_OVERLAP = "they overlap: each bar runs from the stack without it to the stack"


class Headline(Static, can_focus=True):
    """The result. It has the focus for scrolling, not the view: Textual restyles all in a focused widget."""


class OverviewView(View):
    """The headline above two columns of panels."""

    BINDINGS: ClassVar[list[BindingType]] = list(ScrollableContainer.BINDINGS)

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="overview")

    def compose(self) -> ComposeResult:
        yield Static(id="plan", markup=False)
        yield Static(id="live", markup=False)
        yield Headline(id="headline", classes="panel")
        yield _titled("What each setting adds", Static(id="waterfall", markup=False))
        with Horizontal(id="overview-columns", classes="frame"):
            with Vertical(classes="column frame", id="measured"):
                yield _titled("Baseline", FactList(id="baseline"))
                yield _titled("Workload", FactList(id="workload"))
            with Vertical(classes="column frame"):
                yield _titled("Hardware", FactList(id="hardware"))
                yield _titled("Notes", FactList(id="notes"))
        yield PicturePanel()
        with Vertical(id="clocks-panel", classes="panel") as clocks:
            clocks.border_title = "Timing cross-check"
            yield FactList(id="clocks", label_width=25)
            yield Static(id="clock-words", markup=False)
        yield _titled("Found in your source", FactList(id="source", label_width=2))

    def show(self) -> None:
        state = self.context.state
        self.show_live()
        show_text(self.query_one("#headline", Static), headline(state, self.context.kept_trials))
        show_titles(self.query_one("#headline"), "Result", overview_facts.what_is_measured(state.facts))
        self._show_waterfall()
        _show_or_hide(
            self.query_one("#baseline", FactList),
            overview_facts.baseline_facts(state.baseline, state.facts, state.stack),
        )
        _show_or_hide(
            self.query_one("#workload", FactList), overview_facts.workload_facts(state.facts, self.context.defaults)
        )
        self.query_one("#measured").display = bool(state.facts or state.baseline)
        machine = overview_facts.hardware_facts(state.hardware, self.context.device_uuid, short=self.width < _BROAD)
        _show_or_hide(self.query_one("#hardware", FactList), machine)
        self._show_all_reduce()
        self.query_one("#notes", FactList).show(
            overview_facts.note_lines(state, self.context.request.goal, self.context.budget_s)
        )
        self._show_clocks(state.profile.clock if state.profile else None)
        _show_or_hide(self.query_one("#source", FactList), overview_facts.source_facts(state))

    def show_live(self) -> None:
        state = self.context.state
        plan = overview_facts.plan_text(state, self.context.budget_s, self.context.expected_end)
        self.query_one("#plan").display = self.query_one("#live").display = bool(plan)
        show_text(self.query_one("#live", Static), overview_facts.doing_text(state, self.width - 4), layout=False)
        show_text(self.query_one("#plan", Static), plan)
        if state.baseline is None:  # until then the headline says whether the model is being loaded
            show_text(self.query_one("#headline", Static), headline(state, self.context.kept_trials))

    def _show_all_reduce(self) -> None:
        plot, panel = all_reduce_chart(self.context.state), self.query_one(PicturePanel)
        panel.show([Picture(plot)] if plot else [])
        if plot and not panel.is_open:
            panel.go_on()

    def _show_waterfall(self) -> None:
        panel, chart = self.query_one("#waterfall", Static), waterfall_chart(self.context.state)
        panel.display = chart is not None
        if chart is not None:
            panel.border_subtitle = _OVERLAP if chart.overlap else ""
            show_text(panel, overview_facts.waterfall_text(chart, self.width - 6))

    def _show_clocks(self, clock: ClockCheck | None) -> None:
        self.query_one("#clocks-panel").display = clock is not None
        self.query_one("#clocks", FactList).show(overview_facts.clock_facts(clock))
        show_text(self.query_one("#clock-words", Static), " ".join(clock_sentences(clock)) if clock else "")

    def first_focus(self) -> Widget:
        return self.query_one(Headline)


def _show_or_hide(facts: FactList, rows: list[Fact]) -> None:
    """Show the facts; without any, their panel is gone."""
    facts.display = bool(rows)
    facts.show(rows)


def _titled(title: str, panel: Widget) -> Widget:
    panel.border_title = title
    return panel.add_class("panel")
