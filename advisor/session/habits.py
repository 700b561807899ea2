"""Habits as a report shows them: the ways of the profile with the steps of the trials, and what a finding costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from advisor.records import Finding, HabitRow, TrialRecord, Value, text_of
from advisor.session.state import SessionState


def habit_rows(state: SessionState) -> tuple[HabitRow, ...]:
    """The profile's ways of each habit; where a trial measured a whole training step in one of them, with that step."""
    if state.facts is None or state.facts.profile is None:
        return ()
    current = state.facts.workload.current
    return tuple(_with_step(row, state, current) for row in state.facts.profile.habits)


def price_of(finding: Finding, records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The trial that prices a finding's habit: its slowest way, or the good way where the loop has the bad one."""
    own = [record for record in records if record.candidate.recipe == finding.recipe and record.alone]
    measured = [record for record in own if record.comparison is not None]
    mended = [record for record in measured if record.candidate.already_on]
    return min(mended or measured, key=_speedup, default=None)


def _speedup(record: TrialRecord) -> float:
    return record.comparison.speedup if record.comparison else 0.0


def _with_step(row: HabitRow, state: SessionState, current: dict[str, Value]) -> HabitRow:
    if row.step_ms is not None or row.habit != "zero_grad":
        return row
    if row.way == text_of(current.get("step.zero_grad", "none")):
        return replace(row, step_ms=state.baseline.step_ms if state.baseline else None)
    record = state.trials.get(f"{row.habit}={row.way}")
    return replace(row, step_ms=record.step_ms) if record is not None and record.alone else row
