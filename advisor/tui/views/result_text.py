"""The headline of view 1, its table's cells and the cards, as text. Pure functions of the ranked settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    counted,
    format_break_even,
    format_bytes,
    format_change,
    format_energy,
    format_ms,
    format_numerics,
    format_percent,
    format_rate,
    format_seconds,
    format_setting,
)
from advisor.figures.roof import upper_bound
from advisor.records import Comparison, Objective, Phase, TrialResult, Verdict, text_of
from advisor.report.conclusions import count_untried, own_notes, shown_by, stack_helps
from advisor.report.figures import how_confirmed, interval_words, other_batch
from advisor.report.rows import SIGNS, Against, Figures, Fold, Ranking, Row, Tick, figures_of
from advisor.report.several_gpus import result_sentence, row_words
from advisor.report.verdict import Cause, no_result
from advisor.tui.context import Context, is_about_others
from advisor.tui.text import COLOURS, DIM, bracketed, interval_bar, said_text, shortened
from advisor.tui.views.profile_text import roof_before_and_after
from advisor.tui.views.readings import findings_of, remarks, start_up_s, troubles_text
from advisor.tui.widgets.fact_list import Fact
from advisor.tui.widgets.table import Column

TOGETHER, YOURS = "together", "yours"
TICKS: Mapping[Tick, tuple[str, str]] = {
    Tick.ON: ("☑", "bold $success"),
    Tick.OFF: ("☐", DIM),
    Tick.WAITING: ("◷", "$accent"),
    Tick.REFUSED: ("☒", "bold $error"),
}
_SEPARATOR = Content.styled(" · ", DIM)

# --- the headline -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure for large digits, its colour, and the lines beside it."""

    figure: str
    style: str
    lines: tuple[Content, ...]


def headline(context: Context, *, wide: bool = True) -> Headline:
    """The result so far: a speed-up beside the two step times of which it is the quotient; before that the step."""
    state, ranking = context.state, context.ranking
    if state.failure:
        return Headline("", "", (Content.styled(state.failure.message, "bold $error"), Content(state.failure.hint)))
    if state.baseline is None or ranking.step_ms is None:
        return _before_the_baseline(state, context.kept_trials)
    if ranking.pending:
        told = Content.styled(f"The combination is not measured yet: {ranking.pending}.", "$warning")
        return _own_step(ranking.step_ms, "", told, state)
    if ranking.together:
        return _of_the_combination(state, ranking, ranking.together, wide=wide)
    return _own_step(ranking.step_ms, interval_words(state.baseline), _best_so_far(state, ranking), state)


def _own_step(step_ms: float, interval: str, found: Content, state: SessionState) -> Headline:
    """The person's own step in large digits, with its unit and what was found beside it."""
    figure, unit = format_ms(step_ms).split(" ")
    first = Content.assemble(f"{unit} a step with your settings", (f"  {interval}", DIM))
    return Headline(figure, "$primary", (first, found, _next(state)))


def _before_the_baseline(state: SessionState, kept_trials: int) -> Headline:
    if state.finished:
        told = Content.styled("Nothing was measured: the session ended before its baseline.", "bold $warning")
        return Headline("", "", (told, Content("Run it again.")))
    then = "Then the usual combination is tried, and improved one change at a time."
    if kept_trials:
        then = f"{counted(kept_trials, 'trial')} of this session are shown after that."
    if state.live_ms:
        figure, unit = format_ms(median(state.live_ms)).split(" ")
        words = Content(f"{unit} a step with your settings, so far")
        return Headline(figure, "$primary", (words, Content.styled(then, DIM)))
    doing = "Loading your model in a separate process" if state.is_loading else "Timing your own step first"
    about = "Your files are not changed." if state.is_loading else then
    return Headline("", "", (Content.styled(f"{doing}…", "bold"), Content.styled(about, DIM)))


