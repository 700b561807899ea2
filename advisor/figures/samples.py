"""Statistics of step times: percentiles and differences; and when a slower start has paid back."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, interpolated linearly."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def largest_difference(ratios: Sequence[float]) -> float:
    """The largest relative difference among ratios whose true value is 1, the same for a value and its inverse."""
    return math.expm1(max((abs(math.log(ratio)) for ratio in ratios), default=0.0))


def break_even_steps(extra_start_s: float, old_step_s: float, new_step_s: float) -> int | None:
    """Steps after which a slower start has paid back: 0 when it is not slower, None when the step is not faster."""
    saved = old_step_s - new_step_s
    return None if saved <= 0 else max(0, math.ceil(extra_start_s / saved))
