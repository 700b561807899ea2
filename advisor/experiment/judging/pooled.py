"""One result for several runs of the same settings: their figures, pooled. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from advisor.records import TrialResult


def with_median_energy(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the median energy a sample of runs of the same settings, where any was measured."""
    known = [run.energy_j_per_sample for run in runs if run.energy_j_per_sample is not None]
    return replace(result, energy_j_per_sample=median(known)) if known else result


def with_figures_of(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the largest peaks and latency, and the median energy a sample, of runs of the same settings."""
    return with_peaks(max, runs, with_latency(runs, with_median_energy(runs, result)))


def with_latency(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the latency of the run whose 95th percentile is the longest, where any was measured."""
    known = [run.latency for run in runs if run.latency is not None]
    return replace(result, latency=max(known, key=lambda latency: latency.p95_ms)) if known else result


def with_peaks(choose: Callable[[list[int]], float], runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with peaks chosen among those of runs of the same settings; its own where none are known."""
    reserved = [run.peak_reserved_bytes for run in runs if run.peak_reserved_bytes]
    allocated = [run.peak_allocated_bytes for run in runs if run.peak_allocated_bytes]
    return replace(
        result,
        peak_reserved_bytes=round(choose(reserved)) if reserved else result.peak_reserved_bytes,
        peak_allocated_bytes=round(choose(allocated)) if allocated else result.peak_allocated_bytes,
    )


def with_phases_of(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the phases of a step from the last run that timed them."""
    return replace(result, phases=next((run.phases for run in reversed(runs) if run.phases), {}))
