"""What the person has to know to read a session's figures: noise, and a memory limit that nothing meets."""

from __future__ import annotations

from advisor.formatting import format_bytes, format_percent
from advisor.records import ParetoPoint
from advisor.session.context import SessionContext
from advisor.session.pareto import least_memory
from advisor.settings import Settings


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
