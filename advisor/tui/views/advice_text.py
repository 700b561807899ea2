"""The texts of the advice view on a recommendation, and the sweep over batch sizes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.content import Content

from advisor.experiment.control import Decision
from advisor.experiment.objective import Yardstick
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_bytes,
    format_difference,
    format_interval,
    format_ms,
    format_percent,
    format_rate,
    format_setting,
    interval_or_words,
)
from advisor.figures.roof import upper_bound
from advisor.figures.sweep import SweepPoint, headings_of, knee_of, sweep_chart, sweep_rows
from advisor.recipe.settings import Settings
from advisor.records import (
    Candidate,
    Mode,
    NumericsResult,
    ParetoPoint,
    Phase,
    Recommendation,
    TrialRecord,
    Value,
    Verdict,
    text_of,
)
from advisor.report.conclusions import shown_by, stack_helps
from advisor.report.evidence import sweep_sentence
from advisor.report.figures import IN_TURN, own_figures, verdict_shown
from advisor.report.pareto import front_of
from advisor.report.verdict import Cause, missed_words, no_result
from advisor.report.waterfall import memory_on_the_stack
from advisor.tui.context import Context
from advisor.tui.text import DIM, bar, mark, memory_against, numerics_words, on_the_stack, own_effect, ratio
from advisor.tui.views.readings import energy_text, findings_of, remarks, start_up_text, trade_text, troubles_text
from advisor.tui.widgets.fact_list import Fact

_IN_STACK = "★ in stack"


def nothing_helped(state: SessionState) -> str:
    """The text at the end of a session that recommends nothing."""
    if stack_helps(state):
        return "No setting is recommended alone. View 3 shows the stack, which is measured as one; view 5 exports it."
    missed, found = missed_words(state), no_result(state)
    rest = f" {missed}: R tries them, for as long again." if missed else ""
    return f"{found.sentence}{rest} View 3 shows {'why' if found.cause is Cause.NOT_TRIED else 'each trial'}."


def front_text(state: SessionState) -> Content:
    """The front of speed against memory, a line for each point, the smallest first."""
    lines = [
        Content.assemble(
            f"{format_bytes(point.peak_reserved_bytes):>8} ",
            (f"{interval_or_words(point.comparison) if point.comparison else '1x'}  ", DIM),
            _in_short(point, state),
        )
        for point in front_of(state)
    ]
    return Content("\n").join(lines)


def _in_short(point: ParetoPoint, state: SessionState) -> str:
    """A point's settings in few words: their values, or their names where the value is a switch or a number."""
    if not point.settings:
        return "what you have"
    words = (_word(key.rpartition(".")[2], value) for key, value in Settings(point.settings).items())
    return f"{'stack: ' if point.settings == state.stack_settings else ''}{', '.join(words)}"


def _word(name: str, value: Value) -> str:
    if value is True:
        return name
    return value if isinstance(value, str) else f"{name} {text_of(value)}"


def list_entry(
    item: Recommendation, decision: Decision | None, by: Yardstick | None, *, wide: bool, value: Value | None = None
) -> Content:
    """Two lines of the list: rank, mark, title; then a check box, the effect and the decision.

    That is a mark when not ``wide``. ``value`` is the one that was accepted, where it was one of several.
    """
    record = item.record
    first = Content.assemble((f"{item.rank:>2} ", DIM), mark(record), " ", (item.title, "bold"))
    badge = _badge(item, decision, value)
    if record.contribution is not None and (badge or not wide):  # the badge needs the room, or a sign says the same
        effect = on_the_stack(record.contribution, short=True)
        badge = badge or Content.styled(_IN_STACK, "$accent")
    else:
        effect = own_effect(record, by, short=True)
    box = ("☑", "$success") if is_checked(item, decision) else ("☐", DIM)
    second = Content.assemble("  ", box, " ", effect, "  ", badge if wide else badge[:1])
    return first + Content("\n") + second


def is_checked(item: Recommendation, decision: Decision | None) -> bool:
    """Whether a recommendation is in the stack, or will be: accepted, or in it and not rejected."""
    return decision is Decision.ACCEPTED or (item.in_stack and decision is not Decision.REJECTED)


def _badge(item: Recommendation, decision: Decision | None, value: Value | None = None) -> Content:
    if decision is Decision.ACCEPTED and value is not None and value != item.record.candidate.value:
        return Content.styled(f"✓ accepted: {text_of(value)}", "$success")
    if decision is Decision.ACCEPTED:
        return Content.styled("✓ accepted", "$success")
    if decision is Decision.REJECTED:
        return Content.styled("✗ rejected", "$error")
    if item.needs_consent:
        return Content.styled("! opt-in", "$warning")
    told = item.record.contribution is not None  # its figure says already that it is on the stack
    return Content.styled(_IN_STACK, "$accent") if item.in_stack and not told else Content("")


