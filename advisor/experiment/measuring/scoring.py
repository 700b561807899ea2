"""Scores: a function of the user's decides whether settings that change results may be used."""

from collections.abc import Mapping
from dataclasses import replace

from advisor.errors import TargetError, UsageError
from advisor.experiment.events import Said
from advisor.experiment.known import Evidence, Known
from advisor.experiment.measuring.bench import Bench
from advisor.figures.formatting import format_seconds
from advisor.recipe.settings import Settings
from advisor.records import Score, TrialKind, TrialResult, Value

# Largest share of the budget for one score.
_LIMIT = 0.2


def baseline_score(bench: Bench) -> Score:
    """The score of the user's own settings. Raises TargetError where there is none, UsageError where it is too low."""
    result, goal = _scored(bench, {}), bench.request.goal
    if result.score is None:
        raise TargetError(f"no score of your own settings: {result.reason}", result.hint, result.details)
    after = f" after {result.score.steps} steps" if result.score.steps else ""
    told = f"the score of your own settings is {result.score.value:.4g}{after}"
    if goal.judged(result.score, result.score).problem:
        raise UsageError(f"{told}; --min-score is {goal.min_score:g}.", "Lower it, or give --max-drop 1% in its place.")
    bench.emit(Said(f"{told}, in {format_seconds(result.wall_s or 0.0)}; each other score takes as long"))
    return result.score


def with_scores(bench: Bench, known: Known, evidence: Evidence) -> Evidence:
    """The evidence of a move. Settings that only a score can permit get one."""
    if not bench.request.evaluate:
        return evidence
    judge, permits, runs = known.judge, known.plan.consent.permits, list[tuple[Settings, TrialResult]]()
    for settings, result in evidence.runs:
        score = None
        if settings and result.measured:
            numerics = judge.with_run(settings, result).numerics(settings)
            score = numerics.score
            if not permits(settings, numerics) and permits(settings, replace(numerics, score=Score())):
                of_it = _scored(bench, settings)
                score = of_it.score or Score(problem=f"it has no score: {of_it.reason}")
        runs.append((settings, replace(result, score=score)))
    return replace(evidence, runs=tuple(runs))


def _scored(bench: Bench, settings: Mapping[str, Value]) -> TrialResult:
    spec = bench.spec(f"score: {settings or 'your own settings'}", settings, kind=TrialKind.SCORE)
    limit_s = _LIMIT * bench.budget.total_s
    limit_s = min(limit_s, spec.timeout_s) if settings else limit_s  # without that of the baseline there is no result
    return bench.run(replace(spec, evaluate=bench.request.evaluate, steps=bench.request.eval_steps, timeout_s=limit_s))
