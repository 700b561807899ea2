"""Work beside a trial that compiles: compiling for a later trial, and starting interpreters of later ones."""

from __future__ import annotations

from collections.abc import Mapping

from advisor.experiment.known import Known
from advisor.experiment.measuring.bench import Bench
from advisor.recipe import Stage
from advisor.recipe.settings import Settings
from advisor.records import Value

# For each compilation one core, and some for the processes that it starts. On 16 cores two that ran beside each other
# took no longer than one, and the second took 2 s instead of 11 s afterwards.
_CORES_FOR_TWO = 8
# One core for the trial, one for its compiler, one for its other threads, one for the interpreter.
_CORES_BESIDE_IMPORTS = 4
# Two that compile take about as much memory as two of the baseline, which may be this share of the device at most.
_MEMORY_SHARE = 0.8
# Each interpreter that waits holds half a gigabyte of the host's memory.
_MOST_INTERPRETERS = 4


def compiles_anew(bench: Bench, settings: Settings) -> bool:
    """Whether settings compile code that no trial has compiled yet."""
    code = bench.catalog.compiled_code(settings)
    return bool(code) and not bench.budget.has_compiled(code)


def may_compile_beside(bench: Bench, known: Known, settings: Mapping[str, Value]) -> bool:
    """Whether settings may be compiled beside others: there are cores and memory, and nothing is timed for them.

    What compiles for longer than usual chooses among many kernels by timing them, as some libraries do. (Otherwise
    the compiler times a few when they run first; what it finds ahead, beside another, is not kept.) A target that
    each trial builds for itself, since building it uses CUDA or threads, may not be one to build twice at a time.
    """
    facts, peak = known.plan.facts, known.judge.baseline.peak_reserved_bytes or 0
    if not facts.on_cuda or facts.hardware.host.usable_cores < _CORES_FOR_TWO or bench.builds_anew:
        return False
    catalog = bench.catalog
    if 2 * peak > _MEMORY_SHARE * facts.workload.device_memory_bytes:
        return False
    if catalog.environment(settings) or not 0 < catalog.cost(settings) <= 1:
        return False
    in_use = catalog.in_order({**facts.workload.current, **settings})
    return not any(recipe.times_kernels and value for recipe, value in in_use)


def start_interpreters(bench: Bench, known: Known) -> None:
    """Start the interpreters that candidates will need; they import while something compiles."""
    facts = known.plan.facts
    if not facts.on_cuda or facts.hardware.host.usable_cores < _CORES_BESIDE_IMPORTS:
        return
    waiting = [
        candidate
        for candidate in known.plan.candidates
        if known.plan.recipe(candidate).stage is Stage.ENVIRONMENT
        and not (known.has_record(candidate) or known.plan.is_not_worth_an_interpreter(candidate))
    ]
    for candidate in waiting[:_MOST_INTERPRETERS]:
        if not known.plan.consent.rejects(candidate.recipe):
            bench.start_interpreter(candidate.settings)
