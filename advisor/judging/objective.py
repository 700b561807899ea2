"""The objective of a session: comparisons by it and their wording. Pure functions of records.

Throughput counts samples per second. Latency counts milliseconds per step, so a larger batch never counts as better.
Memory counts the peak, at nine tenths of the baseline's speed or more. Energy counts joules per sample. A memory limit
applies to all four: if a result exceeds it, less memory comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from advisor.figures.formatting import format_interval, format_percent, format_ratio
from advisor.figures.stats import Interval
from advisor.records import CHANGE, BaselineRecord, Comparison, Numerics, Objective, Score, TrialResult, Verdict

_KEPT_SPEED = 0.9  # the share of the baseline's samples per second that less memory must keep
# Smallest saving that counts, as a share of the baseline's peak: allocators round, and resident sets fluctuate.
SMALLEST_SAVING = 0.01
# Smallest saving of energy: the counter of a GPU is updated ten times a second. A share.
_SMALLEST_ENERGY = 0.005
_EVEN = Interval(1.0, 1.0, 1.0)
_FAST_ENOUGH = f"{format_percent(_KEPT_SPEED)} of the speed or more"


@dataclass(frozen=True, slots=True)
class Goal:
    """The objective of a session and its limits."""

    objective: Objective = Objective.THROUGHPUT
    memory_limit_bytes: int | None = None  # of the peak reserved memory
    allow: Numerics = Numerics.CLOSE  # the worst class that needs no consent
    latency_limit_ms: float | None = None  # of the 95th percentile of single calls, in inference
    min_score: float | None = None  # the lowest score that is good enough
    max_drop: float | None = None  # largest drop below the baseline's score, as a share of that score

    def judged(self, score: Score, baseline: Score) -> Score:
        """A score compared with the baseline's, with the reason if it is not good enough."""
        if score.value is None or baseline.value is None:
            return score
        problem, dropped = "", baseline.value - score.value
        if self.min_score is not None and score.value < self.min_score:
            problem = f"--min-score is {self.min_score:g}"
        elif self.max_drop is not None and dropped > self.max_drop * abs(baseline.value):
            problem = f"--max-drop is {100 * self.max_drop:g} %"
        falls = f"the score falls from {baseline.value:.4g} to {score.value:.4g}; {problem}"
        return replace(score, baseline=baseline.value, problem=problem and falls)

    @property
    def by_time(self) -> bool:
        """Whether the objective is a speed, so that the gain is the speed-up."""
        return self.objective in (Objective.THROUGHPUT, Objective.LATENCY)

    def fits(self, result: TrialResult) -> bool:
        """Whether a result is within the limits."""
        return not self.exceeded(result)

    def fits_memory(self, result: TrialResult) -> bool:
        """Whether a result is within the memory limit."""
        return self.memory_limit_bytes is None or (result.peak_reserved_bytes or 0) <= self.memory_limit_bytes

    def exceeded(self, result: TrialResult) -> str:
        """The exceeded limit: ``more than the memory limit``. Empty if no limit is known to be exceeded."""
        if not self.fits_memory(result):
            return "more than the memory limit"
        latency, limit_ms = result.latency, self.latency_limit_ms
        return "longer than the latency limit" if latency and limit_ms and latency.p95_ms > limit_ms else ""

    @property
    def tries_larger_batches(self) -> bool:
        """Whether a larger batch may help. For latency only with a limit: to find the largest batch within it."""
        has_latency_limit = self.objective is Objective.LATENCY and self.latency_limit_ms is not None
        return has_latency_limit or not self.words.larger_batch

    @property
    def words(self) -> Words:
        """The words for the objective, with the limits of the goal."""
        return WORDS[self.objective]

    def better(self, count: int = 1) -> str:
        """The verb phrase for a number of better candidates: ``is measurably faster``."""
        return self.words.better[count != 1]

    def not_better(self, count: int = 1) -> str:
        """The verb phrase for a number of candidates that are not better: ``is not measurably faster``."""
        return self.words.not_better[count != 1]


@dataclass(frozen=True, slots=True)
class Words:
    """The words for an objective."""

    short: str  # what is optimised
    ranked: str  # the order of the recommendations
    better: tuple[str, str]  # a verb for one candidate, and for several
    not_better: tuple[str, str]
    rule: str = ""  # a sentence for the report
    larger_batch: str = ""  # why a larger batch does not help; empty if it may


