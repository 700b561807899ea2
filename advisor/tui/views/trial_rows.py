"""The rows of the trials table: the text of each cell. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from textual.content import Content

from advisor.experiment.control import RAISE_BUDGET, REJECTED, Decision
from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    format_bytes,
    format_ms,
    format_numerics,
    format_outcome,
    format_ratio,
    format_seconds,
    format_setting,
)
from advisor.recipe.settings import Settings
from advisor.records import Comparison, NumericsResult, Outcome, TrialRecord, TrialResult, Verdict
from advisor.report.figures import MEASURED_ONCE, effect_words, how_confirmed, own_figures, verdict_shown
from advisor.report.pareto import BASELINE, STACK
from advisor.report.several_gpus import against_one_gpu, row_of
from advisor.tui.deciding import decision_on
from advisor.tui.text import (
    DIM,
    MARKS,
    REJECTED_FIRST,
    behind_rejected,
    interval_bar,
    on_the_stack,
    own_mark,
    shortened,
    trial_label,
    trial_parts,
    unmeasured_words,
    widest_effect,
)
from advisor.tui.views.readings import live_line, live_step_ms, start_up_s

NAME, EFFECT = "name", "effect"
BAR_WIDTH = 13
# A bar gets this many cells more for so many more of the screen, and is even then not wider than that.
_MORE_BAR, _MORE_SCREEN, _WIDEST_BAR = 12, 40, 37
NAME_WIDTH = 18
# Names get this many cells where one needs them: effects have fewer then.
_WIDEST_NAME = 24
SKIPPED_PREFIX = "skipped:"


# The end of the name of a trial that repeats another.
_AGAIN = ", again"
_SETTING = re.compile(r"[\w.]+: .*?(?=, [\w.]+: |$)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: its width, and the narrowest screen that has it.

    The effect has what is left of the screen: reasons stand in it.
    """

    key: str
    label: str
    width: int
    at_least: int = 0
    number: bool = False


WIDE, _NARROW = 120, 70
COLUMNS = (
    Column("state", "", 3),
    Column(NAME, "candidate", NAME_WIDTH),
    Column(EFFECT, "effect", 17),
    Column("bar", "slower│faster", BAR_WIDTH, at_least=WIDE),
    Column("step", "step", 8, at_least=_NARROW, number=True),
    Column("memory", "memory", 9, at_least=_NARROW, number=True),
    Column("numerics", "numerics", 17, at_least=WIDE),
    Column("start", "start-up", 8, at_least=140, number=True),
)


