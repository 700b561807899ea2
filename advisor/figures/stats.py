"""Medians, bootstrap intervals, noise floors: pure functions, without numpy so that the app starts fast."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from statistics import fmean, median, pstdev, stdev

CONFIDENCE = 0.95
RESAMPLES = 1000
# Enough for a standard error within 5 %.
_ERROR_RESAMPLES = 200
SMALLEST_NOISE_FLOOR = 0.005
LARGEST_NOISE_FLOOR = 0.3
# The two-sided 95 % and 99 % quantiles of the normal distribution.
_NORMAL_FACTOR, _STRICT_NORMAL_FACTOR = 1.959964, 2.575829
# The standard deviation of the difference of one run and the mean of four, in those of a run.
_ONE_AGAINST_FOUR = math.sqrt(1 + 1 / 4)
# The median absolute difference of two normal draws, in standard deviations.
_TYPICAL_DIFFERENCE = 0.954
# The variance of the median of three to six normal draws, as a multiple of their mean's: 1.35, 1.19, 1.43, 1.29.
_MEDIAN_OF_SOME = 1.35
# A run that is slower than the mean of at least three others by this many standard deviations was disturbed. Of 2000
# simulated groups of four undisturbed runs none was so far off with a fitting prior, 11 with a prior of a twentieth.
_DISTURBED = 20.0
_FEWEST_WITH_DISTURBED = 4
# Ratios that resampling can speak for: from the smallest to the largest, five hold the median in 94 % of cases.
_FEWEST_RATIOS = 5

Interval = tuple[float, float, float]

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


def paired_ratio_interval(
    new: Sequence[float], old: Sequence[float], spread: ProcessSpread | None = None, *, seed: int = 0
) -> Interval:
    """The median of the ratios of blocks measured alternately, with its bootstrap interval.

    ``new[i]`` and ``old[i]`` were measured next to each other: what slows the machine during both cancels in their
    ratio. A ratio of two medians would keep it where it comes and goes. With ``spread`` the differences between
    processes are resampled as well. Fewer than five ratios are too few to resample: the true median lies between the
    smallest and the largest in at most 88 % of cases. Student's interval of their mean logarithm widens it then.
    Raises ValueError when the lengths differ.
    """
    ratios = sorted(mine / other for mine, other in zip(new, old, strict=True))
    draw = random.Random(seed)
    between = spread.widened * math.sqrt(2) if spread else 0.0
    sigma = math.hypot(between, _error_of_few(ratios))
    resampled = [resampled_median(ratios, draw) * math.exp(draw.gauss(0.0, sigma)) for _ in range(RESAMPLES)]
    return _with_interval(median(ratios), resampled)


def _error_of_few(ratios: Sequence[float]) -> float:
    """The standard error of the mean logarithm of two to four ratios, as wide as Student's t makes it; 0 of others."""
    if not 1 < len(ratios) < _FEWEST_RATIOS:
        return 0.0
    degrees = len(ratios) - 1
    error = stdev(map(math.log, ratios)) / math.sqrt(len(ratios))
    return error * student_factor(degrees) / _NORMAL_FACTOR


@dataclass(frozen=True, slots=True)
class ProcessSpread:
    """The spread of processes that run the same program: the standard deviation of their logarithmic rates.

    ``degrees`` are the degrees of freedom behind ``sigma``, which decide how wide an interval has to be. ``seen`` is
    the standard deviation of the repeats alone, without what is known from other machines; 0 where none were.
    """

    sigma: float
    degrees: float
    seen: float = 0.0

    @property
    def widened(self) -> float:
        """The standard deviation that, with a normal distribution's 95 % factor, covers as much as Student's t does."""
        return self.sigma * student_factor(self.degrees) / _NORMAL_FACTOR


