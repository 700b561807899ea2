"""The facts of the cards beside the ranked list. Pure functions of the ranked settings."""

from __future__ import annotations

from dataclasses import replace

from textual.content import Content

from advisor.figures.formatting import (
    MISSING,
    counted,
    format_break_even,
    format_bytes,
    format_energy,
    format_ms,
    format_percent,
    format_rate,
    format_seconds,
    format_setting,
)
from advisor.figures.roof import upper_bound
from advisor.records import Phase, TrialResult, Verdict, text_of
from advisor.report.conclusions import own_notes, roof_shares, shown_by
from advisor.report.evidence import roof_text
from advisor.report.figures import how_confirmed
from advisor.report.rows import Against, Figures, Fold, Row, Tick, figures_of
from advisor.tui.context import Context
from advisor.tui.facts import Fact
from advisor.tui.text import COLOURS, DIM, shortened
from advisor.tui.views.figures_text import (
    interval_text,
    memory_text,
    numerics_text,
    speedup_text,
    steps_text,
)
from advisor.tui.views.readings import findings_of, remarks, start_up_s, troubles_text
from advisor.tui.views.result_table import TICKS


def row_facts(row: Row, context: Context) -> list[Fact]:
    """The facts of one setting, the most important first."""
    state, record, figures = context.state, row.record, row.figures
    rows: list[Fact] = [("Use", _use(row))]
    if figures is None:
        return [*rows, *([("Why not", row.note)] if row.note else [])]
    rows += figure_facts(figures)
    if row.why:
        rows.append(("Why", row.why))
    if record is not None:
        by_itself = figures_of(replace(record, contribution=None), state) if record.alone else None
        if by_itself and figures.against is Against.REST:
            rows.append(("Alone", f"{by_itself.words}: {steps_text(by_itself)}"))
        rows += _start_up(record.result, record.break_even_steps if record.alone else None, figures)
        rows += [*_bound(row, context), *_latency(record.result)]
        rows += [("Shown", worth)] if (worth := shown_by(record)) else []
        rows += [("GPU", troubles)] if (troubles := troubles_text(record.result.gpu)) is not None else []
        rows += remarks(record.result)
    rows += [(_value_label(value), _value_text(value)) for value in row.values]
    return [*rows, *findings_of(row.candidate.recipe, state.findings)]


def _use(row: Row) -> Content:
    """Whether a setting is used, and the reason where the person wants something else."""
    sign, style = TICKS[row.tick]
    told = {
        Tick.ON: "exported" if not row.star else "recommended, and exported",
        Tick.OFF: "rejected by you" if row.rejected else "not exported",
        Tick.WAITING: "accepted; measured with the others next",
        Tick.REFUSED: f"accepted, but not exported: {row.note or 'it could not be measured with the others'}",
    }[row.tick]
    if row.consent and row.tick is Tick.OFF and not row.rejected:
        return Content.styled("! changes results: measured, used only if you press a", "$warning")
    why = f": {row.note}" if row.tick is Tick.OFF and row.note and row.figures and not row.rejected else ""
    return Content.assemble((f"{sign} {told}", style if row.tick is not Tick.OFF else ""), (why, DIM))


def figure_facts(figures: Figures, what: str = "alone, ") -> list[Fact]:
    """Speed, step, memory and numerics, each without and with the settings."""
    colour = COLOURS.get(figures.verdict, "")
    how = f"{what}{figures.against.value}"
    if figures.against is not Against.BASELINE:
        how = f"{figures.against.value} ({counted(figures.others, 'other setting')} on)"
    elif figures.effect.paired:
        how = "in turn with the baseline"
    told = speedup_text(figures) if figures.verdict is not Verdict.SAME else f"{speedup_text(figures)} (same)"
    rows: list[Fact] = [
        (
            "Speed",
            Content.assemble(
                (told, f"bold {colour}".strip()),
                f"  {interval_text(figures.effect)}  ",
                ("unclear (noise)  " if figures.effect.verdict is Verdict.UNCLEAR else "", ""),
                (how, DIM),
            ),
        ),
        ("Step", f"{steps_text(figures)}{f' for {figures.samples} samples' if figures.samples else ''}"),
        ("Memory", memory_text(figures)),
    ]
    if all(figures.energy_j) and figures.against is Against.BASELINE:
        before, after = figures.energy_j
        rows.append(("Energy", f"{format_energy(before)} → {format_energy(after)} a sample"))
    numerics = figures.numerics
    style = "$error" if numerics is not None and numerics.worse_than_declared else ""
    rows.append(("Numerics", Content.styled(numerics_text(figures), style)))
    if numerics is not None and numerics.text:
        rows.append(("", Content.styled(numerics.text, style or DIM)))
    return rows


