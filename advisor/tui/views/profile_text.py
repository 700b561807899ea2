"""The texts of the profile: the distance to the machine's peak rates, what habits cost, where the host waits.

Pure functions; the figures are those of the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_count, format_ms, format_percent, format_rate, format_way
from advisor.records import Ceilings, HabitRow, Profile, SyncPlace
from advisor.report.conclusions import roof_shares
from advisor.report.figures import Figure, ceiling_figures, roof_figure, step_figures
from advisor.tui.text import DIM, meter
from advisor.tui.widgets.fact_list import Fact

_BAR = 12
# Characters that fit beside a meter. A count.
_BESIDE = 16


def roof_facts(state: SessionState) -> list[Fact]:
    """Achieved against possible: arithmetic, traffic, how busy the device is, kernels, and the ceilings themselves."""
    profile = state.profile
    if profile is None:
        return []
    before, _ = roof_shares(state)
    figures = [*([roof_figure(before)] if before else []), *step_figures(profile)]
    rows: list[Fact] = [("Step", format_ms(profile.step_ms))]
    for figure in figures:
        rows += _figure(figure)
    return [*rows, *ceiling_facts(profile.ceilings, profile.ceiling_dtype)]


def _figure(figure: Figure) -> list[Fact]:
    """A figure as a line; a share as a meter, with its total in a second line if it is long."""
    if figure.share is None:
        return [(figure.short, figure.text)]
    bar = meter(figure.share, _BAR, "$primary")
    if len(figure.words) <= _BESIDE:
        return [(figure.short, Content.assemble(bar, f" {figure.words}"))]
    metered = Content.assemble(bar, f" {format_percent(figure.share)}")
    return [(figure.short, metered), ("", _dim(figure.text))]


def _dim(text: str) -> Content:
    return Content.styled(text, DIM)


def ceiling_facts(ceilings: Ceilings | None, used: str | None) -> list[Fact]:
    """The machine's peak rates, by type, and the date of their measurement; the type that the step uses stands out."""
    figures = ceiling_figures(ceilings) if ceilings else []
    rows: list[Fact] = []
    for figure in figures:
        shown = f"{figure.text:>12}  {figure.short}"
        rows.append(("Ceilings" if not rows else "", Content.styled(shown, "bold" if figure.short == used else "")))
    if rows and ceilings and ceilings.measured_on:
        rows.append(("", _dim(f"measured on {ceilings.measured_on}")))
    return rows


def roof_before_and_after(state: SessionState) -> Content | None:
    """Return the rates of matrix products of the baseline and of the stack, and the peak rate of the last one's type.

    None where they are not known. For example ``48.0 TFLOP/s → 115 TFLOP/s (bfloat16 peak 721 TFLOP/s)``.
    """
    reached = [share for share in roof_shares(state) if share]
    if not reached:
        return None
    rates = [Content.styled(format_rate(share.share * share.ceiling_flops_per_s, "FLOP"), "bold") for share in reached]
    last = reached[-1]
    peak = f" ({last.dtype} peak {format_rate(last.ceiling_flops_per_s, 'FLOP')})"
    return Content.styled(" → ", DIM).join(rates) + Content.styled(peak, DIM)


_WAY = 37
_NUMBER = 10


def habits_text(profile: Profile, title_of: Callable[[str], str]) -> Content:
    """The waits, then a table for each habit. ``title_of`` names a recipe by its id."""
    sections = [*_waits(profile.sync_places), *_habits(profile, title_of)]
    return (
        Content("\n\n").join(sections)
        if sections
        else Content.styled("No coding habit was measured here, and no wait was found.", DIM)
    )


def _waits(places: Sequence[SyncPlace] | None) -> list[Content]:
    if places is None:
        return []
    if not places:
        return [Content("Nothing in the step makes the host wait for the device.")]
    lines = [Content.styled("Where the host waits for the device", "bold")]
    for place in places:
        waits = f"{format_count(place.calls_per_step)} a step"
        blocked = f", {format_ms(place.blocked_ms)}" if place.blocked_ms is not None else ""
        lines.append(Content.assemble((place.place, "$warning"), (f"  {waits}{blocked}", DIM)))
        if place.file and place.text.strip():
            lines.append(Content.styled(f"  {place.text.strip()}", "$primary"))
    return [Content("\n").join(lines)]


def _habits(profile: Profile, title_of: Callable[[str], str]) -> list[Content]:
    grouped = groupby(sorted(profile.habits, key=lambda row: row.habit), key=lambda row: row.habit)
    return [_habit(title_of(habit), list(rows), profile.step_ms) for habit, rows in grouped]


def _habit(title: str, rows: Sequence[HabitRow], step_ms: float) -> Content:
    fastest = min((time for row in rows if (time := _time_ms(row)) is not None), default=None)
    what = "this part of the step" if rows[0].phase_ms is not None else "a whole step, and its memory"
    head = Content.assemble((title, "bold"), (f"  {what}", DIM))
    return Content("\n").join([head, *(_way(row, step_ms, fastest) for row in rows)])


def _way(row: HabitRow, step_ms: float, fastest_ms: float | None) -> Content:
    time_ms = _time_ms(row)
    best = time_ms is not None and time_ms == fastest_ms
    cells = [f"{format_ms(time_ms):>{_NUMBER}}"]
    if row.phase_ms is not None:
        share = row.share if row.share is not None else row.phase_ms / step_ms if step_ms else None
        cells.append(f"{format_percent(share, digits=1):>8} of the step")
    if row.memory_bytes is not None:
        cells.append(f"{format_bytes(row.memory_bytes):>{_NUMBER}}")
    return Content.assemble(f"  {format_way(row):<{_WAY}}", ("".join(cells), "$success" if best else ""))


def _time_ms(row: HabitRow) -> float | None:
    """The cost of a way: the phase that it decides, or where that is the whole step, the step."""
    return row.phase_ms if row.phase_ms is not None else row.step_ms
