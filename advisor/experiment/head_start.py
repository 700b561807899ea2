"""A head start for later trials, while one compiles for long and the GPU mostly waits for it.

The settings that are likely to be compiled next are compiled too, for the cache; and interpreters for trials that need
one of their own import torch. Both come to rest before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.experiment.context import SessionContext
from advisor.recipe import Stage
from advisor.records import Candidate
from advisor.settings import Settings

# For each compilation one core, and some for the processes that it starts. On 16 cores two that ran beside each other
# took no longer than one, and the second took 2 s instead of 11 s afterwards.
_CORES_FOR_TWO = 8
# One core for the trial, one for its compiler, one for its other threads, one for the interpreter.
_CORES_BESIDE_IMPORTS = 4
# Two that compile take about as much memory as two of the baseline, which may be this share of the device at most.
_MEMORY_SHARE = 0.8
# Each holds half a gigabyte of the host's memory while it waits.
_MOST_INTERPRETERS = 4


def may_compile_beside(context: SessionContext, settings: Settings) -> bool:
    """Whether settings may be compiled beside others: there are cores and memory, and nothing is timed for them.

    What compiles for longer than usual chooses among many kernels by timing them, as some libraries do. (Otherwise the
    compiler times a few when they run first; what it finds ahead, beside another, is not kept.) A target that each
    trial builds for itself, since building it uses CUDA or threads, may not be one that can be built twice at a time.
    """
    facts, peak = context.facts, context.judge.baseline.peak_reserved_bytes or 0
    if not facts.on_cuda or facts.hardware.host.usable_cores < _CORES_FOR_TWO or context.bench.builds_anew:
        return False
    if 2 * peak > _MEMORY_SHARE * facts.workload.device_memory_bytes:
        return False
    if context.catalog.environment(settings) or not 0 < context.catalog.cost(settings) <= 1:
        return False
    in_use = context.catalog.in_order({**facts.workload.current, **settings})
    return not any(recipe.times_kernels and value for recipe, value in in_use)


def start_interpreters(
    context: SessionContext, candidates: Sequence[Candidate], compiling: Sequence[Candidate]
) -> None:
    """Start the interpreters that these candidates will need alone; they import while what comes first compiles.

    Nothing is started where trials are on the CPU, or for candidates that the budget will hardly come to.
    """
    few_cores = context.facts.hardware.host.usable_cores < _CORES_BESIDE_IMPORTS
    if not compiling or few_cores or not context.facts.on_cuda:
        return
    budget = context.bench.budget
    with_compiling_s = budget.expected_s(cost=context.catalog.cost(compiling[0].settings))
    rest_s = len(candidates) * budget.expected_s()
    if not budget.allows(with_compiling_s + rest_s, reserve_s=context.reserves.confirmation_s()):
        return
    fresh = [candidate for candidate in candidates if context.catalog[candidate.recipe].stage is Stage.ENVIRONMENT]
    wanted = [candidate for candidate in fresh if not context.decisions.rejects(candidate.recipe)]
    for candidate in wanted[:_MOST_INTERPRETERS]:
        context.bench.start_interpreter(candidate.settings)
