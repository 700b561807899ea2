"""The baseline: the first run of the user's own settings, which gives the facts; its reference, and scores."""

from collections.abc import Mapping
from dataclasses import replace

from advisor.errors import TargetError, UsageError
from advisor.experiment.caveats import cores_taken
from advisor.experiment.events import Said
from advisor.experiment.known import Evidence, Known
from advisor.experiment.measuring.bench import ENERGY_S, Bench
from advisor.experiment.request import Request
from advisor.figures.formatting import format_seconds
from advisor.judging.numerics import DEFAULT_TOLERANCE, Spread, finite
from advisor.machine.hardware import counts_energy
from advisor.machine.host import CoresInUse
from advisor.recipe.settings import Settings
from advisor.records import Facts, Hardware, Objective, Outcome, Score, TrialKind, TrialResult, TrialSpec, Value

_NO_ENERGY = (
    "no energy counter can be read here, so energy cannot be the objective.",
    "Choose --objective throughput; NVIDIA GPUs count their energy from Volta on, whole ones only.",
)
REFERENCE = "baseline in a higher precision"
_SMALLEST_REFERENCE_BUDGET_S = 60.0  # with less, the reference would take the time that the trials need
_LONGEST_REFERENCE_S = 15.0
_REFERENCE_SHARE = 0.1
_MEMORY_FACTOR = 2.0  # memory of parameters, activations and optimizer state in float64, relative to float32
# A process starts, builds the model again and runs at least one step, which is often much slower in float64.
_START_S = 1.0
_STEP_FACTOR = 4.0


def check_energy(request: Request, hardware: Hardware) -> None:
    """Refuse at once an energy objective that cannot be measured here. Raises UsageError."""
    if request.objective is not Objective.ENERGY:
        return
    on_cpu = request.target.device == "cpu"
    if on_cpu or not any(counts_energy(gpu.uuid) for gpu in hardware.gpus):
        raise UsageError(*_NO_ENERGY)


def first_run(bench: Bench, hardware: Hardware) -> tuple[Facts, TrialResult]:
    """Build the target once for all trials, then measure and describe it. Raises TargetError and UsageError."""
    cores = CoresInUse()
    bench.build_once()
    spec = bench.spec("baseline", {}, kind=TrialKind.BASELINE, at_least_s=ENERGY_S)
    result = bench.run(replace(spec, timeout_s=bench.budget.first_timeout_s))
    if result.outcome in (Outcome.CRASHED, Outcome.FAILED):
        # A target that fails in a fork may run in a new process; if not, the fault is the target's. A trial that was
        # killed from outside is started again either way.
        forked = bench.runner.forget_build()
        if forked and not bench.why_not_built_once:
            reason = f"its first run failed in a process that was forked after building: {result.reason}"
            bench.why_not_built_once = reason
        if forked or result.outcome is Outcome.CRASHED:
            result = bench.run(replace(spec, timeout_s=bench.budget.first_timeout_s))
    host = replace(hardware.host, foreign_cores=cores.foreign())
    if not result.measured or bench.inspected is None:
        problem, hint = result.reason, result.hint or "Fix the target and try again."
        if result.outcome is not Outcome.FAILED:
            problem = f"the baseline could not be measured: {result.reason or result.outcome.value}"
            hint += f" Close other programs: {cores_taken(host)}." if host.is_crowded else ""
        raise TargetError(problem, hint, result.details)
    if bench.request.objective is Objective.ENERGY and result.energy_j_per_sample is None:
        raise UsageError(*_NO_ENERGY)
    if bench.why_not_built_once:
        bench.emit(Said(f"every trial builds the model anew: {bench.why_not_built_once}"))
    facts = Facts(
        replace(hardware, host=host),
        bench.inspected.workload,
        bench.profiled,
        bench.inspected.versions,
        peak_allocated_bytes=result.peak_allocated_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        sources=bench.inspected.sources,
        operations=result.operations,
        gpus=bench.world.ranks if bench.world else 1,
    )
    return facts, result


def reference_spec(bench: Bench, facts: Facts, baseline: TrialResult, spread: Spread) -> TrialSpec | None:
    """The spec of the baseline's first steps in a higher precision.

    None if it would be of no use, does not fit into memory or takes too long, or if the trial has several ranks.
    """
    budget = bench.budget
    limit_s = min(_LONGEST_REFERENCE_S, _REFERENCE_SHARE * budget.left_s)
    random = max(spread.losses, spread.outputs) > DEFAULT_TOLERANCE
    if budget.total_s < _SMALLEST_REFERENCE_BUDGET_S or random or not finite(baseline) or facts.gpus > 1:
        return None
    step_s = min(block.seconds / block.steps for block in baseline.blocks)
    shortest_s = _START_S + (baseline.build_s or 0.0) + _STEP_FACTOR * step_s
    free_bytes = facts.workload.device_memory_bytes or facts.hardware.host.memory_available_bytes
    if shortest_s > limit_s or _MEMORY_FACTOR * (baseline.peak_reserved_bytes or 0) > free_bytes:
        return None
    return replace(bench.spec(REFERENCE, {}, kind=TrialKind.REFERENCE), timeout_s=limit_s)


# --- scores: a function of the user's decides whether settings that change results may be used ----------------------

_SCORE_SHARE = 0.2  # largest share of the budget for one score


def baseline_score(bench: Bench) -> Score:
    """The score of the user's own settings. Raises TargetError if there is none, UsageError if it is too low."""
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
    """The evidence of a move, with a score for each settings that only a score can permit."""
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
    limit_s = _SCORE_SHARE * bench.budget.total_s
    limit_s = min(limit_s, spec.timeout_s) if settings else limit_s  # the baseline needs its score
    return bench.run(replace(spec, evaluate=bench.request.evaluate, steps=bench.request.eval_steps, timeout_s=limit_s))
