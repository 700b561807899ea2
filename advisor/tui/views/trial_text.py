"""The lines about the selected row of the trials table: all that did not fit in its cells. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from textual.content import Content

from advisor.experiment.control import REJECTED, Decision
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    format_bytes,
    format_interval,
    format_ms,
    format_numerics,
    format_outcome,
    format_pending,
    format_seconds,
    format_setting,
)
from advisor.recipe.catalog import Catalog
from advisor.records import BaselineRecord, NumericsResult, Outcome, StackRecord, TrialRecord, TrialResult, Verdict
from advisor.report.conclusions import shown_by
from advisor.report.figures import IN_TURN, how_confirmed, other_batch, own_figures, verdict_shown
from advisor.report.pareto import BASELINE, STACK
from advisor.report.pictures import block_times
from advisor.report.several_gpus import row_details, row_of
from advisor.tui.deciding import decision_on
from advisor.tui.text import DIM, memory_against, own_effect, ratio, sparkline, trial_name, unmeasured_words
from advisor.tui.views import readings
from advisor.tui.views.trial_rows import SKIPPED_PREFIX

# The widest line of step times, in cells.
_SPARK = 24
# A line is cut at the edge of the screen.
_WIDEST = 200


def selection_text(key: str, state: SessionState, catalog: Catalog | None = None, *, recorded: bool = False) -> Content:
    """The text on a row, most important first; for a trial also its findings, in the words of ``catalog``'s recipes.

    Nothing is tried again in a session that was ``recorded``, until it is continued.
    """
    if key.startswith(SKIPPED_PREFIX):
        return _skipped_text(key.removeprefix(SKIPPED_PREFIX), state)
    if key == BASELINE:
        return _baseline_text(state)
    if key == STACK and state.stack:
        return _stack_text(state.stack, state.baseline)
    record = state.trials.get(key)
    if record is None or state.running == key:  # a trial that runs again is not told by what it found before
        before = _steps(record.result, state.baseline, "last time") if record and record.alone else []
        if state.running == key:
            # As many lines before its first block as after it, so that the table stays in place.
            name = Content.assemble((trial_name(key, _WIDEST), "bold"))
            return _lines([name, Content.styled("running: ", DIM) + readings.live_state(state), *before])
        return _lines(
            [
                Content.assemble((trial_name(key, _WIDEST), "bold")),
                Content.styled(_why_not_running(key, state), DIM),
                *before,
            ]
        )
    return _record_text(record, state, catalog, recorded=recorded)


def _why_not_running(name: str, state: SessionState) -> str:
    """The state of a trial without a record: it has ended, or its turn has not come."""
    ended = state.ended.get(name)
    if row := row_of(state.scaling, name):
        return row_details(row)
    if ended is None or (state.candidate(name) is not None and ended.outcome is not Outcome.MEASURED):
        return _why_waiting(name, state)
    if ended.outcome is not Outcome.MEASURED:
        return format_outcome(TrialResult(ended.outcome, ended.reason))
    took = f", the trial took {format_seconds(ended.wall_s)}" if ended.wall_s is not None else ""
    return f"measured: {format_ms(ended.step_ms)} a step, memory {format_bytes(ended.peak_reserved_bytes)}{took}"


def _why_waiting(name: str, state: SessionState) -> str:
    candidate = state.candidate(name)
    decision = decision_on(state, candidate) if candidate else None
    if decision is Decision.REJECTED:
        return f"{REJECTED}: it is not tried when its turn comes; key u takes that back"
    if name in state.consent and decision is None:
        return "changes what is computed: it is tried last and stays out of the stack; key a lets it in"
    return unmeasured_words(name, state, "waits for its turn")


def _skipped_text(recipe: str, state: SessionState) -> Content:
    lines = [Content.assemble((recipe, "bold"), (" was not tried", DIM)), Content(state.skipped.get(recipe, ""))]
    return _lines([*lines, *(Content(str(text)) for _, text in readings.findings_of(recipe, state.findings))])


def _baseline_text(state: SessionState) -> Content:
    baseline = state.baseline
    head = Content.assemble((BASELINE, "bold"), ("  your present settings; everything is compared with it", DIM))
    if state.running == BASELINE:
        return _lines([head, readings.live_text(state, _WIDEST)])
    return _lines([head, *([*_steps(baseline.result, None), *_beside(baseline.result, None)] if baseline else [])])


def _stack_text(stack: StackRecord, baseline: BaselineRecord | None) -> Content:
    listed = ", ".join(format_setting(key, value) for key, value in stack.settings.items())
    if stack.pending:
        return _lines([Content.assemble(("stack  ", "bold"), (format_pending(stack), "$warning")), Content(listed)])
    how = f"  measured {IN_TURN}" if stack.confirmed else f"  {how_confirmed(stack)}"
    head = Content.assemble(("stack  ", "bold"), ratio(stack.comparison), other_batch(stack, baseline), (how, DIM))
    beside = [*_steps(stack.result, baseline), *_numerics_line(stack.numerics), *_beside(stack.result, baseline)]
    return _lines([head, Content(listed), *beside])


def _record_text(record: TrialRecord, state: SessionState, catalog: Catalog | None, *, recorded: bool) -> Content:
    decision = decision_on(state, record.candidate)
    name = record.candidate.name if record.result.measured else record.label
    head = Content.assemble((name, "bold"), "  ", (f"you {decision} it  " if decision else "", "$accent"))
    if not record.result.measured:
        hint = record.result.hint or _how_to_go_on(record, state, recorded=recorded)
        lines = [head + Content.styled(format_outcome(record.result), "$warning"), Content.styled(hint, DIM)]
    else:
        own = own_figures(record)
        lines = [head + _effect(own), _costs(own, state.baseline)]
        trade = readings.trade_text(own, state.baseline)
        lines += [] if trade is None else [trade]
        lines += [Content(text) for text in shown_by(record, state, catalog)]
    result = own_figures(record).result
    steps = _steps(record.result, state.baseline) if record.alone else []
    return _lines([*lines, *steps, *_numerics_line(record.numerics), *_beside(result, state.baseline)])


def _how_to_go_on(record: TrialRecord, state: SessionState, *, recorded: bool) -> str:
    log = record.result.log_path or state.logs.get(record.candidate.name)
    if record.verdict is Verdict.SKIPPED:
        one = [] if recorded else ["t tries it, whatever is left of the budget"]
        keys = [*one, *(["R tries all that was left out"] if state.finished else [])]
    else:
        keys = [*([] if recorded else ["t tries it again"]), *(["l shows its log"] if log else [])]
    return f"Key {', '.join(keys)}." if keys else ""


def _effect(record: TrialRecord) -> Content:
    effect = own_effect(record)
    if verdict_shown(record) in (Verdict.SAME, Verdict.UNCLEAR) and record.comparison and not record.comparison.is_open:
        effect += Content.styled(f"  {format_interval(record.comparison)}", DIM)
    return effect + Content.styled(f"  {IN_TURN}" if record.confirmed else "", DIM)


def _steps(result: TrialResult, baseline: BaselineRecord | None, when: str = "steps") -> list[Content]:
    """The step times of a trial's blocks in the order in which they were timed, beside the baseline's."""
    parts = [("baseline", baseline.result)] if baseline else []
    lines = [_sparkline(name, block_times(timed)) for name, timed in [(when, result), *parts] if len(timed.blocks) > 1]
    return [Content("   ").join(lines)] if result.measured and lines else []


def _sparkline(name: str, times: Sequence[float]) -> Content:
    """Half as high as it can be is the median, the top is a tenth above it: a steady trial is a level line."""
    usual = median(times)
    drawn = [100 * (0.5 + (time - usual) / (0.2 * usual)) for time in times] if usual else []
    shown = sparkline([min(99.0, max(0.0, value)) for value in drawn], min(_SPARK, len(drawn)))
    ends = dict.fromkeys((format_ms(min(times)), format_ms(max(times))))
    spread = f" {' to '.join(ends)}"
    return Content.assemble((f"{name} ", DIM), (shown, "$primary"), (spread, DIM))


def _costs(record: TrialRecord, baseline: BaselineRecord | None) -> Content:
    """The memory, the numerics and the start-up, as far as they are known: of a setting by itself they may not be."""
    old, new = baseline.result.peak_reserved_bytes if baseline else None, record.result.peak_reserved_bytes
    memory = Content.assemble(("memory ", DIM), memory_against(new, old))
    start = Content.styled(readings.start_up_text(record), DIM)
    return Content("  ").join(
        [
            *([memory] if new is not None else []),
            Content.assemble(("numerics ", DIM), format_numerics(record.numerics)),
            *([start] if readings.start_up_s(record.result) is not None else []),
        ]
    )


def _numerics_line(numerics: NumericsResult | None) -> list[Content]:
    if numerics is None or not numerics.worse_than_declared:
        return []
    return [Content.assemble(("≠ ", "$error"), numerics.text or format_numerics(numerics))]


def _beside(result: TrialResult, baseline: BaselineRecord | None) -> list[Content]:
    """Energy and the GPU's readings in a line; then what makes the trial unreliable, and its notes."""
    read = [
        text
        for text in (readings.energy_text(result, baseline), readings.readings_text(result.gpu))
        if text is not None
    ]
    lines = [Content.styled("  ·  ", DIM).join(read)] if read else []
    return lines + [Content.assemble((f"{label} ", DIM), text) for label, text in readings.remarks(result)]


def _lines(lines: list[Content]) -> Content:
    return Content("\n").join(lines)
