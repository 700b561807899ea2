"""Habits as a report shows them: the ways of the profile with the steps of the trials, and what a finding costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from advisor.experiment.state import SessionState
from advisor.figures.formatting import MISSING, format_interval, format_ms
from advisor.records import Finding, HabitRow, TrialRecord, Value, text_of


def habit_rows(state: SessionState) -> tuple[HabitRow, ...]:
    """The profile's ways of each habit; where a trial measured a whole training step in one of them, with that step."""
    if state.facts is None or state.facts.profile is None:
        return ()
    current = state.facts.workload.current
    return tuple(_with_step(row, state, current) for row in state.facts.profile.habits)


def price_of(finding: Finding, records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The trial that prices what a finding's line does, or lacks; None where there was none.

    That is the trial without it where the loop has it already; else the one that does the same as the line, and for
    what the line lacks the best of its recipe.
    """
    own = [record for record in records if record.candidate.recipe == finding.recipe and record.alone]
    measured = [record for record in own if record.comparison is not None]
    mended = [record for record in measured if record.candidate.already_on]
    if finding.value:
        same = [record for record in measured if text_of(record.candidate.value) == finding.value]
        return next(iter(mended or same), None)
    return max(mended or measured, key=lambda one: one.comparison.speedup if one.comparison else 0.0, default=None)


def price_text(finding: Finding, state: SessionState) -> str:
    """The measured cost of a finding's line: by a trial, or in the baseline's instrumented pass."""
    record = price_of(finding, state.trials.values())
    if record is not None:
        return f"{record.candidate.name} {format_interval(record.comparison)}"
    profile = state.facts.profile if state.facts else None
    if profile is None:
        return MISSING
    places = [place for place in profile.sync_places or () if place.place == finding.place]
    waits_ms = sum(place.blocked_ms or 0.0 for place in places)
    if waits_ms:
        return f"the host waits {format_ms(waits_ms)} a step"
    steps = {row.way: row.step_ms for row in profile.habits if row.habit == finding.recipe and row.step_ms is not None}
    others = [step_ms for way, step_ms in steps.items() if way != finding.value]
    if finding.value in steps and others:
        return f"{format_ms(steps[finding.value])} a step, {format_ms(min(others))} in a better way"
    return MISSING


def _with_step(row: HabitRow, state: SessionState, current: dict[str, Value]) -> HabitRow:
    if row.step_ms is not None or row.habit != "zero_grad":
        return row
    if row.way == text_of(current.get("step.zero_grad", "none")):
        return replace(row, step_ms=state.baseline.step_ms if state.baseline else None)
    record = state.trials.get(f"{row.habit}={row.way}")
    return replace(row, step_ms=record.step_ms) if record is not None and record.alone else row