_SIGNS = {"★": "in stack", "!": "opt-in"}  # the others follow from the person's own keys


def signs_text(entries: Iterable[Content]) -> str:
    """The meaning of the signs at the ends of a narrow list's entries, of those that are there."""
    there = {entry.plain.rstrip()[-1:] for entry in entries}
    return " · ".join(f"{sign} {word}" for sign, word in _SIGNS.items() if sign in there)


def value_lines(values: Sequence[Candidate], state: SessionState) -> list[Content]:
    """The values of a recipe, each with its measured effect, to choose from."""
    width = max((len(text_of(candidate.value)) for candidate in values), default=0)
    return [_value_line(candidate, state, width) for candidate in values]


def _value_line(candidate: Candidate, state: SessionState, width: int) -> Content:
    record = state.trials.get(candidate.name)
    told = Content.styled("not tried yet", DIM)
    if record is not None and record.result.measured:
        peak = own_figures(record).result.peak_reserved_bytes
        told = Content.assemble(own_effect(record), f"  {format_bytes(peak)}" if peak else "")
    elif record is not None:
        told = Content.styled(record.result.reason, DIM)
    return Content.assemble((f"{text_of(candidate.value):>{width}}", "bold"), "  ", told)


def title_text(item: Recommendation, decision: Decision | None, value: Value | None = None) -> Content:
    """The head of the detail: title, setting, decision."""
    setting = format_setting(item.record.candidate.key, item.record.candidate.value)
    asks = item.needs_consent and decision is None
    badge = Content("") if asks else _badge(item, decision, value)
    lines = [Content.assemble((item.title, "bold"), "  ", badge), Content.styled(setting, "$primary")]
    if asks:
        lines.append(Content.styled("Opt-in: it changes results; press a to allow it.", "$warning"))
    return Content("\n").join(lines)


def effect_facts(item: Recommendation, context: Context) -> list[Fact]:
    """The facts of one recommendation, the most important first: effect, reason, memory, cost and numerics.

    Further figures follow, and what was found in the user's source.
    """
    record, baseline = own_figures(item.record), context.state.baseline
    rows: list[Fact] = [*_goal(record, context), ("Effect", _effect(record)), *_how(record), ("Why", item.why)]
    rows += [*_memory(record, context), *([("Cost", start_up_text(record))] if record.alone else [])]
    rows += _numerics(record.numerics)
    rows += [*_bound(record, context), *(_step(record, context) if record.alone else [])]
    rows += [("Shown", text) for text in shown_by(item.record, context.state, context.catalog)]
    beside = (
        ("Trade", trade_text(record, baseline)),
        ("Energy", energy_text(record.result, baseline)),
        ("GPU", troubles_text(record.result.gpu)),
    )
    rows += [(label, text) for label, text in beside if text is not None]
    return [*rows, *remarks(record.result), *findings_of(record.candidate.recipe, context.state.findings)]


def _goal(record: TrialRecord, context: Context) -> list[Fact]:
    by = context.state.yardstick
    if by is None or by.goal.by_time or not record.alone:
        return []
    return [("Goal", Content.styled(by.effect(record.result, record.comparison), "bold"))]


def _effect(record: TrialRecord) -> Content:
    comparison, shown = record.comparison, verdict_shown(record)
    if not record.result.measured:
        return Content("not measured")
    parts = [mark(record), Content(" "), own_effect(record, short=True)]
    if shown in (Verdict.SAME, Verdict.UNCLEAR) and comparison and not comparison.is_open:
        parts.append(Content.styled(f"  {format_interval(comparison)}", DIM))
    elif shown is not None and record.contribution is None:
        parts.append(Content(f"  {shown.value}"))
    return Content("").join(parts)


def _how(record: TrialRecord) -> list[Fact]:
    comparison = record.comparison
    if not record.alone:
        others = counted(len(record.settings) - 1, "other setting")
        told = "measured with and without it" if comparison else "not measured without it"
        return [("", Content.styled(f"{told}, beside {others}", DIM))]
    if comparison is None:
        return []
    alone: list[Fact] = [("Alone", ratio(comparison))] if record.contribution else []
    how = IN_TURN if comparison.paired or record.confirmed else "one trial"
    return [*alone, ("", Content.styled(how, DIM))]


def _bound(record: TrialRecord, context: Context) -> list[Fact]:
    """The upper bound of the gain, where the recipe touches some phases only."""
    recipe, facts = context.recipe(record.candidate.recipe), context.state.facts
    if recipe is None or facts is None or facts.profile is None or not recipe.phases or record.candidate.already_on:
        return []
    bound = upper_bound(facts.profile, recipe.phases)
    if bound is None:
        return []
    names = ", ".join(phase.value for phase in Phase if phase in recipe.phases)
    share = format_percent(facts.profile.share(*recipe.phases))
    return [("At most", Content.assemble(f"{bound:.2f}x alone", (f": {names} is {share} of the baseline's step", DIM)))]