def process_spread(groups: Sequence[Sequence[float]], *, prior: float, prior_degrees: float = 4.0) -> ProcessSpread:
    """The spread between processes, from groups of rates; the processes of one group ran the same program.

    The variances within the groups are pooled, without a run that was clearly disturbed. ``prior`` is a standard
    deviation known from other machines, which counts as much as ``prior_degrees`` observations (Gelman et al., Bayesian
    Data Analysis, section 2.6), and as much less as the observations contradict it by being larger. Looking for a
    disturbed run costs one degree of freedom, found or not. Groups of one tell nothing.
    """
    logs = [_logarithms(rates) for rates in groups if len(rates) > 1]
    if not logs:
        return ProcessSpread(prior, prior_degrees)
    disturbed = False
    for place, group in enumerate(logs):
        if len(group) < _FEWEST_WITH_DISTURBED:
            continue
        rest = [*logs[:place], group[1:], *logs[place + 1 :]]
        if _begins_disturbed(group, _pooled(rest, prior, prior_degrees)):
            logs, disturbed = rest, True
    spread = _pooled(logs, prior, prior_degrees)
    return spread if disturbed else replace(spread, degrees=spread.degrees - 1)


def fastest_over_slowest(rates: Sequence[float], spread: ProcessSpread) -> float:
    """The share by which the fastest of the processes of one program exceeds the slowest.

    ``spread`` is that of :func:`process_spread`, which left out a run that was clearly disturbed, as this does.
    """
    logs = _logarithms(rates)
    return math.expm1(logs[-1] - logs[_begins_disturbed(logs, spread)])


def _logarithms(rates: Sequence[float]) -> list[float]:
    return sorted(math.log(rate) for rate in rates)


def _begins_disturbed(group: Sequence[float], spread: ProcessSpread) -> bool:
    """Whether the first of the sorted logarithms of rates is that of a run which was clearly disturbed."""
    return len(group) >= _FEWEST_WITH_DISTURBED and fmean(group[1:]) - group[0] > _DISTURBED * spread.sigma


def _pooled(groups: Sequence[Sequence[float]], prior: float, prior_degrees: float) -> ProcessSpread:
    degrees = sum(len(group) - 1 for group in groups)
    squares = math.fsum((value - fmean(group)) ** 2 for group in groups for value in group)
    agreement = min(1.0, degrees * prior**2 / squares) if squares else 1.0
    weight = prior_degrees * agreement**2
    variance = (weight * prior**2 + squares) / (weight + degrees)
    return ProcessSpread(math.sqrt(variance), weight + degrees, math.sqrt(squares / degrees) if degrees else 0.0)


@lru_cache(maxsize=1024)  # a search asks for few degrees of freedom, thousands of times
def student_factor(degrees: float, normal: float = _NORMAL_FACTOR) -> float:
    """The two-sided 95 % quantile of Student's t distribution; within 1 % from three degrees of freedom on.

    ``normal`` is the normal distribution's quantile, in place of which Student's is asked for. Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.5.
    """
    z = normal
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / max(degrees, 2.0) ** power for power, term in enumerate(terms))


def runs_ratio_interval(
    new: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]],
    spread: ProcessSpread,
    old_spread: ProcessSpread | None = None,
    *,
    of_later_runs: bool = False,
) -> Interval:
    """The ratio ``new / old`` of the rates of processes, with its 95 % interval; each side holds one list a process.

    The rates are those of blocks (samples per second), so a ratio above 1 is a speed-up. Two sources of error add up:
    the blocks within a process, by the bootstrap's standard error of their median, and the process itself, by the
    pooled ``spread`` (``old_spread`` for the other side, where that is another): one to three processes are too few to
    resample. The interval is normal in the logarithm of the ratio, with Student's factor for the spread. A process
    counts once however many blocks it has. Davison and Hinkley, Bootstrap Methods and their Application, section 3.8.

    With ``of_later_runs`` it is the interval of what one more process of each would show, which differs from the mean
    by as much as those that were seen differ from one another.
    """
    estimate = median([math.log(median(run)) for run in new]) - median([math.log(median(run)) for run in old])
    blocks = sum(
        _variance_of_median(side) * _median_error(tuple(run)) ** 2 / len(side) for side in (new, old) for run in side
    )
    other = old_spread or spread
    processes = spread.widened**2 * _variance_of_median(new) + other.widened**2 * _variance_of_median(old)
    later = spread.seen**2 + other.seen**2 if of_later_runs else 0.0
    half = _NORMAL_FACTOR * math.sqrt(blocks + processes + later)
    return math.exp(estimate), math.exp(estimate - half), math.exp(estimate + half)


