"""The settings together and the recommendations, as blocks."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    format_break_even,
    format_bytes,
    format_bytes_change,
    format_change,
    format_energy,
    format_ms,
    format_noise,
    format_numerics,
    format_outcome,
    format_rate,
    format_ratio,
    format_repayment,
)
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.figures.sweep import knee_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Objective, Recommendation, StackRecord, TrialRecord
from advisor.report.cells import energy_change, memory_change, settings_code
from advisor.report.conclusions import own_notes, roof_shares, sweep_of
from advisor.report.document import Block, Bullets, Inline, Listing, Paragraph, Table
from advisor.report.evidence import roof_text
from advisor.report.figures import IN_TURN, effect_words, own_figures, verified_words, with_the_stack
from advisor.report.no_result import why_no_stack


def stack_blocks(state: SessionState, stack: StackRecord) -> Iterator[Block]:
    """The settings together: what they are, what they do, and what was left out."""
    if not stack.settings and stack.pending:
        yield Paragraph(f"None: {stack.result.reason}.")
    elif not stack.settings:
        yield Paragraph(f"None: {why_no_stack(state)}.")
    else:
        yield Listing(Settings(stack.settings).to_yaml(), "yaml")
        yield from _stack_effect(state, stack)
    if stack.dropped:
        yield Paragraph("Left out of the combination:")
        yield Bullets(tuple(f"{key}: {reason}" for key, reason in stack.dropped.items()))


def _stack_effect(state: SessionState, stack: StackRecord) -> Iterator[Block]:
    if stack.pending:
        yield Paragraph(f"There is no figure for them: {stack.result.reason}.")
        return
    if stack.comparison is None:
        yield Paragraph(f"They could not be measured together: {format_outcome(stack.result)}")
        return
    rows = tuple(_before_and_after(state, stack))
    yield Table(("", "Before", "Tuned", "Change"), rows, frozenset({"Before", "Tuned", "Change"}))
    pays = f"Start-up: {format_repayment(stack.break_even_steps)}."
    how = f"{IN_TURN} (A B B A)" if stack.confirmed else "once, in a trial of their own"
    yield Paragraph(f"Measured {how}, noise {format_noise(stack.comparison.noise_floor)}. {pays}")
    if stack.numerics:
        yield Paragraph(f"Numerics {format_numerics(stack.numerics)}: {stack.numerics.text}.")
    if state.verification:
        yield Paragraph(f"The exported file: {verified_words(state.verification)}.")
    if notes := own_notes(stack.result, state):
        yield Bullets(notes)


def _before_and_after(state: SessionState, stack: StackRecord) -> Iterator[tuple[Inline, ...]]:
    baseline, result = state.baseline, stack.result
    own = baseline.result if baseline else None
    step_ms = stack.baseline_step_ms or (baseline.step_ms if baseline else None)
    rate = stack.baseline_samples_per_s or (baseline.samples_per_s if baseline else None)
    yield "Step", format_ms(step_ms), format_ms(stack.step_ms), format_change(stack.step_ms, step_ms)
    yield "Throughput", format_rate(rate), format_rate(stack.samples_per_s), format_ratio(stack.comparison)
    peaks = (own.peak_reserved_bytes if own else None, result.peak_reserved_bytes)
    yield "Peak memory", format_bytes(peaks[0]), format_bytes(peaks[1]), format_bytes_change(peaks[1], peaks[0])
    energy = (own.energy_j_per_sample if own else None, result.energy_j_per_sample)
    if any(energy):
        yield "Energy a sample", format_energy(energy[0]), format_energy(energy[1]), format_change(energy[1], energy[0])
    before, after = roof_shares(state)
    if before or after:
        yield "Efficiency", roof_text(before) or MISSING, roof_text(after) or MISSING, ""


def recommendations(state: SessionState) -> Iterator[Block]:
    """The ranked recommendations, and why each is recommended."""
    by_energy = state.goal.objective is Objective.ENERGY
    energy = ("Energy",) if by_energy else ()
    headings = ("Rank", "What", "Setting", "Speed-up", "Memory", *energy, "Numerics", "Pays back", "Remark")
    rows = tuple(_recommendation(item, state, with_energy=by_energy) for item in state.recommendations)
    brief = ("Setting", "Speed-up", "Memory", *energy, "Numerics")
    yield Table(headings, rows, frozenset({"Rank", "Speed-up", "Memory", *energy}), brief, "Remark")
    if state.goal.objective is Objective.MEMORY:
        yield Paragraph("Of what takes as much memory, the faster comes first.")
    reasons: dict[str, list[str]] = {}
    for item in state.recommendations:
        reasons.setdefault(item.why, []).append(item.title)
    yield Bullets(tuple(f"{', '.join(titles)}: {why}" for why, titles in reasons.items() if why))


def _recommendation(item: Recommendation, state: SessionState, *, with_energy: bool) -> tuple[Inline, ...]:
    record, baseline = own_figures(item.record), state.baseline
    decision = state.decisions.get(record.candidate.recipe)
    energy = [energy_change(record, baseline)] if with_energy else []
    remarks = ["in the stack"] if item.in_stack else []
    if decision is not None:
        remarks.append(f"you {decision} it")
    elif item.needs_consent:
        remarks.append("changes the results or the training: needs your consent")
    return (
        str(item.rank),
        item.title,
        settings_code(record.candidate.settings),
        effect_words(record),
        memory_change(record, baseline),
        *energy,
        format_numerics(record.numerics),
        format_break_even(record.break_even_steps) if record.alone else MISSING,
        "; ".join([*remarks, *_how(record)]),
    )


def _how(record: TrialRecord) -> Iterator[str]:
    """The origin of a figure, where it is more or less than one trial of the setting alone."""
    if not record.alone:
        yield with_the_stack(record)
    if record.confirmed:
        yield IN_TURN
    if record.result.disturbed:
        yield f"unreliable: {record.result.disturbed}"


def batch_advice(state: SessionState, catalog: Catalog) -> str:
    """The recipe's sentence on the size at the knee, when that is not the one in use."""
    knee = knee_of(sweep_of(state))
    if knee is None or state.facts is None or knee == state.facts.workload.batch_size:
        return ""
    return catalog.why(BATCH_SIZE, state.facts, knee)
