"""Habits that cost time, as sections: found in the source, timed in the profile, or seen as waits for the device."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from advisor.experiment.state import SessionState
from advisor.figures.formatting import counted, format_bytes, format_count, format_ms, format_percent, interval_or_words
from advisor.recipe.catalog import Catalog
from advisor.records import Finding, HabitRow, TrialRecord, text_of
from advisor.report.document import Block, Bullets, Code, Inline, Paragraph, Section, table_of
from advisor.report.rows import title_of


def source_section(state: SessionState) -> Iterator[Section]:
    """The findings in the user's source, with the cost where it was measured."""
    if not state.source_files:
        return
    habits = f"{counted(len(state.findings), 'habit')} found" if state.findings else "Nothing slow found"
    read = f"in {counted(len(state.source_files), 'file')}: {', '.join(state.source_files)}. It was read, not run."
    found = list(state.source_problems)
    for one in state.findings:
        price = f" ({cost})" if (cost := price_text(one, state)) else ""
        found.append(f"{one.place}: {one.text.strip()}: {one.what}: {one.advice}{price}.")
    bullets = [Bullets(tuple(found))] if found else []
    yield Section("Found in your source", (Paragraph(f"{habits} {read}"), *bullets))


def price_text(finding: Finding, state: SessionState) -> str:
    """The measured cost of a finding's line: by a trial, or in the baseline's instrumented pass; empty for none."""
    record, profile = price_of(finding, state.trials.values()), state.profile
    if record is not None:
        return f"{record.candidate.name} {interval_or_words(record.comparison)}"
    if profile is None:
        return ""
    if waits_ms := sum(place.blocked_ms or 0.0 for place in profile.sync_places or () if place.place == finding.place):
        return f"the host waits {format_ms(waits_ms)} a step"
    rows = (row for row in profile.habits if row.habit == finding.recipe)
    steps = {row.way: row.step_ms for row in rows if row.step_ms is not None}
    others = [step_ms for way, step_ms in steps.items() if way != finding.value]
    if finding.value in steps and others:
        return f"{format_ms(steps[finding.value])} a step, {format_ms(min(others))} in a better way"
    return ""


def price_of(finding: Finding, records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The trial that measured the cost of a finding; None where there was none.

    If the loop has the setting, that is the trial without it; else the trial that does what the line does. If the
    line lacks something, it is the best trial of the recipe.
    """
    own = [record for record in records if record.candidate.recipe == finding.recipe and record.alone]
    measured = [record for record in own if record.comparison is not None]
    mended = [record for record in measured if record.candidate.already_on]
    if finding.value:
        same = [record for record in measured if text_of(record.candidate.value) == finding.value]
        return next(iter(mended or same), None)
    return max(mended or measured, key=lambda one: one.comparison.speedup if one.comparison else 0.0, default=None)


def habits_section(state: SessionState, catalog: Catalog | None) -> Iterator[Section]:
    """Lines that make the host wait for the device, and ways of doing the same thing, timed beside each other."""
    blocks, profile = list[Block](), state.profile
    if profile and profile.sync_places:
        blocks.append(Paragraph("Lines of the step that make the host wait for the device; only you can rewrite them:"))
        waits: list[dict[str, Inline]] = [
            {
                "Where": place.place,
                "Line": Code(place.text),
                "Times a step": format_count(place.calls_per_step),
                "Waits": format_ms(place.blocked_ms),
            }
            for place in profile.sync_places
        ]
        blocks.append(table_of(waits, ("Where", "Line")))
    if profile and (count := profile.host_made_tensors):
        made = "1 tensor is" if count == 1 else f"{count:,} tensors are"
        blocks.append(Paragraph(f"{made} made on the host and copied to the device in each step."))
    ways = [
        {
            "Habit": title_of(row.habit, catalog),
            "Way": row.way,
            "Its phase": format_ms(row.phase_ms),
            "Step": format_ms(row.step_ms),
            "Share of the step": format_percent(row.share, digits=1),
            "Memory": format_bytes(row.memory_bytes),
        }
        for row in habit_rows(state)
    ]
    if ways:
        blocks.append(table_of(ways, ("Habit", "Way"), brief=("Habit", "Way", "Its phase", "Step", "Memory")))
    if blocks:
        yield Section("Waits and habits", tuple(blocks))


def habit_rows(state: SessionState) -> tuple[HabitRow, ...]:
    """The ways of each habit as profiled; with the step time of a trial that measured a training step in that way."""
    if state.facts is None or state.facts.profile is None:
        return ()
    rows, present = [], text_of(state.facts.workload.current.get("step.zero_grad", "none"))
    for row in state.facts.profile.habits:
        record = state.baseline if row.way == present else state.trials.get(f"zero_grad={row.way}")
        trained = row.habit == "zero_grad" and row.step_ms is None and record is not None
        in_company = isinstance(record, TrialRecord) and not record.alone
        rows.append(replace(row, step_ms=record.step_ms) if record and trained and not in_company else row)
    return tuple(rows)
