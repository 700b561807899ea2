"""The stack, recommendations, trials, untried recipes, habits and findings in the source, as blocks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    format_break_even,
    format_bytes,
    format_bytes_change,
    format_change,
    format_energy,
    format_found,
    format_ms,
    format_names,
    format_numerics,
    format_outcome,
    format_percent,
    format_rate,
    format_ratio,
    format_repayment,
    format_seconds,
    format_setting,
    format_verdict,
    format_way,
    format_worth,
    interval_or_words,
)
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.figures.sweep import knee_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    BaselineRecord,
    Finding,
    HabitRow,
    Objective,
    Recommendation,
    StackRecord,
    TrialRecord,
    TrialResult,
    Value,
    text_of,
)
from advisor.report.conclusions import Untried, own_notes, roof_shares, sweep_of
from advisor.report.document import Block, Bullets, Code, Inline, Listing, Paragraph, Table
from advisor.report.evidence import roof_text
from advisor.report.figures import IN_TURN, effect_words, own_figures, verdict_shown, verified_words, with_the_stack
from advisor.report.verdict import why_no_stack


def stack_blocks(state: SessionState, stack: StackRecord) -> Iterator[Block]:
    """The stack: its settings, their effect, and the settings left out."""
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
    how = f"{IN_TURN} (A B B A)" if stack.comparison.paired else "once, in a trial of their own"
    yield Paragraph(f"Measured {how}. {pays}")
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
        yield Paragraph("At equal memory, the faster comes first.")
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


def trials(records: Sequence[TrialRecord], state: SessionState, catalog: Catalog) -> Iterator[Block]:
    """All trials in a table, and their findings besides speed."""
    baseline = state.baseline
    own_energy_j = baseline.result.energy_j_per_sample if baseline else None
    with_energy = own_energy_j is not None and any(record.result.energy_j_per_sample for record in records)
    energy = ["Energy"] if with_energy else []
    headings = ("What", "Setting", "Verdict", "Speed-up", "Step", "Memory", *energy, "Warm-up", "Numerics", "Remark")
    rows = tuple(_trial(record, baseline, catalog, with_energy=with_energy) for record in records)
    brief = ("Setting", "Verdict", "Speed-up")
    yield Table(headings, rows, frozenset({"Speed-up", "Step", "Memory", "Energy", "Warm-up"}), brief, "Remark")
    if shown := tuple(_shown_besides(records, state, catalog)):
        yield Paragraph("Other findings of the trials:")
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
        effect_words(record, interval_or_words) if record.result.measured else MISSING,
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
    reason, hint = (" ".join(text.split()) for text in (result.reason, result.hint))
    return f"{reason.rstrip('.')}. {hint}" if reason and hint else reason or hint


def _shown_besides(records: Sequence[TrialRecord], state: SessionState, catalog: Catalog) -> Iterator[str]:
    """Sentences on findings beside the speed: from recipes, worse numerics than declared, notes like graph breaks."""
    for record in records:
        numerics = record.numerics
        worse = f"numerics: {numerics.text}" if numerics and numerics.worse_than_declared else ""
        after = catalog.after(state.facts, record) if state.facts else ""
        if told := [text for text in (after.rstrip("."), worse, *own_notes(record.result, state)) if text]:
            yield f"{record.candidate.name}: {'; '.join(told)}."


def untried_table(groups: Sequence[Untried], catalog: Catalog) -> Table:
    """The table of untried candidates, by reason."""
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
    """The findings in the user's source, with the cost where it was measured."""
    read = ", ".join(state.source_files)
    yield Paragraph(f"{format_found(len(state.findings), len(state.source_files))}: {read}. It was read, not run.")
    if state.source_problems:
        yield Bullets(state.source_problems)
    if state.findings:
        rows = tuple((f.place, Code(f.text), f.what, f.advice, price_text(f, state)) for f in state.findings)
        brief = ("Where", "What it does", "Instead", "Measured")
        yield Table(("Where", "Line", "What it does", "Instead", "Measured"), rows, brief=brief)


def title_of(recipe_id: str, catalog: Catalog) -> str:
    """A recipe's title; its id where the catalogue has it no more."""
    recipe = catalog.recipes.get(recipe_id)
    return recipe.title if recipe else recipe_id


def settings_code(settings: dict[str, Value]) -> Code:
    """Settings as ``key: value, …``."""
    return Code(", ".join(format_setting(key, value) for key, value in settings.items()))


def memory_change(record: TrialRecord, baseline: BaselineRecord | None) -> str:
    """A trial's peak memory against the baseline's."""
    before = baseline.result.peak_reserved_bytes if baseline else None
    return format_bytes_change(record.result.peak_reserved_bytes, before)


def energy_change(record: TrialRecord, baseline: BaselineRecord | None) -> str:
    """A trial's energy a sample against the baseline's."""
    before = baseline.result.energy_j_per_sample if baseline else None
    return format_change(record.result.energy_j_per_sample, before)


def habit_rows(state: SessionState) -> tuple[HabitRow, ...]:
    """The profile's ways of each habit; where a trial measured a whole training step in one of them, with that step."""
    if state.facts is None or state.facts.profile is None:
        return ()
    current = state.facts.workload.current
    return tuple(_with_step(row, state, current) for row in state.facts.profile.habits)


def price_of(finding: Finding, records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The trial that measured the cost of a finding; None where there was none.

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
        return f"{record.candidate.name} {interval_or_words(record.comparison)}"
    profile = state.profile
    if profile is None:
        return MISSING
    places = [place for place in profile.sync_places or () if place.place == finding.place]
    if waits_ms := sum(place.blocked_ms or 0.0 for place in places):
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
