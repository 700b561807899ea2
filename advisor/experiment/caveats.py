"""Warnings about a session's figures: noise, a budget that is too short, a memory limit that nothing meets."""

from __future__ import annotations

import math
import os

from advisor.experiment.known import Known
from advisor.experiment.policy import POLICY
from advisor.figures.formatting import format_bytes, format_percent, format_seconds
from advisor.figures.stats import LARGEST_NOISE_FLOOR
from advisor.recipe.settings import Settings

# Within this many times what comes before the first candidate, a session can try some and confirm what helps.
_BUDGET_PER_START = 4


def of_noise(known: Known) -> str:
    """A warning of how far identical processes differ here, and of the load; empty on a quiet machine."""
    floor = known.judge.noise_floor
    if floor <= POLICY.noisy:
        return ""
    much = "more than" if floor >= LARGEST_NOISE_FLOOR else "about"
    cores = known.plan.facts.hardware.host.usable_cores
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = f"; {load:.1f} programs at a time wanted one of its {cores} cores" if load > cores else ""
    return (
        f"this machine is noisy: processes that run the same steps differ by {much} {format_percent(floor)}{busy}. "
        "Intervals are as much wider; end other programs and run again for finer ones"
    )


def of_the_budget(known: Known, spent_s: float, total_s: float) -> str:
    """That the budget left no time to try anything, and what to give; empty when something was tried."""
    tried = any(known.judge.measured_runs(settings) for settings in known.judge.runs if settings)
    if tried or not known.plan.candidates:
        return ""
    minutes = math.ceil(_BUDGET_PER_START * spent_s / 60)
    return (
        f"the budget of {format_seconds(total_s)} left no time to try anything: what comes before that took "
        f"{format_seconds(spent_s)}; give it --budget {minutes}m or more"
    )


def of_the_limit(known: Known) -> str:
    """That nothing stays within the memory limit, and what came nearest to it; empty when something does."""
    limit_bytes, judge = known.judge.goal.memory_limit_bytes, known.judge
    if limit_bytes is None:
        return ""
    peaks = {Settings(): judge.baseline_record().result.peak_reserved_bytes}
    for settings in judge.runs:
        result = judge.result(settings)
        if settings and result is not None and result.measured and known.plan.consent.permits(settings):
            peaks[settings] = result.peak_reserved_bytes
    known_peaks = {settings: peak for settings, peak in peaks.items() if peak is not None}
    if not known_peaks:
        return ""
    least = min(known_peaks, key=lambda settings: known_peaks[settings])
    if known_peaks[least] <= limit_bytes:
        return ""
    what = f"with {least}" if least else "your own settings"
    return (
        f"nothing that was measured stays within the memory limit of {format_bytes(limit_bytes)}: the least was "
        f"{format_bytes(known_peaks[least])}, {what}; raise --memory-limit, or make the batch smaller"
    )