def _of_the_combination(state: SessionState, ranking: Ranking, together: Figures, *, wide: bool) -> Headline:
    stack = state.stack
    assert stack is not None
    sure = how_confirmed(stack)
    sure = "not confirmed yet" if not stack.confirmed and state.finished is None else sure
    helps = stack_helps(state)
    style = "$success" if helps else "$warning"
    effect = together.effect
    words = {Verdict.FASTER: "faster", Verdict.SLOWER: "the speed", Verdict.SAME: "the same speed"}
    first = Content.assemble(
        (words.get(effect.verdict, "unclear (noise)"), f"bold {style}"),
        f": {steps_text(together)} a step{other_batch(stack, state.baseline)}",
        (f"  {interval_text(effect)}, {sure}", DIM),
    )
    figure = f"{effect.speedup:.{_digits(effect)}f}x"
    if state.goal.objective in (Objective.MEMORY, Objective.ENERGY):
        pair = together.memory_bytes if state.goal.objective is Objective.MEMORY else together.energy_j
        slower = f"{state.goal.objective.value} at {figure} the speed, "
        figure, first = format_change(pair[1], pair[0]), Content(slower) + first
    count = len(ranking.settings)
    costs = [
        Content.assemble("memory ", memory_text(together)),
        Content(f"numerics {numerics_text(together)}"),
        *([Content(f"{count} settings" if count > 1 else "one setting")] if wide else []),
    ]
    return Headline(figure, style, (first, _SEPARATOR.join(costs), *_several_gpus(state), _next(state)))


def _best_so_far(state: SessionState, ranking: Ranking) -> Content:
    found = no_result(state)
    best = next((row for row in ranking.rows if row.figures and row.figures.verdict is Verdict.FASTER), None)
    if best and best.figures:
        opt_in = " It changes results: press a to use it." if best.consent and best.tick is Tick.OFF else ""
        told = f"{best.figures.effect.speedup:.{_digits(best.figures.effect)}f}x faster with {best.name}"
        return Content.assemble((told, "bold $success"), f": {steps_text(best.figures)} a step.", (opt_in, "$warning"))
    if state.finished:
        return Content.styled(found.sentence, "bold $warning" if found.cause is not Cause.NO_GAIN else "bold")
    return Content.styled("Nothing faster yet." if ranking.rows else "The usual combination is tried first.", DIM)


def _several_gpus(state: SessionState) -> list[Content]:
    record = state.scaling
    if record is None or not record.rows or not (record.best or state.finished):
        return []
    best = record.row(record.best)
    return [Content.styled(row_words(best), "bold $success") if best else Content(result_sentence(record))]


def _next(state: SessionState) -> Content:
    """What to do next."""
    untried = count_untried(state)
    if state.finished is None:
        return Content.styled("The search goes on. 4 exports what is known so far.", DIM)
    parts = [Content.assemble(("4", "bold $accent"), " exports it")] if state.stack_settings else []
    if untried:
        parts.append(Content.assemble(f"{untried} not tried (out of time). ", ("R", "bold $accent"), " tries them"))
    elif not state.stack_settings:
        parts.append(Content.styled("3 shows everything that ran.", DIM))
    return _SEPARATOR.join(parts)


def alert_text(context: Context) -> Content:
    """The warning that matters most: other programs on this machine, with the key that waits; else the last one."""
    warnings = [said for said in context.state.messages if said.severity != "information"]
    if not warnings:
        return Content("")
    busy = [said for said in warnings if is_about_others(said)]
    said = busy[-1] if busy else warnings[-1]
    waits = " w waits until it is quiet." if busy and context.can_wait else ""
    more = f"  (+{len(warnings) - 1}: see your settings)" if len(warnings) > 1 else ""
    text = said_text(said)
    return Content.styled(f"! {text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}{waits}{more}", "$warning")


# --- figures as text ----------------------------------------------------------------------------------------------


def _digits(comparison: Comparison) -> int:
    return 2 if comparison.speedup < 9.995 else 1 if comparison.speedup < 99.95 else 0


def speedup_text(figures: Figures) -> str:
    """The speed-up: ``1.39x`` alone, ``+1.24x`` on top of the others, ``in 1.51x`` of all of them together."""
    told = f"{figures.effect.speedup:.{_digits(figures.effect)}f}x"
    return f"{SIGNS[figures.against]}{told}"


def interval_text(comparison: Comparison) -> str:
    """The interval of a speed-up: ``1.49–1.53``."""  # noqa: RUF002 - the en dash stands between the ends of an interval
    digits = _digits(comparison)
    return f"{comparison.ci_low:.{digits}f}–{comparison.ci_high:.{digits}f}"  # noqa: RUF001


def steps_text(figures: Figures) -> str:
    """The step times without and with the settings: ``73.0 → 48.4 ms``."""
    before, after = format_ms(figures.before_ms), format_ms(figures.after_ms)
    return f"{_without_unit(before, after)} → {after}"


def _without_unit(before: str, after: str) -> str:
    """A figure without its unit where the one behind it has the same."""
    number, _, unit = before.partition(" ")
    return number if after.endswith(f" {unit}") else before


