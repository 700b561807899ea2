"""View 2: where a step's time goes."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Static

from advisor.formatting import format_count, format_ms, format_percent, format_rate
from advisor.records import OperatorRow, Profile
from advisor.tui.context import Context
from advisor.tui.text import DIM, meter
from advisor.tui.views.base import View
from advisor.tui.widgets.fact_list import Fact, FactList
from advisor.tui.widgets.phase_bar import PhaseBar

_WIDE = 100
_WAITING = "The profile is taken right after the baseline."


class ProfileView(View):
    """The phase bar over the operators and the roof."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="profile")
        self._shown: Profile | None = None
        self._name_width = 0

    def compose(self) -> ComposeResult:
        """The three panels."""
        with Vertical(classes="panel", id="phases-panel"):
            yield Static(id="verdict", markup=False)
            yield PhaseBar(_WAITING)
        with Horizontal(id="profile-columns"):
            with Vertical(classes="panel", id="operators-panel"):
                yield Static(Content.styled("No operators yet.", DIM), id="operators-empty")
                yield DataTable[Text](id="operators", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(classes="panel", id="roof-panel", can_focus=False):
                yield FactList("Nothing to compare with a roof yet.", label_width=9, id="roof")

    def on_mount(self) -> None:
        """Title the panels."""
        self.query_one("#phases-panel").border_title = "Where a step goes"
        self.query_one("#operators-panel").border_title = "Top operators, per step"
        self.query_one("#roof-panel").border_title = "Distance to the roof"

    def on_resize(self) -> None:
        """Fit the operators' names to the new width."""
        self._shown = None
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Draw the profile, once there is one."""
        facts = self.context.state.facts
        profile = facts.profile if facts else None
        self._show_verdict(profile)
        self.query_one(PhaseBar).show(profile.phases if profile else {})
        self.query_one("#roof", FactList).show(roof_facts(profile, on_gpu=bool(facts and facts.on_cuda)))
        if profile is not self._shown or profile is None:
            self._show_operators(profile)
            self._shown = profile

    def _show_verdict(self, profile: Profile | None) -> None:
        verdict = self.query_one("#verdict", Static)
        verdict.display = profile is not None and profile.bottleneck is not None
        if profile and profile.bottleneck:
            name = profile.bottleneck.value
            verdict.update(Content.assemble("Bound by ", (name, "bold $accent"), ": ", (profile.evidence, DIM)))

    def _show_operators(self, profile: Profile | None) -> None:
        table = self.query_one("#operators", DataTable)
        rows = profile.operators if profile else ()
        table.display = bool(rows)
        self.query_one("#operators-empty").display = not rows
        table.clear(columns=True)
        on_device = any(row.device_ms for row in rows)
        with_calls = self.size.width >= _WIDE
        fixed = 10 + (7 if with_calls else 0) + (10 if on_device else 0) + 3
        width = max(14, self.query_one("#operators-panel").content_size.width - fixed)
        table.add_column("operator", width=width, key="operator")
        if with_calls:
            table.add_column(_number("calls"), width=5, key="calls")
        if on_device:
            table.add_column(_number("device"), width=8, key="device")
        table.add_column(_number("host"), width=8, key="host")
        for row in sorted(rows, key=_weight, reverse=True):
            table.add_row(*_operator_cells(row, on_device=on_device, with_calls=with_calls))

    def first_focus(self) -> Widget | None:
        """The operators, once there are any."""
        table = self.query_one("#operators", DataTable)
        return table if table.display else None


def _weight(row: OperatorRow) -> tuple[float, float]:
    return row.device_ms, row.host_ms


def _number(label: str) -> Text:
    return Text(label, justify="right")


def _operator_cells(row: OperatorRow, *, on_device: bool, with_calls: bool) -> list[Text]:
    calls = f"{row.calls:.0f}" if row.calls >= 1 else f"{row.calls:.1f}"
    cells = [Text(row.name.removeprefix("aten::"), no_wrap=True, overflow="ellipsis")]
    cells += [Text(calls, justify="right")] if with_calls else []
    times = [row.device_ms, row.host_ms] if on_device else [row.host_ms]
    return cells + [Text(format_ms(time), justify="right") for time in times]


def roof_facts(profile: Profile | None, *, on_gpu: bool) -> list[Fact]:
    """Achieved against possible: arithmetic, copies, how busy the device is, kernels a step."""
    if profile is None:
        return []
    rows: list[Fact] = []
    rows.append(("Step", format_ms(profile.step_ms)))
    rows += _arithmetic(profile)
    if profile.copy_bytes_per_s is not None:
        rows.append(("Copies", f"{format_rate(profile.copy_bytes_per_s, 'B')} at most"))
    if profile.device_busy_share is not None:
        busy = profile.device_busy_share
        name = "GPU busy" if on_gpu else "Busy"
        rows.append((name, Content.assemble(meter(busy, 12, "$primary"), f" {format_percent(busy)}")))
    if profile.kernels_per_step is not None:
        rows.append(("Kernels", f"{format_count(round(profile.kernels_per_step))} a step"))
    return rows


def _arithmetic(profile: Profile) -> list[Fact]:
    if not profile.flops_per_step or profile.step_ms <= 0:
        return []
    achieved = profile.flops_per_step / (profile.step_ms / 1e3)
    rows: list[Fact] = [("Work", f"{format_count(profile.flops_per_step)}FLOP a step")]
    ceiling = profile.ceiling_flops_per_s
    if not ceiling:
        return [*rows, ("Achieved", format_rate(achieved, "FLOP"))]
    share = achieved / ceiling
    dtype = f" in {profile.ceiling_dtype}" if profile.ceiling_dtype else ""
    return [
        *rows,
        ("Achieved", Content.assemble(meter(share, 12, "$primary"), f" {format_percent(share)}")),
        ("", format_rate(achieved, "FLOP")),
        ("Ceiling", f"{format_rate(ceiling, 'FLOP')}, a matmul{dtype}"),
    ]
