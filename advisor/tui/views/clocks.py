"""The clock self-check as bars. Pure functions."""

from __future__ import annotations

from textual.content import Content

from advisor.figures.formatting import format_ms
from advisor.records import ClockCheck, Facts
from advisor.tui.text import meter
from advisor.tui.widgets.fact_list import Fact

_BAR = 24
_NUMBER = 9


def clock_check(facts: Facts | None) -> ClockCheck | None:
    """The profile's comparison of clocks; None until it was asked for."""
    return facts.profile.clock if facts and facts.profile else None


def clock_facts(clock: ClockCheck | None) -> list[Fact]:
    """Each clock's reading of the same step as a bar, the headline last."""
    if clock is None:
        return []
    readings = [
        ("unsynchronised", clock.naive_ms),
        ("synchronised every step", clock.synchronized_ms),
        *([("events", clock.events_ms)] if clock.events_ms is not None else []),
        ("reported", clock.block_ms),
    ]
    longest = max(reading for _, reading in readings)
    rows: list[Fact] = []
    for name, reading in readings:
        is_headline = name == "reported"
        drawn = meter(reading / longest if longest else 0.0, _BAR, "$accent" if is_headline else "$primary")
        shown = f"{format_ms(reading):>{_NUMBER}}"
        rows.append((name, Content.assemble(drawn, (shown, "bold" if is_headline else ""))))
    return rows
