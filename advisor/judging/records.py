"""Records of candidates and stacks, made from the judge's runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advisor.figures.stats import break_even_steps
from advisor.judging.judge import Judge
from advisor.judging.runs import Turns, speed
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Outcome, StackRecord, TrialRecord, TrialResult, Value


def trial_record(
    judge: Judge, candidate: Candidate, settings: Mapping[str, Value], without: Mapping[str, Value] | None = None
) -> TrialRecord:
    """A candidate's record from the runs of these settings. ``without``: the same settings without the candidate."""
    result = judge.result(settings)
    assert result is not None, "these settings were tried"
    contribution = None
    if result.measured and without and judge.measured_runs(without):
        contribution = judge.contribution(settings, without)
    effects = _effects(judge, Settings(settings), result)
    return TrialRecord(candidate, dict(settings), result, **effects, contribution=contribution)


def stack_record(judge: Judge, settings: Mapping[str, Value], dropped: Mapping[str, str]) -> StackRecord:
    """A stack's record. Without settings it is the baseline itself, at a speed-up of 1."""
    key = Settings(settings)
    result = judge.result(key) if key else judge.baseline_record().result
    assert result is not None, "the stack was measured"
    step_ms, rate = judge.speeds(key)[1] if result.measured else (None, None)
    runs = (*judge.runs.get(key, ()), *judge.in_turn.get(key, Turns()).new)
    phases = next((run.phases for run in reversed(runs) if run.phases), {})
    return StackRecord(
        dict(key),
        replace(result, phases=phases) if key else result,
        **_effects(judge, key, result),
        baseline_step_ms=step_ms,
        baseline_samples_per_s=rate,
        dropped=dict(dropped),
    )


def _effects(judge: Judge, settings: Settings, result: TrialResult) -> dict[str, Any]:
    """The fields that trials and stacks share. A failed one has only the numerics that made it fail."""
    if not result.measured:
        return {"numerics": judge.numerics(settings)} if result.outcome is Outcome.NON_FINITE else {}
    step_ms, rate = judge.speed(settings)
    return {
        "comparison": judge.compare(settings),
        "numerics": judge.numerics(settings),
        "break_even_steps": steps_to_break_even(judge, settings, result),
        "step_ms": step_ms,
        "samples_per_s": rate,
        "confirmed": judge.took_turns(settings) and judge.holds_where_busy(settings),
    }


def steps_to_break_even(judge: Judge, settings: Mapping[str, Value], result: TrialResult) -> int | None:
    """After how many steps a slower start pays off; None if a step is not faster.

    The speeds come from the comparison, the start-up time from ``result``.
    """
    if not settings:
        return 0
    (step_ms, rate), (_, baseline_rate) = judge.speeds(settings)
    steps_like_baseline_s = step_ms / 1e3 * rate / baseline_rate
    extra_s = overhead_s(result, speed(result)[0]) - overhead_s(judge.baseline, speed(judge.baseline)[0])
    return break_even_steps(extra_s, steps_like_baseline_s, step_ms / 1e3)


def overhead_s(result: TrialResult, step_ms: float) -> float:
    """Seconds of the start (applying, compiling, warming up) beyond the time of its steps in the steady state."""
    start_s = (result.prepare_s or 0.0) + (result.warmup_s or 0.0)
    return max(0.0, start_s - result.warmup_steps * step_ms / 1e3)
