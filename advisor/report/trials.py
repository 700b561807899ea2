"""The combination, all settings, untried recipes, habits and findings in the source, as blocks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    counted,
    format_bytes,
    format_change,
    format_ms,
    format_names,
    format_numerics,
    format_outcome,
    format_percent,
    format_rate,
    format_setting,
    format_way,
    format_worth,
    interval_or_words,
)
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.figures.sweep import knee_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Candidate,
    Finding,
    HabitRow,
    Objective,
    Outcome,
    StackRecord,
    TrialRecord,
    Value,
    text_of,
)
from advisor.report.cards import figure_pairs, start_up_pairs
from advisor.report.conclusions import own_notes, roof_shares, sweep_of, tried
from advisor.report.document import Block, Bullets, Code, Inline, Listing, Paragraph, Section, Table, pairs
from advisor.report.evidence import roof_text
from advisor.report.figures import how_confirmed, verified_words
from advisor.report.rows import Against, Ranking, Row, Tick, before_and_after, ranking, title_of
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
    figures = ranking(state).together
    if stack.pending:
        yield Paragraph(f"There is no figure for them: {stack.result.reason}.")
        return
    if figures is None:
        yield Paragraph(f"They could not be measured together: {format_outcome(stack.result)}")
        return
    rows = list(figure_pairs(figures))
    if (size := stack.result.batch_size) and figures.samples is None:
        rates = [format_rate(1e3 * size / step_ms) for step_ms in (figures.before_ms, figures.after_ms)]
        rows.append(("Throughput", before_and_after(*rates)))
    rows += start_up_pairs(stack.result, stack.break_even_steps, figures)
    rows.append(("How", how_confirmed(stack)))
    if reached := [roof_text(share) for share in roof_shares(state) if share]:
        rows.append(("Efficiency", " → ".join(reached)))
    if stack.result.disturbed:
        rows.append(("Unreliable", f"{stack.result.disturbed}."))
    if state.verification:
        rows.append(("Exported file", verified_words(state.verification)))
    yield pairs(rows)
    if notes := own_notes(stack.result, state):
        yield Bullets(notes)


def settings_table(found: Ranking, state: SessionState) -> Table:
    """Every setting that was measured, best first, each with its own figures; other values under their setting."""
    every = [each for row in found.rows for each in (row, *row.values)]
    with_energy = any(row.figures and all(row.figures.energy_j) for row in every)
    energy = ("Energy",) if with_energy else ()
    headings = ("Setting", "What", "Speed-up", "Step", "Memory", *energy, "Numerics", "Use", "Remark")
    rows = tuple(_setting(row, with_energy=with_energy) for row in every)
    brief = (
        "Setting",
        "Speed-up",
        "Step",
        "Memory",
        *(energy if state.goal.objective is Objective.ENERGY else ()),
        "Use",
    )
    return Table(headings, rows, frozenset({"Speed-up", "Step", "Memory", *energy}), brief, "Remark")


def _setting(row: Row, *, with_energy: bool) -> tuple[Inline, ...]:
    used = {Tick.ON: "yes", Tick.OFF: "no", Tick.WAITING: "not yet", Tick.REFUSED: "refused"}[row.tick]
    remarks = ["you rejected it"] if row.rejected else []
    if row.consent and row.tick is Tick.OFF and not row.rejected:
        remarks.append("changes results: used only if you accept it")
    code, figures = settings_code(row.candidate.settings), row.figures
    if figures is None:
        energy = [MISSING] if with_energy else []
        return code, row.title, "failed", MISSING, MISSING, *energy, MISSING, used, "; ".join([*remarks, row.note])
    if figures.against is not Against.BASELINE:
        remarks.append(f"{figures.against.value}, {counted(figures.others, 'other setting')} on")
    if row.record is not None and row.candidate.already_on:
        remarks.append(format_worth(row.record))
    return (
        code,
        row.title,
        figures.words,
        figures.steps,
        format_change(figures.memory_bytes[1], figures.memory_bytes[0]),
        *([format_change(figures.energy_j[1], figures.energy_j[0])] if with_energy else []),
        format_numerics(figures.numerics),
        used,
        "; ".join([*remarks, *([row.note] if row.note else [])]),
    )


def settings_sections(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    """The settings and what their trials found beside the speed; then why those that are recommended help."""
    found = ranking(state, catalog)
    if not found.rows:
        return
    blocks: list[Block] = [settings_table(found, state)]
    if state.goal.objective is Objective.MEMORY:
        blocks.append(Paragraph("At equal memory, the faster comes first."))
    if shown := tuple(_shown_besides(tried(state), state)):
        blocks += [Paragraph("Other findings of the trials:"), Bullets(shown)]
    yield Section(f"Settings, {state.goal.words.ranked}", tuple(blocks))
    reasons: dict[str, list[str]] = {}
    for row in found.rows:
        reasons.setdefault(row.why, []).append(row.title)
    if told := tuple(f"{', '.join(titles)}: {why}" for why, titles in reasons.items() if why):
        yield Section("Why they help", (Bullets(told),), brief=())


def batch_advice(state: SessionState, catalog: Catalog) -> str:
    """The recipe's sentence on the size at the knee, when that is not the one in use."""
    knee = knee_of(sweep_of(state))
    if knee is None or state.facts is None or knee == state.facts.workload.batch_size:
        return ""
    return catalog.why(BATCH_SIZE, state.facts, knee)


def _shown_besides(records: Sequence[TrialRecord], state: SessionState) -> Iterator[str]:
    """Sentences on findings beside the speed: worse numerics than declared, notes like graph breaks."""
    for record in records:
        numerics = record.numerics
        worse = f"numerics: {numerics.text}" if numerics and numerics.worse_than_declared else ""
        if told := [text for text in (worse, *own_notes(record.result, state)) if text]:
            yield f"{record.candidate.name}: {'; '.join(told)}."


def untried_table(state: SessionState, catalog: Catalog) -> Table | None:
    """What was not tried, by reason: single values first, for which a larger budget is often enough."""
    left_out: dict[str, list[Candidate]] = {}
    for record in state.trials.values():
        if record.result.outcome is Outcome.SKIPPED:
            left_out.setdefault(record.result.reason, []).append(record.candidate)
    names = {reason: [format_names(candidates)] for reason, candidates in left_out.items()}
    for recipe, reason in state.skipped.items():
        names.setdefault(reason, []).append(title_of(recipe, catalog))
    rows = tuple((reason, ", ".join(each)) for reason, each in names.items())
    return Table(("Why not", "What"), rows) if rows else None


def habits_table(rows: Sequence[HabitRow], catalog: Catalog | None) -> Table:
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
    return Table(headings, cells, frozenset(headings[2:]), ("Habit", "Way", "Its phase", "Step", "Memory"))


def source(state: SessionState) -> Iterator[Block]:
    """The findings in the user's source, with the cost where it was measured."""
    read = ", ".join(state.source_files)
    habits = counted(len(state.findings), "habit") if state.findings else "no habit"
    yield Paragraph(f"{habits} found in {counted(len(state.source_files), 'file')}: {read}. It was read, not run.")
    if state.source_problems:
        yield Bullets(state.source_problems)
    if state.findings:
        rows = tuple((f.place, Code(f.text), f.what, f.advice, price_text(f, state)) for f in state.findings)
        brief = ("Where", "What it does", "Instead", "Measured")
        yield Table(("Where", "Line", "What it does", "Instead", "Measured"), rows, brief=brief)


def settings_code(settings: dict[str, Value]) -> Code:
    """Settings as ``key: value, …``."""
    return Code(", ".join(format_setting(key, value) for key, value in settings.items()))


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