WORDS = {
    Objective.THROUGHPUT: Words(
        "samples per second",
        "best first",
        ("is measurably faster", "are measurably faster"),
        ("is not measurably faster", "are not measurably faster"),
    ),
    Objective.LATENCY: Words(
        "a shorter step",
        "the shortest step first",
        ("makes a step measurably shorter", "make a step measurably shorter"),
        ("does not make a step measurably shorter", "do not make a step measurably shorter"),
        "The objective is latency, the time of a step: a larger batch never counts.",
        "a larger batch makes no step shorter, and short steps are the objective",
    ),
    Objective.MEMORY: Words(
        f"the smallest peak at {_FAST_ENOUGH}",
        "the smallest memory first",
        (f"saves memory at {_FAST_ENOUGH}", f"save memory at {_FAST_ENOUGH}"),
        (f"does not save memory at {_FAST_ENOUGH}", f"do not save memory at {_FAST_ENOUGH}"),
        f"The objective is memory: the smallest peak at {_FAST_ENOUGH}, with its whole interval. If two take as "
        "much, the faster one counts.",
        "a larger batch takes more memory, and less memory is the objective",
    ),
    Objective.ENERGY: Words(
        "fewer joules a sample",
        "the least energy first",
        ("takes measurably less energy", "take measurably less energy"),
        ("does not take measurably less energy", "do not take measurably less energy"),
        "The objective is energy: joules a sample, of the whole GPU while it is timed.",
    ),
}


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A goal, and the baseline with which results are compared. A gain is a factor by the objective."""

    goal: Goal
    baseline: BaselineRecord

    def least_difference(self, objective: Objective) -> float:
        """The smallest relative difference of peaks or energies that counts. A noisy time makes energy noisy too."""
        if objective is Objective.MEMORY:
            return max(SMALLEST_SAVING, self.baseline.memory_floor)
        return max(_SMALLEST_ENERGY, self.baseline.energy_floor, self.baseline.half_width)

    @property
    def too_large(self) -> bool:
        """Whether the baseline exceeds the memory limit; if so, less memory is a gain even above the limit."""
        return not self.goal.fits_memory(self.baseline.result)

    def gain_over(
        self, new: TrialResult, old: TrialResult, speedup: Interval, objective: Objective | None = None
    ) -> Interval | None:
        """The gain of one result over another by the objective; None if the objective's figure was not measured.

        ``speedup`` is the ratio of their samples per second. A trial gives one figure for memory and one for energy, so
        the interval of their ratio is as wide as the smallest difference that counts.
        """
        objective = objective or self.goal.objective
        if objective is Objective.THROUGHPUT:
            return speedup
        if objective is Objective.LATENCY:
            step_of_old, step_of_new = (median(b.samples / b.steps for b in result.blocks) for result in (old, new))
            return Interval(*(one * step_of_old / step_of_new for one in speedup))
        one: float | None = old.energy_j_per_sample
        other: float | None = new.energy_j_per_sample
        if objective is Objective.MEMORY:
            one, other = old.peak_reserved_bytes, new.peak_reserved_bytes
        floor = 1 + self.least_difference(objective)
        return Interval(one / other, one / other / floor, one / other * floor) if one and other else None

    # --- against the baseline -------------------------------------------------------------------------------------

    def gain(self, result: TrialResult, comparison: Comparison | None) -> Interval | None:
        """The gain over the baseline by the objective; None if the objective's figure was not measured."""
        if comparison is None:
            return None
        speedup = Interval(comparison.speedup, comparison.ci_low, comparison.ci_high)
        return self.gain_over(result, self.baseline.result, speedup)

    @property
    def floor(self) -> float:
        """The gain above which the whole interval has to lie; for a speed it is the limit of the verdict."""
        return CHANGE - 1 if self.goal.by_time else 0.0

    def is_better(self, gain: Interval | None) -> bool:
        """Whether a gain is beyond the noise."""
        return gain is not None and gain.low > 1 + self.floor

    def may_keep_speed(self, comparison: Comparison, *, surely: bool = False) -> bool:
        """Whether a result is as fast as the objective requires, or seems to be if few runs leave a wide interval."""
        speed = comparison.ci_low if surely or comparison.paired else comparison.speedup
        return self.goal.objective is not Objective.MEMORY or speed >= _KEPT_SPEED

    def helps(self, result: TrialResult, comparison: Comparison | None) -> bool:
        """Whether settings are worth a place in a combination: better than the baseline beyond the noise.

        If the objective is memory, settings that are faster in the same memory count too. If the baseline exceeds the
        memory limit, settings that save memory count at any speed.
        """
        if comparison is None or not self.may_keep_speed(comparison, surely=True):
            return False
        saving = self.gain_over(result, self.baseline.result, _EVEN, Objective.MEMORY) or _EVEN
        saves = self.too_large and saving.low > 1
        free = self.goal.objective is Objective.MEMORY and saving.high >= 1
        return self.is_better(self.gain(result, comparison)) or saves or (free and comparison.verdict is Verdict.FASTER)

    def may_recommend(self, result: TrialResult, comparison: Comparison | None) -> bool:
        """Whether settings may be recommended: they help and are within the limits."""
        return self.goal.fits(result) and self.helps(result, comparison)

    def merit(self, result: TrialResult, comparison: Comparison | None) -> tuple[bool, float]:
        """The sort key of results: first those better by the objective, by gain; then the others, by speed."""
        gain = self.gain(result, comparison)
        if gain is not None and self.is_better(gain):
            return True, gain.ratio
        return False, comparison.speedup if comparison else 0.0

    # --- in words -------------------------------------------------------------------------------------------------

    def effect(self, result: TrialResult, comparison: Comparison | None) -> str:
        """The effect of settings by the objective: ``saves 31 % of the memory at 0.97x (0.95-0.99) the speed``."""
        gain = self.gain(result, comparison)
        if comparison is None or gain is None or self.goal.objective is Objective.THROUGHPUT:
            return format_ratio(comparison)
        if self.goal.objective is Objective.LATENCY:
            return format_ratio(Comparison(*gain))
        speed, less = format_interval(comparison), format_percent(1 - 1 / gain.ratio)
        more = format_percent(1 / gain.ratio - 1)
        if self.goal.objective is Objective.ENERGY:
            share = f"{less} less" if gain.low > 1 else f"{more} more" if gain.high < 1 else "as much"
            return f"takes {share} energy a sample at {speed} the speed"
        if gain.low > 1:
            return f"saves {less} of the memory at {speed} the speed"
        return (
            f"takes {more} more memory at {speed} the speed" if gain.high < 1 else f"{speed} as fast in as much memory"
        )