def memory_text(figures: Figures) -> Content:
    """The peak memory without and with the settings, and the change."""
    before, after = figures.memory_bytes
    if before is None:
        return Content(format_bytes(after))
    return Content.assemble(_pair(figures.memory_bytes), " ", bracketed(format_change(after, before)))


def numerics_text(figures: Figures) -> str:
    """The class of the numerics with its figure."""
    return "not compared" if figures.numerics is None else format_numerics(figures.numerics)


# --- the table ----------------------------------------------------------------------------------------------------

_NAME = Column("name", "setting", 18)
_SPEED = Column("speed", "speed-up", 8, number=True)
_BAR = Column("bar", "interval", 9)
_STEP = Column("step", "step", 8, number=True)
_STEPS = Column("steps", "without → with", 15, number=True)
_MEMORY = Column("memory", "memory", 9, number=True)
_MEMORIES = Column("memories", "memory", 17, number=True)
_NUMERICS = Column("numerics", "numerics", 8)
_TICK = Column("tick", "use", 3)
# What a table gets with more room, in this order; the least important comes last.
_BY_WEIGHT = (_NAME, _TICK, _SPEED, _STEP, _MEMORY, _BAR, _NUMERICS)
_LEFT_TO_RIGHT = (_NAME, _SPEED, _BAR, _STEP, _STEPS, _MEMORY, _MEMORIES, _NUMERICS, _TICK)
_LONGEST_NAME, _WIDEST_BAR = 36, 33


def columns_of(width: int) -> tuple[Column, ...]:
    """The columns for a table of this width: the most important ones that fit."""
    room, kept = width - 1, list[Column]()
    for column in _BY_WEIGHT:
        if column.width + 2 > room:
            break
        kept.append(column)
        room -= column.width + 2
    for narrow, wide in ((_STEP, _STEPS), (_MEMORY, _MEMORIES)):
        if len(kept) == len(_BY_WEIGHT) and room >= wide.width - narrow.width:
            kept[kept.index(narrow)] = wide
            room -= wide.width - narrow.width
    wider = {_NAME.key: min(max(0, room), _LONGEST_NAME - _NAME.width)}
    wider[_BAR.key] = min(max(0, room - wider[_NAME.key]), _WIDEST_BAR - _BAR.width)
    if _NAME not in kept:
        return (Column(_NAME.key, _NAME.label, max(1, width - 3)),)
    return tuple(
        Column(column.key, column.label, column.width + wider.get(column.key, 0), column.number)
        for column in _LEFT_TO_RIGHT
        if column in kept
    )


Cells = dict[str, Content]
Scale = tuple[float, float, int]  # the ends of the line of all intervals, as speed-ups, and its cells


def table_rows(context: Context, unfolded: Iterable[str], bar: int = _BAR.width) -> dict[str, Cells]:
    """The cells of each row, by their keys: the combination, the settings, your own, and what is folded."""
    ranking, state, open_rows = context.ranking, context.state, set(unfolded)
    rows: dict[str, Cells] = {}
    scale = (*_scale(ranking), bar)
    if ranking.together and len(ranking.settings) > 1:
        name = Content.assemble(("★ ", "$accent"), (f"all {len(ranking.settings)} together", "bold"))
        rows[TOGETHER] = {**_figure_cells(ranking.together, scale), "name": name, "tick": _ticked(Tick.ON)}
    elif ranking.pending and ranking.settings:
        name = Content.assemble("  ", (f"{len(ranking.settings)} together", "bold"))
        rows[TOGETHER] = {"name": name, "speed": Content.styled("not yet", "$warning")}
    for row in ranking.rows:
        is_open = row.key in open_rows or any(value.tick in (Tick.WAITING, Tick.REFUSED) for value in row.values)
        rows[row.key] = row_cells(row, scale, unfolded=is_open)
        if is_open:
            rows |= {value.key: row_cells(value, scale, inner=True) for value in row.values}
    rows[YOURS] = _own_cells(ranking, state)
    for fold in ranking.folds:
        is_open = fold.key in open_rows
        rows[fold.key] = {"name": Content.styled(f"{'▾' if is_open else '▸'} {fold.title}", DIM)}
        if is_open:
            rows |= {f"{fold.key}:{name}": {"name": Content.styled(f"    {name}", DIM)} for name, _ in fold.entries}
    return rows