def fitting_columns(width: int, names: int = NAME_WIDTH) -> list[tuple[Column, int]]:
    """The columns on a screen of this width, each with its own width in cells; ``names`` is that of the names."""
    kept = [column for column in COLUMNS if width >= column.at_least]
    widths = {column.key: column.width for column in kept} | {NAME: min(max(NAME_WIDTH, names), width // 3)}
    if "bar" in widths:
        widths["bar"] = min(_WIDEST_BAR, BAR_WIDTH + _MORE_BAR * ((width - WIDE) // _MORE_SCREEN))
    others = sum(widths[column.key] for column in kept if column.key != EFFECT)
    widths[EFFECT] = max(widths[EFFECT], width - others - 2 * len(kept) - 1)
    return [(column, widths[column.key]) for column in kept]


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its key, its cells by column, and the log that belongs to it."""

    key: str
    cells: dict[str, Content]
    log_path: str = ""


def name_width(state: SessionState) -> int:
    """The cells for the names: as few as they are worth, up to what the longest needs."""
    return max([NAME_WIDTH, *(len(_named(name, state)) for name in state.candidates)])


def _named(name: str, state: SessionState) -> str:
    """A trial's name, short enough for its column."""
    return _name_and_part(name, state)[0]


def _name_and_part(name: str, state: SessionState) -> tuple[str, str]:
    """A trial's name in the cells of its column, and the part of it that has no room there."""
    subject, part = trial_parts(name)
    if state.candidate(name) is not None or not part:
        return trial_label(name, state, NAME_WIDTH, most=_WIDEST_NAME), ""
    return shortened(subject, NAME_WIDTH), _by_recipe(part, state)


def _by_recipe(part: str, state: SessionState) -> str:
    """Settings by the names of their recipes, or of their candidates where these have several: keys take more room."""
    candidates = state.candidates.values()
    several = [recipe for recipe, count in Counter(each.recipe for each in candidates).items() if count > 1]
    names = {each.key: each.recipe for each in candidates}
    names |= {format_setting(each.key, each.value): each.name for each in candidates if each.recipe in several}
    settings: list[str] = _SETTING.findall(part)
    told = [names.get(setting) or names.get(key, key) for setting in settings for key in [setting.partition(":")[0]]]
    return ", ".join(told) or part


@dataclass(frozen=True, slots=True)
class _Look:
    """The cells for an effect and for its bar, and the largest effect, whose bar is the longest."""

    effect: int
    bar: int
    widest: float


def _look(state: SessionState, width: int) -> _Look:
    cells = {column.key: cells for column, cells in fitting_columns(width, name_width(state))}
    return _Look(cells[EFFECT], cells.get("bar", BAR_WIDTH), widest_effect(state.trials.values(), state.stack))


def build_rows(state: SessionState, waiting: Collection[str] = (), width: int = 80) -> list[Row]:
    """All rows: the baseline, the stack, candidates that ran, other trials, the other candidates, skipped recipes.

    Candidates are in the order of the plan. ``waiting`` names the trials that the person asked for and that have not
    begun; ``width`` is the screen's.
    """
    look = _look(state, width)
    rows: list[Row] = []
    if state.baseline or state.running == BASELINE:
        rows.append(_baseline_row(state))
    if state.stack and (state.stack.settings or state.stack.pending):
        rows.append(_stack_row(state, look))
    candidates = {name: _candidate_row(name, state, look, waited_for=name in waiting) for name in state.candidates}
    ran = {name for name in candidates if state.running == name or state.has_run(name) or _is_judged_next(name, state)}
    # Trials of no candidate: stacks, parts of stacks, repeats of the baseline, instruments.
    others = [name for name in state.logs if state.candidate(name) is None and not _has_pinned_row(name, state)]
    rows += [row for name, row in candidates.items() if name in ran]
    rows += [_other_row(name, state) for name in others]
    rows += [row for name, row in candidates.items() if name not in ran]
    return rows + [_skipped_row(recipe, reason) for recipe, reason in state.skipped.items()]


def running_row(state: SessionState) -> Row:
    """The row of the running trial, whatever it is of."""
    name = state.running
    return _row(name, _running_cells(name, state), state.logs.get(name, ""))


def _has_pinned_row(name: str, state: SessionState) -> bool:
    """Whether a trial is told by a row on top: it measured the baseline, or just the settings of the present stack."""
    stack, ended = state.stack, state.ended.get(name)
    if stack is None or stack.pending or state.running == name or not (ended and ended.outcome is Outcome.MEASURED):
        return name == BASELINE
    listed = Settings(stack.settings)
    return name in (BASELINE, f"stack: {listed}", f"again: {listed}", "stack, confirmed" if stack.confirmed else "")


def _baseline_row(state: SessionState) -> Row:
    log_path = state.logs.get(BASELINE, "")
    baseline = state.baseline
    if baseline is None:
        return _row(BASELINE, _running_cells(BASELINE, state), log_path)
    cells = {
        "state": _marked(Content.styled("●", "$primary"), baseline.result),
        "name": _plain(BASELINE, "bold"),
        "effect": _plain("your present settings", "dim"),
        **_measured_cells(baseline.step_ms, baseline.result),
    }
    return _row(BASELINE, cells, log_path or baseline.result.log_path)


def _stack_row(state: SessionState, look: _Look) -> Row:
    stack = state.stack
    assert stack is not None
    count = len(stack.settings)
    if stack.pending:
        reason = {"effect": _plain("to be measured again" if count else "empty", "$warning")}
        return _row(STACK, {"state": _plain("★", "dim"), "name": _plain(f"stack of {count}", "bold"), **reason}, "")
    once = ", once" if how_confirmed(stack) == MEASURED_ONCE else ""  # the two words have no room
    cells = {
        "state": _marked(Content.styled("★", "$accent"), stack.result, stack.numerics, in_turn=stack.confirmed),
        "name": _plain(f"stack of {count}{once}", "bold"),
        **_effect_cells(stack.comparison, look),
        **_measured_cells(stack.step_ms, stack.result, stack.numerics),
    }
    return _row(STACK, cells, stack.result.log_path)


def _other_row(name: str, state: SessionState) -> Row:
    """A trial that measured something else than a candidate: its step and its memory, or why it failed."""
    log_path, ended = state.logs.get(name, ""), state.ended.get(name)
    if state.running == name:
        return running_row(state)
    named, part = _name_and_part(name, state)
    cells = {"state": Content.styled("·", "dim"), "name": _plain(named, "dim")}
    if ended is None:
        return _row(name, cells | {"effect": _plain(unmeasured_words(name, state, ""), "dim")}, log_path)
    if ended.outcome is not Outcome.MEASURED:
        sign = Content.styled("○" if ended.outcome is Outcome.SKIPPED else "✗", "$warning")
        reason = ended.reason or format_outcome(TrialResult(ended.outcome, ended.reason))
        told = f"{part}: {reason}" if part else reason
        return _row(name, cells | {"state": sign, "effect": _plain(told, "dim")}, log_path)
    subject, part = trial_parts(name)
    measured = "measured"
    if len(subject) > _WIDEST_NAME and subject.endswith(_AGAIN):
        subject, measured = subject.removesuffix(_AGAIN), "measured again"
    cells["name"] = _plain(subject, "dim")
    row = row_of(state.scaling, name)
    told = (against_one_gpu(row, part) if row else "") or _by_recipe(part, state) or measured
    cells["effect"] = _plain(told, "dim")
    cells["step"] = Content.styled(format_ms(ended.step_ms), "dim")
    cells["memory"] = Content.styled(format_bytes(ended.peak_reserved_bytes), "dim")
    return _row(name, cells, log_path)


def _is_judged_next(name: str, state: SessionState) -> bool:
    """Whether a trial was measured whose record has not come yet."""
    ended = state.ended.get(name)
    return ended is not None and ended.outcome is Outcome.MEASURED and name not in state.trials


def _candidate_row(name: str, state: SessionState, look: _Look, *, waited_for: bool = False) -> Row:
    record = state.trials.get(name)
    log_path = state.logs.get(name, "") or (record.result.log_path if record else "")
    if state.running == name:
        return running_row(state)
    if waited_for:
        when = "tried next" if state.finished else "tried when the session is through"
        label = _plain(_named(name, state), "")
        cells = {"state": Content.styled("⧗", "$accent"), "name": label, "effect": _plain(when, "")}
        return _row(name, cells, log_path)
    if record is None and _is_judged_next(name, state):
        return _other_row(name, state)
    if record is None:
        return _row(name, _waiting_cells(name, state), log_path)
    rejected = record.candidate.recipe in state.rejected
    room = look.effect - len(REJECTED_FIRST) if rejected else look.effect
    cells = _record_cells(record, replace(look, effect=room))
    if rejected:
        cells["effect"] = behind_rejected(cells["effect"], room if record.result.measured else None)
    cells["name"] = _plain(_named(name, state), "dim" if rejected or record.verdict is Verdict.SKIPPED else "")
    return _row(name, cells, log_path)


def _waiting_cells(name: str, state: SessionState) -> dict[str, Content]:
    candidate = state.candidate(name)
    decision = decision_on(state, candidate) if candidate else None
    text = "opt-in: press a (changes results)" if name in state.consent else unmeasured_words(name, state, "waiting")
    if decision is not None:
        text = REJECTED if decision is Decision.REJECTED else "waiting, you accepted it"
    sign = "○" if decision is Decision.REJECTED else "·"
    label = _plain(_named(name, state), "dim")
    return {"state": Content.styled(sign, "dim"), "name": label, "effect": _plain(text, "dim")}


def _running_cells(name: str, state: SessionState) -> dict[str, Content]:
    """The running trial's state; once blocks are timed, their step times as a sparkline and the median so far."""
    activity, line = state.activity, live_line(state)
    named, part = _name_and_part(name, state)
    running = f"{part}: " if part else "running: " if activity and not line else ""
    told = f"{running}{activity or 'running'} {line}".rstrip()
    return {
        "state": Content.styled("▶", "$accent"),
        "name": _plain(named, "bold $accent"),
        "effect": _plain(told, "$accent"),
        "step": Content.styled(format_ms(live_step_ms(state)) if line else "", "$accent"),
    }


def _record_cells(record: TrialRecord, look: _Look) -> dict[str, Content]:
    symbol, colour = own_mark(record)
    style = f"${colour}" if record.verdict is not Verdict.SKIPPED else "dim"
    record = own_figures(record)
    cells = {"state": _marked(Content.styled(symbol, style), record.result, record.numerics, in_turn=record.confirmed)}
    if not record.result.measured:
        return cells | {"effect": _plain(_reason(record.result), style)}
    added = _added(record.contribution, look.effect) if record.contribution is not None else ""
    effect = _effect_cells(record.contribution or record.comparison, look, added)
    if record.contribution is None and not record.alone:
        effect["effect"] = _plain(effect_words(record), "dim")
    return cells | {**effect, **_measured_cells(record.step_ms, record.result, record.numerics)}


def _added(contribution: Comparison, room: int) -> str:
    """The contribution to the stack, that it is one only where a narrow screen has room for it."""
    told = on_the_stack(contribution).plain
    return told if len(told) <= room else on_the_stack(contribution, short=True).plain


def _marked(
    sign: Content, result: TrialResult, numerics: NumericsResult | None = None, *, in_turn: bool = False
) -> Content:
    """The verdict's sign with the marks of the measurement: unreliable, other numerics, measured in turn."""
    marks = (
        ("!", "$warning", bool(result.disturbed)),
        ("≠", "$error", numerics is not None and numerics.worse_than_declared),
        ("⇄", "$primary", in_turn),
    )
    return Content.assemble(sign, *((mark, style) for mark, style, is_so in marks if is_so))


def _reason(result: TrialResult) -> str:
    if result.outcome is Outcome.SKIPPED and result.reason:
        return result.reason.replace(RAISE_BUDGET, "R tries it")
    return format_outcome(result)


def _effect_cells(comparison: Comparison | None, look: _Look, told: str = "") -> dict[str, Content]:
    if comparison is None:
        return {}
    _, colour = MARKS[comparison.verdict]
    style = "dim" if not comparison.verdict.is_change else f"${colour}"
    return {
        "effect": _plain(told or format_ratio(comparison), style),
        "bar": Content.styled(interval_bar(comparison, look.widest, look.bar), style),
    }


def _measured_cells(
    step_ms: float | None, result: TrialResult, numerics: NumericsResult | None = None
) -> dict[str, Content]:
    return {
        "step": Content(format_ms(step_ms)),
        "memory": Content(format_bytes(result.peak_reserved_bytes)),
        "numerics": _numerics_cell(numerics),
        "start": Content(format_seconds(start_up_s(result))),
    }


def _numerics_cell(numerics: NumericsResult | None) -> Content:
    """The class with its figure; ``changed ≠ close`` when it is worse than the recipe declares."""
    if numerics is None:
        return Content("")
    if numerics.worse_than_declared:
        return Content.styled(f"{numerics.measured.value} ≠ {numerics.declared.value}", "bold")
    return _plain(format_numerics(numerics), "")


def _skipped_row(recipe: str, reason: str) -> Row:
    cells = {"state": Content.styled("○", "dim"), "name": _plain(recipe, "dim"), "effect": _plain(reason, "dim")}
    return _row(f"{SKIPPED_PREFIX}{recipe}", cells, "")


def _row(key: str, cells: dict[str, Content], log_path: str) -> Row:
    return Row(key, {column.key: cells.get(column.key, Content("")) for column in COLUMNS}, log_path)


def _plain(text: str, style: str) -> Content:
    return Content.styled(" ".join(text.split()), style)


def tally(state: SessionState, *, wide: bool) -> Content:
    """The number of candidates tried, by verdict; in marks when not ``wide``. The control does not count."""
    records = [record for record in state.trials.values() if record.candidate.recipe != CONTROL]
    done = sum(record.verdict is not Verdict.SKIPPED for record in records)
    verdicts = [verdict_shown(record) for record in records]
    total = sum(candidate.recipe != CONTROL for candidate in state.candidates.values())
    if not total:
        over = state.finished or state.failure
        return Content.styled("Nothing was tried." if over else "Nothing has been tried yet.", DIM)
    parts = [Content.assemble((f"{done} of {total}", "bold"), " tried")]
    for verdict, word in ((Verdict.FASTER, "faster"), (Verdict.SLOWER, "slower"), (Verdict.FAILED, "failed")):
        if count := verdicts.count(verdict):
            symbol, colour = MARKS[verdict]
            parts.append(Content.styled(f"{count} {word}" if wide else f"{symbol} {count}", f"${colour}"))
    return Content.styled("  ·  " if wide else "  ", DIM).join(parts)
