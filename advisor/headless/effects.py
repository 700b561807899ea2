"""The results of a trial, a stack and a baseline, each in a line."""

from __future__ import annotations

from advisor.experiment.objective import Yardstick
from advisor.figures.formatting import MISSING, format_bytes, format_interval, format_ms, format_outcome, format_rate
from advisor.records import BaselineRecord, Comparison, StackRecord, TrialRecord, TrialResult, Verdict
from advisor.report.figures import IN_TURN, effect_words, how_confirmed, noise_words, verdict_shown


def trial_effect(record: TrialRecord, by: Yardstick | None = None) -> str:
    """A trial's speed-up and verdict, or why there is none; and what must be known of the figure.

    ``by`` tells it by the objective where that is memory or energy.
    """
    if record.verdict in (Verdict.FAILED, Verdict.SKIPPED):
        return format_outcome(record.result)
    unreliable = f" (unreliable: {record.result.disturbed})" if record.result.disturbed else ""
    if not record.alone:
        return f"{_effect_on_the_stack(record)}{unreliable}"
    in_turn = f", {IN_TURN}" if record.confirmed else ""
    return f"{_effect(record.result, record.comparison, by)}{in_turn}{unreliable}"


def _effect_on_the_stack(record: TrialRecord) -> str:
    shown = verdict_shown(record)
    if shown in (None, Verdict.NO_DIFFERENCE):
        return effect_words(record)
    return f"{effect_words(record, format_interval)}, {shown}"


def name_shown(record: TrialRecord) -> str:
    """A candidate's name; of one that failed also that it was tried with others."""
    return record.candidate.name if record.result.measured else record.label


def _effect(result: TrialResult, comparison: Comparison | None, by: Yardstick | None) -> str:
    if comparison is None:
        return MISSING
    if by is not None and not by.goal.by_time:
        return by.effect(result, comparison)
    if comparison.verdict is Verdict.NO_DIFFERENCE:
        return comparison.verdict.value
    return f"{format_interval(comparison)} {comparison.verdict}"


def stack_effect(stack: StackRecord, by: Yardstick | None) -> str:
    """The stack's effect and how it was confirmed, or why it has none."""
    if stack.pending:
        return stack.result.reason
    if not stack.result.measured:
        return format_outcome(stack.result)
    return f"{_effect(stack.result, stack.comparison, by)}{f', {how_confirmed(stack)}' if stack.settings else ''}"


def baseline_line(baseline: BaselineRecord) -> str:
    """The baseline's step, samples per second, memory and noise."""
    step, rate = format_ms(baseline.step_ms), format_rate(baseline.samples_per_s)
    memory, noise = format_bytes(baseline.result.peak_reserved_bytes), noise_words(baseline)
    return f"{step} per step, {rate}, {memory} reserved, {noise}"
