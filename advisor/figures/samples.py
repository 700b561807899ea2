"""Statistics of step times: percentiles, range, precision; and when a slower start has paid back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median

from advisor.figures.stats import FEWEST_BLOCKS, median_error


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


def largest_difference(ratios: Sequence[float]) -> float:
    """The largest relative difference among ratios whose true value is 1, the same for a value and its inverse."""
    return math.expm1(max((abs(math.log(ratio)) for ratio in ratios), default=0.0))


def break_even_steps(extra_start_s: float, old_step_s: float, new_step_s: float) -> int | None:
    """Steps after which a slower start has paid back: 0 when it is not slower, None when the step is not faster."""
    saved = old_step_s - new_step_s
    return None if saved <= 0 else max(0, math.ceil(extra_start_s / saved))
