"""Sections about settings: the card of one setting, the combination, the table of all, and the settings not tried."""

from collections.abc import Iterator
from dataclasses import replace

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    format_break_even,
    format_bytes,
    format_change,
    format_numerics,
    format_outcome,
    format_rate,
    format_seconds,
    format_setting,
    format_worth,
)
from advisor.recipe import card
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Objective, StackRecord, TrialResult, Verdict, text_of
from advisor.report.document import (
    Block,
    Code,
    Inline,
    Listing,
    Section,
    Table,
    grouped,
    pairs,
    section,
    shown,
    table_of,
)
from advisor.report.figures import before_and_after, call_words, file_finding, how_confirmed
from advisor.report.rows import Against, Figures, Row, Tick, figures_of, ranking, title_of, together_of
from advisor.report.verdict import no_result

Pair = tuple[str, Inline]


# --- one setting --------------------------------------------------------------------------------------------------


def setting_sections(row: Row, state: SessionState, catalog: Catalog | None) -> tuple[Section, ...]:
    """The card of a setting, without its title: facts, code, and the recipe's text divided by its headings."""
    recipe = catalog.recipes.get(row.candidate.recipe) if catalog else None
    # A value from a damaged record, or from another version of the recipe, has no code.
    code = recipe.code(row.candidate.value).rstrip() if recipe and recipe.accepts(row.candidate.value) else ""
    found = [section("", pairs(_facts(row, state))), section("The code", Listing(code, "python"))]
    title, paragraphs = "About this setting", list[str]()
    for block in card(recipe).split("\n\n") if recipe else ():
        lines = block.strip().split("\n")
        if len(lines) > 1 and not lines[1].strip("-="):  # an underlined heading
            found.append(section(title, *paragraphs))
            title, paragraphs, lines = lines[0], [], lines[2:]
        paragraphs.append(" ".join(map(str.strip, lines)))
    return shown([*found, section(title, *paragraphs)])


def _facts(row: Row, state: SessionState) -> Iterator[Pair]:
    """The facts about a setting, the most important first."""
    record, figures = row.record, row.figures
    yield "Use", _use(row)
    if figures is None:
        if row.note:
            yield "Why not", row.note
        return
    yield from figure_pairs(figures, figures.compared)
    if row.why:
        yield "Why", row.why
    if record is not None:
        if record.alone and figures.against is Against.REST:
            alone = figures_of(replace(record, contribution=None), state)
            yield from [("Alone", f"{alone.words}: {alone.steps}")] if alone else []
        yield from _start_up_pairs(record.result, record.break_even_steps if record.alone else None, figures)
        if record.result.latency:
            yield "Calls", call_words(record.result.latency)
        if record.candidate.already_on:
            yield "Shown", format_worth(record)
        yield from doubts_and_notes(record.result, state)
    for value in row.values:
        told = value.note or "not measured"
        if found := value.figures:
            told = f"{found.words}  {found.steps}  {format_bytes(found.memory_bytes[1])}"
        yield text_of(value.candidate.value), told
    for finding in state.findings:
        if finding.recipe == row.candidate.recipe:
            yield "Found at", f"{finding.place}  {finding.what}: {finding.advice}. {finding.text.strip()}"


def _use(row: Row) -> str:
    """Whether a setting is used; if the person accepted it and it is not used, also the reason."""
    if row.rejected:
        return "rejected by you"
    if row.consent and row.tick is Tick.OFF:
        return "changes results: used only if you accept it"
    recommended = "recommended, and " if row.star and row.tick is Tick.ON else ""
    has_reason = row.tick is Tick.REFUSED or (row.tick is Tick.OFF and row.figures)
    return f"{recommended}{row.tick.value}" + (f": {row.note}" if row.note and has_reason else "")


def figure_pairs(figures: Figures, how: str) -> Iterator[Pair]:
    """Speed, step, memory and numerics without and with the settings; ``how`` says how the speed was measured."""
    verdict = {Verdict.SAME: "same, ", Verdict.UNCLEAR: "unclear (noise), "}.get(figures.effect.verdict, "")
    yield "Speed-up", f"{figures.words}, {verdict}{how}"
    samples = f" for {figures.samples} samples" if figures.samples else ""
    yield "Step", f"{figures.steps}{samples} ({format_change(figures.after_ms, figures.before_ms)})"
    yield "Memory", figures.memory_in_full
    if figures.energy and figures.against is Against.BASELINE:
        before_j, after_j = figures.energy_j
        yield "Energy", f"{figures.energy} ({format_change(after_j, before_j)})"
    yield "Numerics", format_numerics(figures.numerics)
    if figures.numerics and figures.numerics.text:
        yield "", figures.numerics.text


def _start_up_pairs(result: TrialResult, break_even: int | None, figures: Figures) -> Iterator[Pair]:
    """The seconds that applying the settings and warming up took, and the number of steps after which they pay off."""
    parts = [part for part in (result.prepare_s, result.warmup_s) if part is not None]
    if parts:
        faster = figures.against is Against.BASELINE and figures.verdict is Verdict.FASTER
        pays = f", pays off {format_break_even(break_even)}" if faster else ""
        yield "Start-up", f"{format_seconds(sum(parts))}{pays}"


