"""The card of one setting: its figures, why it helps, what it costs, its code and its text. The app shows it."""

from collections.abc import Iterator
from dataclasses import replace

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_break_even,
    format_bytes,
    format_change,
    format_energy,
    format_ms,
    format_numerics,
    format_percent,
    format_seconds,
)
from advisor.figures.roof import upper_bound
from advisor.recipe import Recipe, card
from advisor.recipe.catalog import Catalog
from advisor.records import Candidate, GpuReadings, Phase, TrialResult, Verdict, text_of
from advisor.report.conclusions import shown_by
from advisor.report.document import Inline, Listing, Paragraph, Section, pairs
from advisor.report.figures import IN_TURN, gpu_readings
from advisor.report.rows import Against, Figures, Row, Tick, figures_of

Pair = tuple[str, Inline]


def setting_sections(row: Row, state: SessionState, catalog: Catalog | None) -> Iterator[Section]:
    """The card of a setting, without its title."""
    recipe = catalog.recipes.get(row.candidate.recipe) if catalog else None
    yield Section("", (pairs(_facts(row, state, catalog, recipe)),))
    if code := code_of(row.candidate, recipe):
        yield Section("The code", (Listing(code, "python"),))
    if recipe:
        yield from _text_sections(card(recipe))


def code_of(candidate: Candidate, recipe: Recipe | None) -> str:
    """The lines of a setting; empty for a value of a damaged record, or of another version, that no recipe has."""
    return recipe.code(candidate.value).rstrip() if recipe and recipe.accepts(candidate.value) else ""


def _text_sections(text: str) -> Iterator[Section]:
    """The paragraphs of a recipe's text under its headings, which are underlined."""
    title, paragraphs = "About this setting", list[Paragraph]()
    for block in text.split("\n\n"):
        lines = block.strip().split("\n")
        if len(lines) > 1 and not lines[1].strip("-="):
            yield Section(title, tuple(paragraphs))
            title, paragraphs, lines = lines[0], [], lines[2:]
        paragraphs.append(Paragraph(" ".join(map(str.strip, lines))))
    yield Section(title, tuple(paragraphs))


def _facts(row: Row, state: SessionState, catalog: Catalog | None, recipe: Recipe | None) -> Iterator[Pair]:
    """The facts about a setting, the most important first."""
    record, figures = row.record, row.figures
    yield "Use", _use(row)
    if figures is None:
        if row.note:
            yield "Why not", row.note
        return
    yield from figure_pairs(figures, "alone, ")
    if row.why:
        yield "Why", row.why
    if record is not None:
        if record.alone and figures.against is Against.REST:
            alone = figures_of(replace(record, contribution=None), state)
            yield from [("Alone", f"{alone.words}: {alone.steps}")] if alone else []
        yield from start_up_pairs(record.result, record.break_even_steps if record.alone else None, figures)
        if recipe and not row.candidate.already_on:
            yield from _bound(state, recipe)
        if calls := record.result.latency:
            times = ((50, calls.p50_ms), (95, calls.p95_ms), (99, calls.p99_ms))
            yield "Calls", " · ".join(f"p{share} {format_ms(time_ms)}" for share, time_ms in times)
        yield from [("Shown", worth)] if (worth := shown_by(record)) else []
        if troubles := _troubles(record.result.gpu):
            yield "GPU", troubles
        if record.result.disturbed:
            yield "Unreliable", f"{record.result.disturbed}."
        yield from (("Note", note) for note in record.result.notes)
    for value in row.values:
        yield text_of(value.candidate.value), _value(value)
    for finding in state.findings:
        if finding.recipe == row.candidate.recipe:
            yield "Found at", f"{finding.place}  {finding.what}: {finding.advice}. {finding.text.strip()}"


def _use(row: Row) -> str:
    """Whether a setting is used, and the reason where the person wants something else."""
    why = f": {row.note}" if row.note and row.figures else ""
    if row.rejected:
        return "rejected by you"
    match row.tick:
        case Tick.ON:
            return "recommended, and exported" if row.star else "exported"
        case Tick.WAITING:
            return "accepted; measured with the others next"
        case Tick.REFUSED:
            return f"accepted, but not exported: {row.note or 'it could not be measured with the others'}"
        case Tick.OFF:
            return "changes results: measured, used only if you press a" if row.consent else f"not exported{why}"


def figure_pairs(figures: Figures, what: str = "") -> Iterator[Pair]:
    """Speed, step, memory and numerics, each without and with the settings; ``what`` they were measured with."""
    how = f"{what}{figures.against.value}"
    if figures.against is not Against.BASELINE:
        how = f"{figures.against.value} ({counted(figures.others, 'other setting')} on)"
    elif figures.effect.paired:
        how = IN_TURN
    verdict = {Verdict.SAME: "same, ", Verdict.UNCLEAR: "unclear (noise), "}.get(figures.effect.verdict, "")
    yield "Speed-up", f"{figures.words}, {verdict}{how}"
    samples = f" for {figures.samples} samples" if figures.samples else ""
    yield "Step", f"{figures.steps}{samples} ({format_change(figures.after_ms, figures.before_ms)})"
    before, after = figures.memory_bytes
    change = f" ({format_change(after, before)})" if before is not None else ""
    yield "Memory", f"{figures.memory}{change}"
    joules = figures.energy_j
    if all(joules) and figures.against is Against.BASELINE:
        change = format_change(joules[1], joules[0])
        yield "Energy", f"{format_energy(joules[0])} → {format_energy(joules[1])} a sample ({change})"
    numerics = figures.numerics
    yield "Numerics", format_numerics(numerics) if numerics else "not compared"
    if numerics and numerics.text:
        yield "", numerics.text


def start_up_pairs(result: TrialResult, break_even: int | None, figures: Figures) -> Iterator[Pair]:
    """The seconds of applying the settings and warming up, and after how many steps they pay off."""
    parts = [part for part in (result.prepare_s, result.warmup_s) if part is not None]
    if parts:
        faster = figures.against is Against.BASELINE and figures.verdict is Verdict.FASTER
        pays = f", pays off {format_break_even(break_even)}" if faster else ""
        yield "Start-up", f"{format_seconds(sum(parts))}{pays}"


def _bound(state: SessionState, recipe: Recipe) -> Iterator[Pair]:
    """The upper bound of the gain, where the recipe touches some phases only."""
    profile = state.profile
    bound = upper_bound(profile, recipe.phases) if profile and recipe.phases else None
    if profile and bound is not None:
        names = ", ".join(phase.value for phase in Phase if phase in recipe.phases)
        yield "Limit", f"{bound:.2f}x ({names} is {format_percent(profile.share(*recipe.phases))} of the step)"


def _troubles(gpu: GpuReadings | None) -> str:
    """The problems among NVML's readings while the trial was timed."""
    read = gpu_readings(gpu) if gpu and gpu.samples else []
    return "; ".join(reading.text for reading in read if reading.problem)


def _value(row: Row) -> str:
    if row.figures is None:
        return row.note or "not measured"
    return f"{row.figures.words}  {row.figures.steps}  {format_bytes(row.figures.memory_bytes[1])}"