def _step(record: TrialRecord, context: Context) -> list[Fact]:
    baseline = context.state.baseline
    if baseline is None or record.step_ms is None or record.samples_per_s is None:
        return [("Step", format_ms(record.step_ms))]
    return [
        ("Step", f"{format_ms(baseline.step_ms)} → {format_ms(record.step_ms)}"),
        ("Rate", f"{baseline.samples_per_s:,.0f} → {format_rate(record.samples_per_s)}"),
    ]


def _memory(record: TrialRecord, context: Context) -> list[Fact]:
    """The peak against the baseline's; of a setting that ran with others only, against theirs without it."""
    state, key = context.state, record.candidate.key
    own = state.baseline_bytes, record.result.peak_reserved_bytes
    peaks = own if record.alone else memory_on_the_stack(key, state)
    if peaks is None:
        return []
    where = ("", DIM) if record.alone else (" on the stack", DIM)
    return [("Memory", Content.assemble(f"{format_bytes(peaks[0])} → ", memory_against(peaks[1], peaks[0]), where))]


def _numerics(numerics: NumericsResult | None) -> list[Fact]:
    if numerics is None:
        return [("Numerics", Content.styled("not compared", DIM))]
    style = "$error" if numerics.worse_than_declared else ""
    head = Content.styled(numerics_words(numerics), style)
    if numerics.compared and numerics.difference is None:
        head += Content.styled(f", {format_difference(None)}", DIM)
    rows: list[Fact] = [("Numerics", head)]
    return [*rows, ("", Content.styled(numerics.text, style or DIM))] if numerics.text else rows


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


_WIDEST_BAR = 24
_LEAST_BAR = 6
_CHART_WIDTH = 60
# For narrow screens, which would have no room for a bar.
_SHORT = {"samples/s": "per s", "call p95": "p95"}
_SPARED = ("gain", "call p50", "call p99")

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def sweep_text(points: Sequence[SweepPoint], mode: Mode, width: int, caveats: Iterable[str] = ()) -> Content:
    """A line for each size, with a bar for its throughput; then which to take, caveats, and for inference a chart."""
    if not points:
        return Content("")
    heads, rows = _fitting(points, width)
    widths, room = _widths((heads, rows)), min(_WIDEST_BAR, _room((heads, rows), width))
    best = max((point.samples_per_s or 0.0 for point in points), default=0.0)
    lines = [Content.styled("  " + _aligned(heads, widths), DIM)]
    lines += [
        _line(point, _aligned(row, widths), at_knee=point.size == knee_of(points), best=best, room=room)
        if point.samples_per_s is not None
        else Content.assemble(f"  {row[0]:>{widths[0]}}  ", (point.problem, "$warning"))
        for point, row in zip(points, rows, strict=True)
    ]
    lines += [Content.styled(f"{caveat}", "$warning") for caveat in caveats]
    lines.append(Content.styled(f"◆ {sweep_sentence(points, mode)}", DIM))
    chart = sweep_chart(points, mode) if mode is Mode.INFER and width >= _CHART_WIDTH else ""
    return Content("\n").join([*lines, *([Content(""), Content(chart)] if chart else [])])


def _fitting(points: Sequence[SweepPoint], width: int) -> Table:
    """The columns of the table that leave room for a bar: all with their headings, or the most important ones."""
    rows = [row[:-1] for row in sweep_rows(points)]
    headings = headings_of(points)[:-1]
    whole: Table = (headings, rows)
    if _room(whole, width) >= _LEAST_BAR:
        return whole
    kept = [place for place, head in enumerate(headings) if head not in _SPARED]
    heads = tuple(_SHORT.get(headings[place], headings[place]) for place in kept)
    return heads, [tuple(row[place] for place in kept) for row in rows]


def _widths(table: Table) -> list[int]:
    heads, rows = table
    return [max(map(len, column)) for column in zip(heads, *rows, strict=True)]


def _room(table: Table, width: int) -> int:
    widths = _widths(table)
    return max(0, width - 2 - sum(widths) - 2 * len(widths))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _line(point: SweepPoint, cells: str, *, at_knee: bool, best: float, room: int) -> Content:
    drawn = bar((point.samples_per_s or 0.0) / best, room).rstrip()
    line = Content.assemble(
        ("◆ " if at_knee else "  ", "$success"),
        (cells, "bold" if at_knee else ""),
        "  ",
        (drawn, "$success" if at_knee else "$primary"),
    )
    return line + Content.styled(f"\n    {point.problem}", "$warning") if point.problem else line
