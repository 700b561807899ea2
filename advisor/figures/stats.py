"""How results are compared, on one page: pure functions, without numpy so that the app starts fast.

The rate of a process is the median over its blocks, in samples per second. A side of a comparison is all processes of
the same settings; its rate is the mean of their logarithms. The variance of the logarithm of the ratio of two sides has
two parts:

- blocks within a process, by the standard error of their median;
- processes of the same settings. Their standard deviation is pooled over the session and shrunk towards a prior. The
  prior is known from other machines and counts as four degrees of freedom, unless most processes contradict it.

The interval is the estimate plus and minus Student's quantile times the root of that variance. The quantile uses the
degrees of freedom of the second part, at least four. So one odd run widens an interval but cannot erase a doubled
speed. No other figure for the noise is used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, median, median_low
from typing import NamedTuple

# The levels of intervals: for the choice of the search among many, and for the later measurement by processes that were
# not chosen by their result. At 99 %, one of a hundred settings that do nothing is called different.
SELECTION, REPORT = 0.99, 0.95
# The weight of the prior in degrees of freedom. With four, Student's quantile is 2.8 for 95 % and 4.6 for 99 %.
PRIOR_DEGREES = 4.0
# The largest distance from the median of its group with which a process counts, as the logarithm of a ratio. With this
# limit, one odd run in three or four leaves the 99 % interval of a doubled speed above 1.01.
FARTHEST = math.log(1.28)
# Fewest blocks for an interval of their median by order statistics: five contain it in 94 % of cases.
FEWEST_BLOCKS = 5


class Interval(NamedTuple):
    """A ratio, and the lower and the upper end of its interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ProcessSpread:
    """The standard deviation between the log rates of processes of the same settings, and its degrees of freedom."""

    sigma: float
    degrees: float = PRIOR_DEGREES


def process_spread(groups: Sequence[Sequence[float]], *, prior: float) -> ProcessSpread:
    """The spread between processes, from groups of their rates; the processes of one group have the same settings.

    ``prior`` is the standard deviation assumed before any repeat, as a share. The variances within the groups are
    pooled with it (Gelman et al., Bayesian Data Analysis, section 2.6: a scaled inverse chi-squared prior). It loses
    its weight if most of the processes, not only one, lie farther apart than it says. A group of one process adds
    nothing.
    """
    limited = [_limited([math.log(rate) for rate in rates]) for rates in groups if len(rates) > 1]
    squares = math.fsum((log - fmean(logs)) ** 2 for logs in limited for log in logs)
    seen = sum(len(logs) - 1 for logs in limited)
    weight = PRIOR_DEGREES * (min(1.0, (prior / _typical(limited)) ** 4) if seen > 1 else 1.0)
    return ProcessSpread(math.sqrt((weight * prior**2 + squares) / (weight + seen)), max(PRIOR_DEGREES, weight + seen))