@lru_cache(maxsize=4096)
def _median_error(rates: tuple[float, ...]) -> float:
    """The standard error of the logarithm of the median, by the bootstrap; the search asks for it over and over."""
    if len(rates) == 1:
        return 0.0
    draw = random.Random(0)
    ordered = sorted(rates)
    medians = [math.log(resampled_median(ordered, draw)) for _ in range(_ERROR_RESAMPLES)]
    return pstdev(medians)


def _variance_of_median(side: Sequence[object]) -> float:
    """The variance of the median of as many values, as a multiple of that of one value."""
    return (1.0 if len(side) < 3 else _MEDIAN_OF_SOME) / len(side)


def relative_half_width(values: Sequence[float]) -> float:
    """Half the width of the median's 95 % bootstrap interval, over the median; infinite below five values."""
    if len(values) < 5:
        return math.inf
    draw = random.Random(0)
    ordered = sorted(values)
    medians = [resampled_median(ordered, draw) for _ in range(200)]
    tail = (1 - CONFIDENCE) / 2
    return (percentile(medians, 1 - tail) - percentile(medians, tail)) / 2 / median(values)


def resampled_median(ordered: Sequence[float], draw: random.Random) -> float:
    """The median of as many values drawn with replacement, without drawing them: ``ordered`` is sorted.

    The ranks of the draws are uniform, so the middle one has a beta distribution (David and Nagaraja, Order Statistics,
    section 2.1). A session judges dozens of trials again after each repeat of its baseline; this keeps that short.
    """
    count = len(ordered)
    half = count // 2
    if count % 2:
        return ordered[min(count - 1, int(count * draw.betavariate(half + 1, half + 1)))]
    low = draw.betavariate(half, half + 1)
    high = low + (1 - low) * (1 - draw.random() ** (1 / half))
    return (ordered[min(count - 1, int(count * low))] + ordered[min(count - 1, int(count * high))]) / 2


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


def noise_floor(spread: ProcessSpread) -> float:
    """The relative difference that an interval has to clear before it says anything, between 0.5 and 30 %.

    Two processes of the same program typically differ by as much. While few runs are known it is larger: the distance
    from the 95 % to the 99 % interval of one run against four, so that of a hundred programs that are the same one is
    called different. It is bounded, because the intervals hold the spread already: where a machine is hopeless they are
    wide, and a doubled speed is still told.
    """
    further = student_factor(spread.degrees, _STRICT_NORMAL_FACTOR) - student_factor(spread.degrees)
    difference = max(_TYPICAL_DIFFERENCE, _ONE_AGAINST_FOUR * further) * spread.sigma
    return min(LARGEST_NOISE_FLOOR, max(SMALLEST_NOISE_FLOOR, math.expm1(difference)))


def largest_difference(ratios: Sequence[float]) -> float:
    """The largest relative difference among ratios whose true value is 1, the same for a value and its inverse."""
    return math.expm1(max((abs(math.log(ratio)) for ratio in ratios), default=0.0))


def break_even_steps(extra_start_s: float, old_step_s: float, new_step_s: float) -> int | None:
    """Steps after which a slower start has paid back: 0 when it is not slower, None when the step is not faster."""
    saved = old_step_s - new_step_s
    return None if saved <= 0 else max(0, math.ceil(extra_start_s / saved))


def _with_interval(estimate: float, resampled: Sequence[float]) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    return estimate, min(estimate, percentile(resampled, tail)), max(estimate, percentile(resampled, 1 - tail))
