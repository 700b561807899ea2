"""View 1: the machine, the workload, the baseline, what the step is bound by, and the headline."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from advisor.tui.context import Context
from advisor.tui.views.base import View
from advisor.tui.views.overview_facts import (
    baseline_facts,
    gauge_facts,
    hardware_facts,
    headline,
    note_lines,
    workload_facts,
)
from advisor.tui.widgets.fact_list import FactList


class OverviewView(View):
    """The headline above two columns of panels."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="overview")

    def compose(self) -> ComposeResult:
        """The panels."""
        with VerticalScroll(id="overview-scroll"):
            yield Static(id="headline", classes="panel")
            with Horizontal(id="overview-columns"):
                with Vertical(classes="column"):
                    yield _panel("Baseline", FactList("The baseline is being measured…", id="baseline"))
                    yield _panel("Workload", FactList("The model is being loaded…", id="workload"))
                with Vertical(classes="column"):
                    yield _panel("GPU now", FactList("Waiting for the first reading…", id="gauges"))
                    yield _panel("Hardware", FactList("The machine is being inspected…", id="hardware"))
            yield _panel("Notes", FactList(id="notes"))

    def on_mount(self) -> None:
        """Title the headline's border."""
        self.query_one("#headline").border_title = "Result"

    def show(self) -> None:
        """Draw all panels."""
        state, request = self.context.state, self.context.request
        self.query_one("#headline", Static).update(headline(state))
        self.query_one("#baseline", FactList).show(baseline_facts(state.baseline, state.facts))
        self.query_one("#workload", FactList).show(workload_facts(state.facts))
        self.query_one("#hardware", FactList).show(hardware_facts(state.hardware, self._device_uuid))
        self.query_one("#notes", FactList).show(note_lines(state, request.objective, request.budget_s))
        self.show_gauges()

    def show_gauges(self) -> None:
        """Draw the live gauges; without a GPU there is no such panel."""
        gauges = self.query_one("#gauges", FactList)
        hardware = self.context.state.hardware
        panel = gauges.parent
        if isinstance(panel, Widget):
            panel.display = bool(hardware and hardware.gpus)
        gauges.show(gauge_facts(self.context.gauges, self._device_uuid, gauges.content_size.width))

    @property
    def _device_uuid(self) -> str | None:
        facts = self.context.state.facts
        return facts.workload.device_uuid if facts else None

    def first_focus(self) -> Widget | None:
        """The scrolling area."""
        return self.query_one("#overview-scroll")


def _panel(title: str, *children: Widget) -> Vertical:
    panel = Vertical(*children, classes="panel")
    panel.border_title = title
    return panel
