"""Statistics of step times: percentiles, range, precision, two modes; and when a slower start has paid back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, median

from advisor.figures.stats import FEWEST_BLOCKS, median_error

# Two kinds of steps: each at least this share of all, this far apart, and each kind's own spread small beside that.
_SMALLEST_MODE = 0.1
_MODES_APART = 0.2
_FEWEST_FOR_MODES = 20


@dataclass(frozen=True, slots=True)
class TwoModes:
    """Values of two kinds: the median of either, and the share of the larger ones, 0 to 1."""

    low: float
    high: float
    high_share: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, interpolated linearly."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def relative_half_width(values: Sequence[float]) -> float:
    """Half the width of the median's 95 % interval, as a share of it; infinite below five. Values are positive."""
    if len(values) < FEWEST_BLOCKS:
        return math.inf
    return math.expm1(NormalDist().inv_cdf(0.975) * median_error(values))


def relative_range(values: Sequence[float]) -> float:
    """The distance between the 5th and the 95th percentile over the median."""
    return (percentile(values, 0.95) - percentile(values, 0.05)) / median(values)


def two_modes(values: Sequence[float]) -> TwoModes | None:
    """The two kinds that positive values fall into, or None when they are of one kind, or too few to tell.

    The split is the one with the largest variance between the two parts. Otsu, A Threshold Selection Method from
    Gray-Level Histograms, 1979.
    """
    if len(values) < _FEWEST_FOR_MODES:
        return None
    ordered = sorted(values)
    split = _otsu_split(ordered)
    low, high = ordered[:split], ordered[split:]
    apart = median(high) - median(low)
    if min(len(low), len(high)) < _SMALLEST_MODE * len(ordered) or apart < _MODES_APART * median(low):
        return None
    widest = max(percentile(part, 0.75) - percentile(part, 0.25) for part in (low, high))
    return TwoModes(median(low), median(high), len(high) / len(ordered)) if widest < apart / 3 else None


def _otsu_split(ordered: Sequence[float]) -> int:
    """The cut of sorted values with the largest difference of the two means, weighted by the sizes of the parts."""
    count, total = len(ordered), math.fsum(ordered)
    sums = list(accumulate(ordered))

    def between(cut: int) -> float:
        return cut * (count - cut) * ((total - sums[cut - 1]) / (count - cut) - sums[cut - 1] / cut) ** 2

    return max(range(1, count), key=between)


def largest_difference(ratios: Sequence[float]) -> float:
    """The largest relative difference among ratios whose true value is 1, the same for a value and its inverse."""
    return math.expm1(max((abs(math.log(ratio)) for ratio in ratios), default=0.0))


def break_even_steps(extra_start_s: float, old_step_s: float, new_step_s: float) -> int | None:
    """Steps after which a slower start has paid back: 0 when it is not slower, None when the step is not faster."""
    saved = old_step_s - new_step_s
    return None if saved <= 0 else max(0, math.ceil(extra_start_s / saved))