def doubts_and_notes(result: TrialResult, state: SessionState) -> Iterator[Pair]:
    """The disturbance of a trial, and those of its notes that the baseline does not have."""
    if result.disturbed:
        yield "Unreliable", f"{result.disturbed}."
    yield from (("Note", note) for note in _own_notes(result, state))


# --- the combination ----------------------------------------------------------------------------------------------


def stack_blocks(state: SessionState) -> Iterator[Block]:
    """The stack, if there is one: its settings, their effect, and the settings left out."""
    stack, figures = state.stack, together_of(state)
    if stack is None or not (stack.settings or stack.dropped):
        return
    if not stack.settings:
        yield f"None: {stack.result.reason if stack.pending else no_result(state)[0]}."
    else:
        yield Listing(Settings(stack.settings).to_yaml(), "yaml")
        if stack.pending:
            yield f"There is no figure for them: {stack.result.reason}."
        elif figures is None:
            yield f"They could not be measured together: {format_outcome(stack.result)}"
        else:
            yield pairs(_stack_pairs(state, stack, figures))
    if stack.dropped:
        yield "Left out of the combination:"
        yield tuple(f"{key}: {reason}" for key, reason in stack.dropped.items())


def _stack_pairs(state: SessionState, stack: StackRecord, figures: Figures) -> Iterator[Pair]:
    """The figures of the settings together."""
    yield from figure_pairs(figures, how_confirmed(stack, state))
    if (size := stack.result.batch_size) and figures.samples is None:
        rates = [1e3 * size / step_ms for step_ms in (figures.before_ms, figures.after_ms)]
        yield "Throughput", before_and_after(format_rate, *rates)
    yield from _start_up_pairs(stack.result, stack.break_even_steps, figures)
    yield from doubts_and_notes(stack.result, state)
    if state.verification:
        yield "Exported file", file_finding(state, state.verification)[1]


def _own_notes(result: TrialResult, state: SessionState) -> tuple[str, ...]:
    """Those notes of a trial that the baseline does not have (a graph break, for example)."""
    known = state.baseline.result.notes if state.baseline else ()
    return tuple(note for note in result.notes if note not in known)


# --- all settings -------------------------------------------------------------------------------------------------

_USED = {Tick.ON: "yes", Tick.OFF: "no", Tick.WAITING: "not yet", Tick.REFUSED: "refused"}
_BRIEF = ("Setting", "Speed-up", "Step", "Memory", "Use")


def settings_sections(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    """Every measured setting with its figures, the best first; then the reasons why the recommended ones help."""
    found, goal = ranking(state, catalog), state.goal.objective
    cells = [_cells(row, state) for row in found.every]
    brief = (*_BRIEF, "Energy") if goal is Objective.ENERGY else _BRIEF
    table = table_of(cells, ("Setting", "What", "Numerics", "Use", "Remark"), brief=brief, remarks="Remark")
    more = "At equal memory, the faster comes first." if cells and goal is Objective.MEMORY else ""
    yield section(f"Settings, {state.goal.words.ranked}", table, more)
    told = tuple(f"{titles}: {why}" for titles, why in grouped((row.title, row.why) for row in found.rows))
    yield section("Why they help", told, whole=True)


def _cells(row: Row, state: SessionState) -> dict[str, Inline]:
    """The cells of a setting by their headings."""
    figures = row.figures
    return {
        "Setting": Code(", ".join(format_setting(key, value) for key, value in row.candidate.settings.items())),
        "What": row.title,
        "Speed-up": figures.words if figures else "failed",
        "Step": figures.steps if figures else MISSING,
        "Memory": figures.memory_change if figures else MISSING,
        "Energy": format_change(figures.energy_j[1], figures.energy_j[0]) if figures else MISSING,
        "Numerics": format_numerics(figures.numerics) if figures else MISSING,
        "Use": _USED[row.tick],
        "Remark": "; ".join(_remarks(row, state)),
    }


def _remarks(row: Row, state: SessionState) -> Iterator[str]:
    """The remarks on a setting: decisions, the comparison behind its figures, numerics, and notes of its trial."""
    figures, record = row.figures, row.record
    if row.rejected or (row.consent and row.tick is Tick.OFF):
        yield _use(row)
    if figures and figures.against is not Against.BASELINE:
        yield figures.compared
    if figures and record and row.candidate.already_on:
        yield format_worth(record)
    if row.note:
        yield row.note
    if (numerics := figures and figures.numerics) and (numerics.worse_than_declared or numerics.score):
        yield f"numerics: {numerics.text}"
    if record:
        yield from _own_notes(record.result, state)


def untried_table(state: SessionState, catalog: Catalog) -> Table:
    """The settings not tried, by reason. Those for which a larger budget is often enough come first."""
    entries = (entry for fold in ranking(state, catalog).folds for entry in fold.entries)
    told = grouped((title_of(name, catalog), reason) for name, reason in entries)
    return Table(("Why not", "What"), tuple((reason, names) for names, reason in told))