def _start_up(result: TrialResult, break_even: int | None, figures: Figures) -> list[Fact]:
    spent_s = start_up_s(result)
    if spent_s is None:
        return []
    pays = ""
    if figures.against is Against.BASELINE and figures.verdict is Verdict.FASTER:
        pays = f", pays off {format_break_even(break_even)}"
    return [("Start-up", f"{format_seconds(spent_s)}{pays}")]


def _bound(row: Row, context: Context) -> list[Fact]:
    """The upper bound of the gain, where the recipe touches some phases only."""
    recipe, profile = context.recipe(row.candidate.recipe), context.state.profile
    if recipe is None or profile is None or not recipe.phases or row.candidate.already_on:
        return []
    bound = upper_bound(profile, recipe.phases)
    if bound is None:
        return []
    names = ", ".join(phase.value for phase in Phase if phase in recipe.phases)
    return [("Limit", f"{bound:.2f}x ({names} is {format_percent(profile.share(*recipe.phases))} of the step)")]


def _latency(result: TrialResult) -> list[Fact]:
    calls = result.latency
    if calls is None:
        return []
    times = ((50, calls.p50_ms), (95, calls.p95_ms), (99, calls.p99_ms))
    return [("Calls", " · ".join(f"p{share} {format_ms(time_ms)}" for share, time_ms in times))]


def _value_label(row: Row) -> str:
    return shortened(text_of(row.candidate.value), 10)


def _value_text(row: Row) -> Content:
    if row.figures is None:
        return Content.styled(row.note or MISSING, DIM)
    peak = format_bytes(row.figures.memory_bytes[1])
    told = f"{speedup_text(row.figures)} ({interval_text(row.figures.effect)})  {steps_text(row.figures)}  {peak}"
    return Content.styled(told, COLOURS.get(row.figures.verdict, ""))


def together_facts(context: Context) -> list[Fact]:
    """The facts of the combination."""
    state, ranking = context.state, context.ranking
    stack, figures = state.stack, ranking.together
    if stack is None or figures is None:
        return []
    rows = figure_facts(figures, "")
    rate = f"{format_rate(1e3 * (stack.result.batch_size or 0) / figures.after_ms)}" if stack.result.batch_size else ""
    rows += [("Rate", rate)] if rate and figures.samples is None else []
    rows += _start_up(stack.result, stack.break_even_steps, figures)
    rows.append(("How", how_confirmed(stack)))
    if reached := [roof_text(share) for share in roof_shares(state) if share]:
        rows.append(("Roof", " → ".join(reached)))
    listed = [format_setting(key, value) for key, value in stack.settings.items()]
    rows += [("" if place else "Settings", setting) for place, setting in enumerate(listed)]
    rows += [("Left out", f"{key}: {reason}") for key, reason in stack.dropped.items()]
    rows += [("Note", note) for note in own_notes(stack.result, state)]
    if stack.result.disturbed:
        rows.append(("!", Content.styled(f"Unreliable: {stack.result.disturbed}.", "$warning")))
    return rows


def fold_facts(fold: Fold) -> list[Fact]:
    """The rows that are folded, each with its reason."""
    return [("", Content.assemble((name, "bold"), f"  {reason}")) for name, reason in fold.entries]


def card_text(card: str) -> Content:
    """A recipe's card: underlined headings in bold, paragraphs as one line each so that they wrap to the view."""
    parts: list[Content] = []
    paragraph: list[str] = []
    lines = [*card.strip().split("\n"), ""]
    for position, line in enumerate(lines):
        heading = position == 0 or (position + 1 < len(lines) and _is_rule(lines[position + 1]))
        if line and not heading and not _is_rule(line):
            paragraph.append(line.strip())
            continue
        if paragraph:
            parts.append(Content(" ".join(paragraph)))
            paragraph = []
        if heading:
            parts.append(Content.styled(line, "bold $primary"))
        elif not line:
            parts.append(Content(""))
    return Content("\n").join(parts).rstrip()


def _is_rule(line: str) -> bool:
    return len(line) > 2 and not line.strip("-")
