"""The session in one or two sentences."""

from __future__ import annotations

from advisor.experiment.objective import Yardstick, figure, format_figure
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_bytes, format_interval, format_ms, format_pending
from advisor.records import BaselineRecord, Mode, Objective, StackRecord, TrialRecord
from advisor.report.conclusions import candidates_tried, count_untried, stack_helps
from advisor.report.figures import IN_TURN, MEASURED_ONCE, format_tokens, hardware_line, tokens_per_s
from advisor.report.no_result import Cause, no_result


def verdict(state: SessionState) -> str:
    """The session in one or two sentences."""
    if state.failure:
        ended = f"The session could not go on: {state.failure.message}. {state.failure.hint}".replace("..", ".")
        return f"{ended} Until then: {_result_sentence(state, state.baseline)}" if state.baseline else ended
    if state.baseline is None:
        return "Nothing has been measured."
    interrupted = state.finished is None or state.finished.cancelled
    remark = " The session did not run to its end: this is what was measured until then." if interrupted else ""
    return _result_sentence(state, state.baseline) + remark


def _result_sentence(state: SessionState, baseline: BaselineRecord) -> str:
    where = f" on {hardware_line(state.hardware)}" if state.hardware else ""
    stack, by = state.stack, Yardstick(state.goal, baseline)
    if stack is not None and stack.pending:
        return _pending_sentence(state, stack, where)
    if stack is None or not stack_helps(state):
        return _no_stack_sentence(state, by, where)
    how = f"confirmed {IN_TURN}" if stack.confirmed else MEASURED_ONCE
    return f"{_effect_sentence(state, stack, by, where)}, {how}: {_before_and_tuned(stack, by)}{_tokens(state, stack)}."


def _tokens(state: SessionState, stack: StackRecord) -> str:
    rate = tokens_per_s(state.facts, stack.samples_per_s)
    return f", {format_tokens(rate)}" if rate else ""


def _pending_sentence(state: SessionState, stack: StackRecord, where: str) -> str:
    if not stack.settings:
        return f"No setting is left in the combination for {_subject(state)}{where}: {stack.result.reason}."
    return f"There is no figure for {_subject(state)}{where} with what is left: {format_pending(stack)}."


def _by_figure(stack: StackRecord, by: Yardstick) -> bool:
    """Whether the settings together are told by memory or energy, not by their speed."""
    gain = by.gain(stack.result, stack.comparison)
    return not by.goal.by_time and gain is not None and gain.is_better


def _before_and_tuned(stack: StackRecord, by: Yardstick) -> str:
    if not _by_figure(stack, by):
        before_ms = stack.baseline_step_ms or by.baseline.step_ms
        return f"{format_ms(before_ms)} a step before, {format_ms(stack.step_ms)} tuned"
    objective, results = by.goal.objective, (by.baseline.result, stack.result)
    before, tuned = (format_figure(objective, figure(objective, result)) for result in results)
    return f"{before}{' a sample' if objective is Objective.ENERGY else ''} before, {tuned} tuned"


def _effect_sentence(state: SessionState, stack: StackRecord, by: Yardstick, where: str) -> str:
    """The effect of the settings together by the goal, as a sentence without its end."""
    count = len(stack.settings)
    if _by_figure(stack, by):
        settings = f"{count} settings together" if count != 1 else "one setting"
        sentence = f"With {settings} {_subject(state)} {by.effect(stack.result, stack.comparison)}{where}"
    else:
        settings = f"{count} settings together make" if count != 1 else "One setting makes"
        sentence = f"{settings} {_subject(state)} {format_interval(stack.comparison)} as fast{where}"
    if not by.too_large:
        return sentence
    limit, own = format_bytes(state.goal.memory_limit_bytes), format_bytes(by.baseline.result.peak_reserved_bytes)
    return f"{sentence}, within the memory limit of {limit}, which the baseline exceeds ({own})"


def _no_stack_sentence(state: SessionState, by: Yardstick, where: str) -> str:
    records, goal, found = candidates_tried(state), state.goal, no_result(state)
    count, helping = len(records), sum(_helps(record, by) for record in records)
    what = f"candidate{'s' * (count != 1)} tried for {_subject(state)}{where}"
    if not helping and found.cause is not Cause.NO_GAIN:
        result = f"Nothing could be judged for {_subject(state)}{where}: {found.reason}"
    elif not helping:
        result = f"None of {count} {what} {goal.better()}" if count > 1 else f"The only {what} {goal.not_better()}"
    else:
        stack = state.stack
        nothing = stack is None or not (stack.settings or stack.dropped)
        combined = "no settings were combined" if nothing else f"together they {goal.not_better(2)}"
        result = f"{helping} of {count} {what} {goal.better(helping)}; {combined}"
    missed = count_untried(state)
    rest = f" {missed} {'more ' * bool(count)}could not be tried, with the reasons below." if missed else ""
    return f"{result}.{rest}"


def _helps(record: TrialRecord, by: Yardstick) -> bool:
    """Whether a candidate itself helps; nothing is known of one that was only measured with others."""
    return by.helps(record.result, record.comparison if record.alone else record.contribution)


def _subject(state: SessionState) -> str:
    if state.facts is None:
        return "the workload"
    loop = "training" if state.facts.workload.mode is Mode.TRAIN else "inference"
    return f"{state.facts.workload.model} {loop}"
