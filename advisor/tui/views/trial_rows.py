"""The rows of the trials table: what stands in each cell. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text
from textual.content import Content

from advisor.experiment.control import REJECTED, Decision
from advisor.experiment.state import SessionState
from advisor.export.figures import effect_words, own_figures, verdict_shown
from advisor.formatting import (
    format_bytes,
    format_ms,
    format_numerics,
    format_outcome,
    format_ratio,
    format_seconds,
)
from advisor.records import Comparison, NumericsResult, Outcome, TrialRecord, TrialResult, Verdict
from advisor.tui.text import DIM, MARKS, bar, effect_share, own_mark, widest_effect

BASELINE = "baseline"
STACK = "stack"
NAME = "name"
BAR_WIDTH = 8
SKIPPED_PREFIX = "skipped:"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, ``wide`` cells wide on a broad terminal and ``width`` on a narrow one (0: left out)."""

    key: str
    label: str
    width: int
    wide: int
    number: bool = False


COLUMNS = (
    Column("state", "", 3, 3),
    Column(NAME, "candidate", 18, 18),
    Column("effect", "speed-up", 24, 30),
    Column("bar", "", 0, BAR_WIDTH),
    Column("step", "step", 8, 8, number=True),
    Column("memory", "memory", 9, 9, number=True),
    Column("numerics", "numerics", 0, 15),
    Column("start", "start-up", 0, 8, number=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its key, its cells by column, and the log that belongs to it."""

    key: str
    cells: dict[str, Text]
    log_path: str = ""


Colours = Mapping[str, str]


def build_rows(state: SessionState, colours: Colours) -> list[Row]:
    """All rows: the baseline, the stack, the candidates in the order of the plan, then the skipped recipes."""
    widest = widest_effect(state.trials)
    rows: list[Row] = []
    if state.baseline or state.running == BASELINE:
        rows.append(_baseline_row(state, colours))
    if state.stack and (state.stack.settings or state.stack.pending):
        rows.append(_stack_row(state, colours, widest))
    names = list(dict.fromkeys([*(item.name for item in state.planned), *state.trials]))
    rows += [_candidate_row(name, state, colours, widest) for name in names]
    return rows + [_skipped_row(recipe, reason) for recipe, reason in state.skipped.items()]


def _baseline_row(state: SessionState, colours: Colours) -> Row:
    log_path = state.logs.get(BASELINE, "")
    baseline = state.baseline
    if baseline is None:
        return _row(BASELINE, _running_cells(BASELINE, state.activity, colours), log_path)
    cells = {
        "state": _marked(Text("●", colours["primary"]), baseline.result, colours),
        "name": _plain(BASELINE, "bold"),
        "effect": _plain("your present settings", "dim"),
        **_measured_cells(baseline.step_ms, baseline.result),
    }
    return _row(BASELINE, cells, log_path or baseline.result.log_path)


def _stack_row(state: SessionState, colours: Colours, widest: float) -> Row:
    stack = state.stack
    assert stack is not None
    count = len(stack.settings)
    if stack.pending:
        reason = {"effect": _plain("to be measured again" if count else "empty", colours["warning"])}
        return _row(STACK, {"state": Text("★", "dim"), "name": _plain(f"stack of {count}", "bold"), **reason}, "")
    cells = {
        "state": _marked(Text("★", colours["accent"]), stack.result, colours, stack.numerics, in_turn=stack.confirmed),
        "name": _plain(f"stack of {count}{'' if stack.confirmed else ', once'}", "bold"),  # measured once: no room
        **_effect_cells(stack.comparison, colours, widest),
        **_measured_cells(stack.step_ms, stack.result, stack.numerics),
    }
    return _row(STACK, cells, stack.result.log_path)


def _candidate_row(name: str, state: SessionState, colours: Colours, widest: float) -> Row:
    record = state.trials.get(name)
    log_path = state.logs.get(name, "") or (record.result.log_path if record else "")
    if state.running == name:
        return _row(name, _running_cells(name, state.activity, colours), log_path)
    if record is None:
        return _row(name, _waiting_cells(name, state), log_path)
    cells = _record_cells(record, colours, widest)
    if record.candidate.recipe in state.rejected:
        cells["name"] = _plain(f"{name}, {Decision.REJECTED}", "dim")
    return _row(name, cells, log_path)


def _waiting_cells(name: str, state: SessionState) -> dict[str, Text]:
    candidate = state.candidate(name)
    decision = state.decisions.get(candidate.recipe) if candidate else None
    text = "opt-in: it changes results; a allows it" if name in state.consent else "waiting"
    if decision is not None:
        text = REJECTED if decision is Decision.REJECTED else "waiting, you accepted it"
    sign = "○" if decision is Decision.REJECTED else "·"
    return {"state": Text(sign, "dim"), "name": _plain(name, "dim"), "effect": _plain(text, "dim")}


def _running_cells(name: str, activity: str, colours: Colours) -> dict[str, Text]:
    accent = colours["accent"]
    return {
        "state": Text("▶", accent),
        "name": _plain(name, f"bold {accent}"),
        "effect": _plain(f"running: {activity}" if activity else "running", accent),
    }


def _record_cells(record: TrialRecord, colours: Colours, widest: float) -> dict[str, Text]:
    symbol, colour = own_mark(record)
    style = colours[colour] if record.verdict is not Verdict.SKIPPED else "dim"
    record = own_figures(record)
    cells = {
        "state": _marked(Text(symbol, style), record.result, colours, record.numerics, in_turn=record.confirmed),
        "name": _plain(record.candidate.name, "dim" if record.verdict is Verdict.SKIPPED else ""),
    }
    if not record.result.measured:
        return cells | {"effect": _plain(_reason(record.result), style)}
    effect = _effect_cells(record.comparison, colours, widest)
    if not record.alone:
        shown = str(effect["effect"].style) if effect else "dim"
        effect["effect"] = _plain(effect_words(record), shown)
    return cells | {
        **effect,
        **_measured_cells(record.step_ms, record.result, record.numerics),
    }


def _marked(
    sign: Text,
    result: TrialResult,
    colours: Colours,
    numerics: NumericsResult | None = None,
    *,
    in_turn: bool = False,
) -> Text:
    """The verdict's sign with what has to be known of the measurement: unreliable, other numerics, in turn."""
    marks = (
        ("!", colours["warning"], bool(result.disturbed)),
        ("≠", colours["error"], numerics is not None and numerics.worse_than_declared),
        ("⇄", colours["primary"], in_turn),
    )
    return Text.assemble(sign, *((mark, style) for mark, style, is_so in marks if is_so))


def _reason(result: TrialResult) -> str:
    if result.outcome is Outcome.SKIPPED and result.reason:
        return result.reason
    return format_outcome(result)


def _effect_cells(comparison: Comparison | None, colours: Colours, widest: float) -> dict[str, Text]:
    if comparison is None:
        return {}
    _, colour = MARKS[comparison.verdict]
    style = "dim" if comparison.verdict is Verdict.NO_DIFFERENCE else colours[colour]
    return {
        "effect": _plain(format_ratio(comparison), style),
        "bar": Text(bar(effect_share(comparison, widest), BAR_WIDTH), style),
    }


def _measured_cells(
    step_ms: float | None, result: TrialResult, numerics: NumericsResult | None = None
) -> dict[str, Text]:
    return {
        "step": Text(format_ms(step_ms), justify="right"),
        "memory": Text(format_bytes(result.peak_reserved_bytes), justify="right"),
        "numerics": _numerics_cell(numerics),
        "start": Text(format_seconds(start_up_s(result)), justify="right"),
    }


def _numerics_cell(numerics: NumericsResult | None) -> Text:
    """The class with its figure; ``changed ≠ close`` when it is worse than the recipe declares."""
    if numerics is None:
        return Text("")
    if numerics.worse_than_declared:
        return Text(f"{numerics.measured.value} ≠ {numerics.declared.value}", "bold")
    return _plain(format_numerics(numerics), "")


def start_up_s(result: TrialResult) -> float | None:
    """What a start costs before the steady state: applying the settings and warming up."""
    parts = [part for part in (result.prepare_s, result.warmup_s) if part is not None]
    return sum(parts) if parts else None


def _skipped_row(recipe: str, reason: str) -> Row:
    cells = {
        "state": Text("○", "dim"),
        "name": _plain(recipe, "dim"),
        "effect": _plain(reason, "dim"),
    }
    return _row(f"{SKIPPED_PREFIX}{recipe}", cells, "")


def _row(key: str, cells: dict[str, Text], log_path: str) -> Row:
    return Row(key, {column.key: cells.get(column.key, Text("")) for column in COLUMNS}, log_path)


def _plain(text: str, style: str) -> Text:
    return Text(" ".join(text.split()), style, no_wrap=True, overflow="ellipsis")


def tally(state: SessionState, *, wide: bool) -> Content:
    """How many were tried, and with what verdicts; in marks when not ``wide``."""
    records = state.trials.values()
    done = sum(record.verdict is not Verdict.SKIPPED for record in records)
    verdicts = [verdict_shown(record) for record in records]
    total = len({*(item.name for item in state.planned), *state.trials})
    if not total:
        return Content.styled("Nothing has been tried yet.", DIM)
    parts = [Content.assemble((f"{done} of {total}", "bold"), " tried")]
    for verdict, word in ((Verdict.FASTER, "faster"), (Verdict.SLOWER, "slower"), (Verdict.FAILED, "failed")):
        count = verdicts.count(verdict)
        if count:
            symbol, colour = MARKS[verdict]
            parts.append(Content.styled(f"{count} {word}" if wide else f"{symbol} {count}", f"${colour}"))
    if state.skipped:
        parts.append(Content.styled(f"{len(state.skipped)} skipped" if wide else f"○ {len(state.skipped)}", DIM))
    return Content.styled("  ·  " if wide else "  ", DIM).join(parts)