def _typical(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation that most of the log rates show within their groups; one odd run does not change it.

    It is the median of their distances from the medians of their groups, divided by that of a normal distribution.
    """
    off: list[float] = []
    for logs in groups:
        middle, shrunk = median(logs), math.sqrt(1 - 1 / len(logs))
        off += sorted(abs(log - middle) / shrunk for log in logs)[1:]  # as many as there are degrees of freedom
    return max(median_low(off) / NormalDist().inv_cdf(0.75), math.ulp(1.0))


def ratio_interval(
    new: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]],
    spread: ProcessSpread,
    old_spread: ProcessSpread | None = None,
    *,
    confidence: float = REPORT,
) -> Interval:
    """The ratio ``new / old`` of the rates of two sides, with its interval.

    Each side has one list per process: the samples per second of its blocks. ``spread`` belongs to processes of the new
    settings, ``old_spread`` to the old ones if it differs. A process counts once, however many blocks it has.
    """
    old_spread = old_spread or spread
    estimate = _side(new) - _side(old)
    variance = side_variance(new, spread) + side_variance(old, old_spread)
    return _interval(estimate, variance, min(spread.degrees, old_spread.degrees), confidence)


def paired_interval(new: Sequence[float], old: Sequence[float], spread: ProcessSpread) -> Interval:
    """The ratio of the rates of two live processes whose blocks took turns, with its interval.

    ``new[i]`` and ``old[i]`` were timed next to each other, so slowdowns of the machine during both cancel in their
    ratio. The ratio of each pair is one value, and the estimate is the median of these. Two live processes also differ
    by ``spread``. Raises ValueError if the lengths differ.
    """
    ratios = [mine / other for mine, other in zip(new, old, strict=True)]
    variance = median_error(ratios) ** 2 + 2 * spread.sigma**2
    return _interval(math.log(median(ratios)), variance, spread.degrees, REPORT)


def mean_rate(rates: Sequence[float]) -> float:
    """The rate of processes of the same settings: the mean of their logarithms, as in :func:`ratio_interval`."""
    return math.exp(fmean(_limited([math.log(rate) for rate in rates])))


def side_variance(side: Sequence[Sequence[float]], spread: ProcessSpread) -> float:
    """The variance of the log rate of a side, from its processes and from the blocks within each."""
    blocks = fmean(median_error(run) ** 2 for run in side)
    return (spread.sigma**2 + blocks) / len(side)


def median_error(rates: Sequence[float]) -> float:
    """The standard error of the logarithm of the median of a process's blocks; 0 for one block.

    It is half the distance of the two blocks that enclose the median in 95 % of cases, in normal quantiles (McKean and
    Schrader, A Comparison of Methods for Studentizing the Sample Median, 1984). For two to four blocks, it is their
    range divided by one less than their number, which covers as much with Student's quantile.
    """
    ordered, count = sorted(rates), len(rates)
    if count < FEWEST_BLOCKS:
        return math.log(ordered[-1] / ordered[0]) / max(1, count - 1)
    z = NormalDist().inv_cdf(0.975)
    place = max(0, round((count + 1) / 2 - z * math.sqrt(count / 4)) - 1)
    return math.log(ordered[count - 1 - place] / ordered[place]) / (2 * z)


@lru_cache(maxsize=1024)  # a search needs few degrees of freedom, thousands of times
def student_quantile(degrees: float, confidence: float) -> float:
    """The two-sided quantile of Student's t distribution, with an error below 1 % from four degrees of freedom on.

    It is the expansion about the normal quantile: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


def half_width(variance: float, degrees: float, confidence: float) -> float:
    """Half the width of the interval of a log rate or ratio, as a logarithm."""
    return student_quantile(degrees, confidence) * math.sqrt(variance)


def _interval(estimate: float, variance: float, degrees: float, confidence: float) -> Interval:
    half = half_width(variance, degrees, confidence)
    return Interval(*map(math.exp, (estimate, estimate - half, estimate + half)))


def _side(side: Sequence[Sequence[float]]) -> float:
    """The log rate of a side: a median over the blocks of a process, a mean over processes."""
    return fmean(_limited([math.log(median(run)) for run in side]))


def _limited(logs: Sequence[float]) -> list[float]:
    """Log rates of processes of the same settings, limited to ``FARTHEST`` from their median."""
    middle = median(logs)
    return [middle + max(-FARTHEST, min(FARTHEST, log - middle)) for log in logs]


def largest_difference(ratios: Sequence[float]) -> float:
    """The largest relative difference among ratios whose true value is 1, the same for a value and its inverse."""
    return math.expm1(max((abs(math.log(ratio)) for ratio in ratios), default=0.0))


def break_even_steps(extra_start_s: float, old_step_s: float, new_step_s: float) -> int | None:
    """Steps after which a slower start pays off: 0 if it is not slower, None if the step is not faster."""
    saved = old_step_s - new_step_s
    return None if saved <= 0 else max(0, math.ceil(extra_start_s / saved))
