"""What the person has to know to read a session's figures: noise, and a budget or a memory limit that nothing meets."""

from __future__ import annotations

import math

from advisor.experiment.context import SessionContext
from advisor.experiment.pareto import least_memory
from advisor.experiment.ranking import CONTROL
from advisor.formatting import format_bytes, format_percent, format_seconds
from advisor.records import Outcome, ParetoPoint
from advisor.settings import Settings

# In so many times as long as what comes before the first candidate, a session can try some and confirm what helps.
_BUDGET_PER_START = 8


def warn_of_the_budget(context: SessionContext) -> None:
    """Say plainly that the budget left no time to try anything, and what to give."""
    budget = context.bench.budget
    outcomes = {record.result.outcome for record in context.records.values() if record.candidate.recipe != CONTROL}
    if outcomes != {Outcome.SKIPPED} or context.reserves.affordable():
        return
    minutes = math.ceil(_BUDGET_PER_START * budget.spent_s / 60)
    context.warn(
        f"the budget of {format_seconds(budget.total_s)} left no time to try anything: what comes before that took "
        f"{format_seconds(budget.spent_s)}; give it --budget {minutes}m or more"
    )


def warn_of_the_limit(context: SessionContext) -> None:
    """Say plainly that nothing stays within the memory limit, and what came nearest to it."""
    limit_bytes = context.request.memory_limit_bytes
    own = context.judge.yardstick.baseline.result.peak_reserved_bytes
    if limit_bytes is None or own is None:
        return
    alone = [
        ParetoPoint(record.candidate.name, dict(record.settings), record.comparison, peak)
        for record in context.records.values()
        if context.may_enter(record) and (peak := record.result.peak_reserved_bytes) is not None
    ]
    least = least_memory([ParetoPoint("baseline", {}, None, own), *alone, *context.combinations])
    if least is None or least.peak_reserved_bytes <= limit_bytes:
        return
    what = f"with {Settings(least.settings)}" if least.settings else "your own settings"
    context.warn(
        f"nothing that was measured stays within the memory limit of {format_bytes(limit_bytes)}: the least was "
        f"{format_bytes(least.peak_reserved_bytes)}, {what}; raise --memory-limit, or make the batch smaller"
    )


def warn_of_noise(context: SessionContext) -> None:
    """Say how small an effect cannot be told from noise here, where that is large."""
    if context.noisy:
        floor = format_percent(context.judge.noise_floor)
        context.warn(
            f"this machine was noisy: identical runs differed so much that effects below {floor} cannot be told from "
            "noise; end other programs and run again for finer verdicts"
        )
