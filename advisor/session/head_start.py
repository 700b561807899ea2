"""A head start for trials in fresh interpreters: they import torch, for seconds, while the GPU waits for a compiler."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.recipe import Stage
from advisor.records import Candidate
from advisor.session.context import SessionContext

# One core for the trial, one for its compiler, one for its other threads, one for the interpreter.
_FEWEST_CORES = 4
# Each holds half a gigabyte of the host's memory while it waits.
_MOST_INTERPRETERS = 4


def start_interpreters(
    context: SessionContext, candidates: Sequence[Candidate], compiling: Sequence[Candidate]
) -> None:
    """Start the interpreters that these candidates will need alone, because what comes first is to compile for long.

    Nothing is started beside a compilation that may be over first, for then something is timed; nor where the trials
    are on the CPU; nor for candidates that the budget will hardly come to.
    """
    if not (compiling and context.facts.on_cuda and context.facts.hardware.host.usable_cores >= _FEWEST_CORES):
        return
    budget = context.bench.budget
    with_compiling_s = budget.expected_s(cost=context.catalog.cost(compiling[0].settings))
    if with_compiling_s - budget.expected_s() < budget.interpreter_s:
        return
    rest_s = len(candidates) * budget.expected_s()
    if not budget.allows(with_compiling_s + rest_s, reserve_s=context.reserves.confirmation_s()):
        return
    fresh = [candidate for candidate in candidates if context.catalog[candidate.recipe].stage is Stage.ENVIRONMENT]
    wanted = [candidate for candidate in fresh if not context.decisions.rejects(candidate.recipe)]
    for candidate in wanted[:_MOST_INTERPRETERS]:
        context.bench.start_interpreter(candidate.settings)
