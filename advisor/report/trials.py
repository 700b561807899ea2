"""Trials, untried recipes, habits and findings in the source, as blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    format_bytes,
    format_found,
    format_interval,
    format_ms,
    format_names,
    format_numerics,
    format_percent,
    format_seconds,
    format_verdict,
    format_way,
    format_worth,
)
from advisor.recipe.catalog import Catalog
from advisor.records import BaselineRecord, HabitRow, TrialRecord, TrialResult
from advisor.report.cells import energy_change, memory_change, settings_code, title_of
from advisor.report.conclusions import Untried, own_notes
from advisor.report.document import Block, Bullets, Code, Inline, Paragraph, Table
from advisor.report.figures import effect_words, own_figures, verdict_shown, with_the_stack
from advisor.report.habits import price_text


def trials(records: Sequence[TrialRecord], state: SessionState, catalog: Catalog) -> Iterator[Block]:
    """All trials in a table, and what they have shown besides their speed."""
    baseline = state.baseline
    own_energy_j = baseline.result.energy_j_per_sample if baseline else None
    with_energy = own_energy_j is not None and any(record.result.energy_j_per_sample for record in records)
    energy = ["Energy"] if with_energy else []
    headings = ("What", "Setting", "Verdict", "Speed-up", "Step", "Memory", *energy, "Warm-up", "Numerics", "Remark")
    rows = tuple(_trial(record, baseline, catalog, with_energy=with_energy) for record in records)
    brief = ("Setting", "Verdict", "Speed-up")
    yield Table(headings, rows, frozenset({"Speed-up", "Step", "Memory", "Energy", "Warm-up"}), brief, "Remark")
    shown = tuple(_shown_besides(records, state, catalog))
    if shown:
        yield Paragraph("What they have shown besides their speed:")
        yield Bullets(shown)


def _trial(
    record: TrialRecord, baseline: BaselineRecord | None, catalog: Catalog, *, with_energy: bool
) -> tuple[Inline, ...]:
    record, shown = own_figures(record), verdict_shown(record)
    energy = [energy_change(record, baseline)] if with_energy else []
    return (
        title_of(record.candidate.recipe, catalog),
        settings_code(record.candidate.settings),
        f"{format_verdict(record) if shown else MISSING}{', in turn' if record.confirmed else ''}",
        effect_words(record, format_interval) if record.result.measured else MISSING,
        format_ms(record.step_ms),
        memory_change(record, baseline),
        *energy,
        format_seconds(record.result.warmup_s),
        format_numerics(record.numerics),
        _remark(record),
    )


def _remark(record: TrialRecord) -> str:
    """The remark on a trial: the reason of a failure with its remedy, or a caveat on its figures."""
    remarks = [_failure(record.result)] if not record.result.measured else []
    if record.candidate.already_on:
        remarks.append(format_worth(record))
    if not record.alone:
        remarks.append(with_the_stack(record))
    if record.result.disturbed:
        remarks.append(f"unreliable: {record.result.disturbed}")
    return "; ".join(filter(None, remarks))


def _failure(result: TrialResult) -> str:
    """The reason and the hint, as sentences where there are both."""
    reason, hint = (" ".join(text.split()) for text in (result.reason, result.hint))
    return f"{reason.rstrip('.')}. {hint}" if reason and hint else reason or hint


def _shown_besides(records: Sequence[TrialRecord], state: SessionState, catalog: Catalog) -> Iterator[str]:
    """Sentences on findings beside the speed: from recipes, worse numerics than declared, notes like graph breaks."""
    for record in records:
        numerics = record.numerics
        worse = f"numerics: {numerics.text}" if numerics and numerics.worse_than_declared else ""
        after = catalog.after(state.facts, record) if state.facts else ""
        told = [text for text in (after.rstrip("."), worse, *own_notes(record.result, state)) if text]
        if told:
            yield f"{record.candidate.name}: {'; '.join(told)}."


def untried_table(groups: Sequence[Untried], catalog: Catalog) -> Table:
    """The table of what was not tried, by reason."""
    rows = tuple((group.reason, _names(group, catalog)) for group in groups)
    return Table(("Why not", "What"), rows)


def _names(group: Untried, catalog: Catalog) -> str:
    titles = [title_of(recipe, catalog) for recipe in group.recipes]
    return ", ".join(filter(None, [format_names(group.candidates), *titles]))


def habits_table(rows: Sequence[HabitRow], catalog: Catalog) -> Table:
    """Ways of doing the same thing, timed beside each other."""
    headings = ("Habit", "Way", "Its phase", "Step", "Share of the step", "Memory")
    cells = tuple(
        (
            title_of(row.habit, catalog),
            format_way(row),
            format_ms(row.phase_ms),
            format_ms(row.step_ms),
            format_percent(row.share, digits=1),
            format_bytes(row.memory_bytes),
        )
        for row in rows
    )
    return Table(headings, cells, frozenset(headings[2:]))


def source(state: SessionState) -> Iterator[Block]:
    """The findings in the user's source, with what it costs where that was measured."""
    read = ", ".join(state.source_files)
    yield Paragraph(f"{format_found(len(state.findings), len(state.source_files))}: {read}. It was read, not run.")
    if state.source_problems:
        yield Bullets(state.source_problems)
    if state.findings:
        rows = tuple((f.place, Code(f.text), f.what, f.advice, price_text(f, state)) for f in state.findings)
        brief = ("Where", "What it does", "Instead", "Measured")
        yield Table(("Where", "Line", "What it does", "Instead", "Measured"), rows, brief=brief)
