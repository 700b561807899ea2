"""The distance between a step and the machine's peak rates. Pure functions; the figures are those of the reports."""

from __future__ import annotations

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_ms, format_percent, format_rate
from advisor.records import Ceilings
from advisor.report.conclusions import roof_shares
from advisor.report.figures import Figure, ceiling_figures, roof_figure, step_figures
from advisor.tui.text import DIM, meter
from advisor.tui.widgets.fact_list import Fact

_BAR = 12
# As many characters fit beside a meter.
_BESIDE = 16


def roof_facts(state: SessionState) -> list[Fact]:
    """Achieved against possible: arithmetic, traffic, how busy the device is, kernels, and the ceilings themselves."""
    profile = state.facts.profile if state.facts else None
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