def _own_cells(ranking: Ranking, state: SessionState) -> Cells:
    name = Content.assemble("  ", ("your settings", ""))
    if ranking.step_ms is None:
        doing = "" if state.finished or state.failure else "loading…" if state.is_loading else "timing…"
        return {"name": name, "speed": Content.styled(doing, "$accent")}
    step, memory = Content(format_ms(ranking.step_ms)), Content(format_bytes(ranking.memory_bytes))
    return {
        "name": name,
        "speed": Content("1x"),
        "bar": Content.styled(f"±{format_percent(state.baseline.half_width, digits=1)}" if state.baseline else "", DIM),
        "step": step,
        "steps": step,
        "memory": memory,
        "memories": memory,
        "numerics": Content.styled("yours", DIM),
    }


def row_cells(row: Row, scale: Scale, *, unfolded: bool = False, inner: bool = False) -> Cells:
    """The cells of a setting. A star is recommended; the tick says whether it is exported."""
    sign = ("★ ", "$accent") if row.star else ("▶ ", "$accent") if row.running else ("  ", "")
    values = f" {'▾' if unfolded else '▸'}{len(row.values)}" if row.values else ""
    style = f"{DIM} strike" if row.rejected else ""
    name = Content.assemble("  " if inner else "", sign, (row.name, style), (values, DIM))
    cells = {"name": name, "tick": _ticked(row.tick, consent=row.consent)}
    if row.figures is not None:
        return _figure_cells(row.figures, scale) | cells
    told = Content.styled("running", "$accent") if row.running else Content.styled("failed", "$warning")
    return cells | {"speed": told}


def _ticked(tick: Tick, *, consent: bool = False) -> Content:
    sign, style = TICKS[tick]
    return Content.assemble((f" {sign}", style), ("!", "$warning") if consent and tick is Tick.OFF else "")


def _figure_cells(figures: Figures, scale: Scale) -> Cells:
    colour = COLOURS.get(figures.verdict, DIM)
    _, memory = figures.memory_bytes
    numerics = figures.numerics
    worse = numerics is not None and numerics.worse_than_declared
    return {
        "speed": Content.styled(speedup_text(figures), f"bold {colour}" if colour != DIM else DIM),
        "bar": Content.styled(_drawn(figures.effect, scale), colour),
        "step": Content(format_ms(figures.after_ms)),
        "steps": Content(steps_text(figures)),
        "memory": Content(format_bytes(memory)),
        "memories": _pair(figures.memory_bytes),
        "numerics": Content.styled(numerics.measured.value if numerics else "unknown", "$error" if worse else ""),
    }


def _pair(peaks: tuple[int | None, int | None]) -> Content:
    before, after = (format_bytes(peak) for peak in peaks)
    return Content(after if peaks[0] is None else f"{_without_unit(before, after)} → {after}")


def _scale(ranking: Ranking) -> tuple[float, float]:
    """The ends of the line of all intervals: no further than twice as far as the largest speed-up from 1x."""
    effects = [row.figures.effect for row in ranking.rows if row.figures]
    effects += [ranking.together.effect] if ranking.together else []
    low = min([0.9, *(max(effect.ci_low, effect.speedup / 1.5) for effect in effects)])
    high = max([1.25, *(min(effect.ci_high, effect.speedup * 1.5) for effect in effects)])
    return max(0.05, low), max(high, 1.1 * max(0.05, low))


def _drawn(comparison: Comparison, scale: Scale) -> str:
    return interval_bar(comparison, *scale) if scale[2] and all(map(math.isfinite, scale)) else ""


def figure_of(row: Row, column: str) -> float | str | None:
    """The figure by which a row is sorted in a column; None where it has none."""
    if column == "name":
        return row.name
    if column == "tick":
        return float(list(Tick).index(row.tick))
    if (figures := row.figures) is None:
        return None
    if column == "numerics":
        return float(figures.numerics.measured.severity) if figures.numerics else None
    if column in ("memory", "memories"):
        return figures.memory_bytes[1]
    return figures.after_ms if column in ("step", "steps") else -figures.effect.speedup


# --- the cards ----------------------------------------------------------------------------------------------------


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
        rows += [("Shown", text) for text in shown_by(record, state, context.catalog)]
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
    if reached := roof_before_and_after(state):
        rows.append(("Roof", reached))
    listed = [format_setting(key, value) for key, value in stack.settings.items()]
    rows += [("" if place else "Settings", setting) for place, setting in enumerate(listed)]
    rows += [("Left out", f"{key}: {reason}") for key, reason in stack.dropped.items()]
    rows += [("Note", note) for note in own_notes(stack.result, state)]
    if stack.result.disturbed:
        rows.append(("!", Content.styled(f"Unreliable: {stack.result.disturbed}.", "$warning")))
    return rows


def fold_facts(fold: Fold) -> list[Fact]:
    """What is folded: each with its reason."""
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
