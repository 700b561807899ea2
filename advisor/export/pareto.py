"""Speed against memory, as rows and sentences for the summary and the reports."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.experiment.state import SessionState
from advisor.export.markup import Code, Paragraph, Section, Table
from advisor.figures.formatting import format_bytes, format_bytes_change, format_ratio
from advisor.recipe.settings import Settings
from advisor.report.pareto import front_of, measured_points

PARETO_HEADINGS = ("settings", "speed-up", "peak memory", "change")


def pareto_rows(state: SessionState) -> list[tuple[str, ...]]:
    """The front of speed against memory under ``PARETO_HEADINGS``, the smallest peak first.

    Empty where nothing but the baseline was measured.
    """
    if len(measured_points(state)) < 2:
        return []
    own_bytes = state.baseline.result.peak_reserved_bytes if state.baseline else None
    return [
        (
            str(Settings(point.settings)) if point.settings else "what you have",
            format_ratio(point.comparison) if point.settings else "1x",
            format_bytes(point.peak_reserved_bytes),
            format_bytes_change(point.peak_reserved_bytes, own_bytes),
        )
        for point in front_of(state)
    ]


def pareto_sentence(state: SessionState) -> str:
    """What the front says: which choice there is between time and memory."""
    front, count = front_of(state), len(measured_points(state))
    measured = f"{count} sets of settings were measured, your own among them."
    if len(front) > 1:
        return f"{measured} Nothing is both as fast and as small as one of these: what is faster takes more memory."
    return f"{measured} One is the fastest and the smallest at once, as far as the noise allows to tell."


def pareto_section(state: SessionState) -> Iterator[Section]:
    """The front of speed against memory; nothing where only the baseline was measured."""
    rows = tuple(pareto_rows(state))
    if rows:
        headings = tuple(heading.capitalize() for heading in PARETO_HEADINGS)
        table = Table(headings, tuple((Code(name), *cells) for name, *cells in rows), frozenset(headings[1:]))
        yield Section("Speed against memory", (Paragraph(pareto_sentence(state)), table))
