"""The cost of coding habits, and the lines at which the host waits. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from textual.content import Content

from advisor.figures.formatting import format_bytes, format_count, format_ms, format_percent, format_way
from advisor.records import HabitRow, Profile, SyncPlace
from advisor.tui.text import DIM

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
