"""Medians, bootstrap intervals, noise floors: pure functions, without numpy so that the app starts fast."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

CONFIDENCE = 0.95
RESAMPLES = 1000
SMALLEST_NOISE_FLOOR = 0.005
# The largest of the few null comparisons that a session makes underestimates the tail; this widens it.
NULL_MARGIN = 1.5

# Two processes of the same program that take turns on a quiet machine differ by up to about so much.
PROCESSES_DIFFER = 0.03

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


def ratio_interval(new: Sequence[float], old: Sequence[float], *, seed: int = 0) -> Interval:
    """The ratio of medians ``new / old`` and its 95 % percentile-bootstrap interval, resampling each side's blocks.

    The values are rates (samples per second), so a ratio above 1 is a speed-up. Efron and Tibshirani, An
    Introduction to the Bootstrap, chapter 13.
    """
    draw = random.Random(seed)
    ordered_new, ordered_old = sorted(new), sorted(old)
    ratios = [resampled_median(ordered_new, draw) / resampled_median(ordered_old, draw) for _ in range(RESAMPLES)]
    return _with_interval(median(new) / median(old), ratios)


def paired_ratio_interval(new: Sequence[float], old: Sequence[float], *, seed: int = 0) -> Interval:
    """As :func:`ratio_interval` for blocks measured alternately: pairs are resampled together, so slow drift cancels.

    ``new[i]`` and ``old[i]`` were measured next to each other. Raises ValueError when the lengths differ.
    """
    pairs = list(zip(new, old, strict=True))
    draw = random.Random(seed)
    ratios = [_ratio_of_medians(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES)]
    return _with_interval(_ratio_of_medians(pairs), ratios)


def runs_ratio_interval(new: Sequence[Sequence[float]], old: Sequence[Sequence[float]], *, seed: int = 0) -> Interval:
    """As :func:`ratio_interval` for several runs (processes) of each side: runs are resampled, then blocks in them.

    A run counts once, by its median, however many blocks it has: two processes of a host-bound loop can differ by
    more than the blocks of either. Davison and Hinkley, Bootstrap Methods and their Application, section 3.8.
    """
    draw = random.Random(seed)

    def resampled(runs: Sequence[Sequence[float]]) -> float:
        return median(resampled_median(run, draw) for run in draw.choices(runs, k=len(runs)))

    ordered_new, ordered_old = [sorted(run) for run in new], [sorted(run) for run in old]
    ratios = [resampled(ordered_new) / resampled(ordered_old) for _ in range(RESAMPLES)]
    return _with_interval(median(map(median, new)) / median(map(median, old)), ratios)


def neighbours_ratio_interval(new: Sequence[Sequence[float]], old: Sequence[Sequence[float]]) -> Interval:
    """As :func:`ratio_interval` for runs taken in turn: each run is compared with its neighbour of the other side.

    ``new[i]`` and ``old[i]`` ran next to each other, so drift between pairs cancels. The estimate is the geometric mean
    of the pairs' ratios; the interval is the hull of theirs, because two or three pairs are too few to resample. Raises
    ValueError when the numbers of runs differ.
    """
    pairs = [ratio_interval(*pair) for pair in zip(new, old, strict=True)]
    estimate = math.exp(math.fsum(math.log(pair[0]) for pair in pairs) / len(pairs))
    return estimate, min(low for _, low, _ in pairs), max(high for _, _, high in pairs)


def relative_half_width(values: Sequence[float], *, seed: int = 0) -> float:
    """Half the width of the median's 95 % bootstrap interval, over the median; infinite below five values."""
    if len(values) < 5:
        return math.inf
    draw = random.Random(seed)
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
    """Where to cut sorted values so that the means of the two parts differ most, weighted by their sizes."""
    count, total = len(ordered), math.fsum(ordered)
    sums = list(accumulate(ordered))

    def between(cut: int) -> float:
        return cut * (count - cut) * ((total - sums[cut - 1]) / (count - cut) - sums[cut - 1] / cut) ** 2

    return max(range(1, count), key=between)


def noise_floor(null_ratios: Sequence[float]) -> float:
    """The relative difference that identical runs show, from ratios whose true value is 1 (control, repeats)."""
    worst = max((abs(math.log(ratio)) for ratio in null_ratios), default=0.0)
    return max(SMALLEST_NOISE_FLOOR, math.expm1(NULL_MARGIN * worst))


def alternate_noise_floor(*sides: Sequence[float]) -> float:
    """The relative difference that blocks of one process show among themselves while two processes take turns.

    Of each side every second block is compared with the others, as the two sides are. What makes two processes differ
    (where their memory lies, which cores they get) is not in that: ``PROCESSES_DIFFER`` stands for it.
    """
    nulls = [median(side[::2]) / median(side[1::2]) for side in sides if len(side) > 1]
    return max(PROCESSES_DIFFER, noise_floor(nulls))


def break_even_steps(extra_start_s: float, old_step_s: float, new_step_s: float) -> int | None:
    """Steps after which a slower start has paid back: 0 when it is not slower, None when the step is not faster."""
    saved = old_step_s - new_step_s
    if saved <= 0:
        return None
    return max(0, math.ceil(extra_start_s / saved))


def _ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    return median(pair[0] for pair in pairs) / median(pair[1] for pair in pairs)


def _with_interval(estimate: float, resampled: Sequence[float]) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    return estimate, min(estimate, percentile(resampled, tail)), max(estimate, percentile(resampled, 1 - tail))
