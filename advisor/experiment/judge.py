"""The judge: turns results into records with a speed-up, an interval and a verdict, and holds the noise floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from advisor.catalog import Catalog
from advisor.experiment.confirmation import Confirmation, Runs
from advisor.experiment.numerics import Spread, compare_numerics, spread_between, why_unusable
from advisor.experiment.objective import Goal, Yardstick, figure
from advisor.records import (
    BaselineRecord,
    Block,
    Candidate,
    Comparison,
    Mode,
    Numerics,
    NumericsResult,
    Objective,
    Outcome,
    StackRecord,
    TrialRecord,
    TrialResult,
    Value,
)
from advisor.stats import (
    alternate_noise_floor,
    break_even_steps,
    neighbours_ratio_interval,
    noise_floor,
    paired_ratio_interval,
    ratio_interval,
    runs_ratio_interval,
)

# A difference is within reach of the noise when it is below so many noise floors, or below this share in any case:
# on a shared host one process can be a tenth slower than the next without any repeat of the baseline showing it.
_FLOORS_IN_REACH = 4.0
_SHARE_IN_REACH = 0.15
# A repeat of the baseline that is so far off, and by so many noise floors, is repeated before it counts.
_STANDS_OUT = 0.1
_FLOORS_STAND_OUT = 3.0


def rates(blocks: Sequence[Block]) -> list[float]:
    """Samples per second of each block."""
    return [block.samples_per_s for block in blocks]


@dataclass
class Judge:
    """Compares results with the baseline.

    ``nulls`` are ratios whose true value is 1: the control's, and the baseline's repeats against its first run.
    ``spread`` is how far apart the numerics of any two of the baseline's runs are, the control's random streams
    included; ``reference`` are the baseline's first steps in a higher precision; ``own_rounding`` is the unit round-off
    of the user's own arithmetic. ``earlier_floor`` is the noise floor of the session that this one continues.
    ``evidence`` is what confirmed single candidates, by name. ``cpu_step_ms`` is the baseline's step on the CPU, when a
    GPU session has tried it. ``outliers`` are ratios of baseline runs that stood out and were themselves in the next.
    ``goal`` says what is better than what.
    """

    catalog: Catalog
    mode: Mode
    baseline: TrialResult
    nulls: list[float] = field(default_factory=list)
    repeats: list[TrialResult] = field(default_factory=list)
    spread: Spread = field(default_factory=Spread)
    own_rounding: float = 0.0
    reference: TrialResult | None = None
    earlier_floor: float = 0.0
    evidence: dict[str, Confirmation | Runs] = field(default_factory=dict)
    outliers: list[float] = field(default_factory=list)
    cpu_step_ms: float | None = None
    goal: Goal = field(default_factory=Goal)
    _spread_runs: list[TrialResult] = field(default_factory=list)

    @property
    def noise_floor(self) -> float:
        """The relative difference that identical runs show."""
        return max(self.earlier_floor, noise_floor(self.nulls))

    @property
    def baseline_rates(self) -> list[float]:
        """Samples per second of every baseline block."""
        return rates([block for run in (self.baseline, *self.repeats) for block in run.blocks])

    @property
    def baseline_rate(self) -> float:
        """The baseline's samples per second: the median over its blocks."""
        return median(self.baseline_rates)

    def baseline_record(self) -> BaselineRecord:
        """The baseline as the session reports it."""
        blocks = [block for run in (self.baseline, *self.repeats) for block in run.blocks]
        # The first run inspected the model as well, which takes memory: later ones are what trials are held against.
        own = _with_median_energy((self.baseline, *self.repeats), self.baseline)
        result = _with_peaks(median, self._spread_runs, own)
        undisturbed = [run for run in self._spread_runs if not run.disturbed]
        return BaselineRecord(
            result,
            median(block.step_ms for block in blocks),
            self.baseline_rate,
            self.noise_floor,
            self.cpu_step_ms,
            memory_floor=_floor(Objective.MEMORY, self._spread_runs, result),
            energy_floor=_floor(Objective.ENERGY, undisturbed, result),
        )

    @property
    def yardstick(self) -> Yardstick:
        """What results are held against by the session's goal."""
        return Yardstick(self.goal, self.baseline_record())

    def add_repeat(self, result: TrialResult) -> None:
        """Take a repeat of the baseline into account: its difference is noise, unless others are known to cause it."""
        if result.measured:
            self._widen_spread(result)
        if result.measured and not result.disturbed:
            self.add_null(result.blocks)
            self.repeats.append(result)

    def stands_out(self, result: TrialResult) -> bool:
        """Whether a run of the baseline's settings is further from it than the noise that is known by then."""
        if not result.measured or result.disturbed:
            return False
        return _distance(self._null_ratio(result.blocks)) > max(_STANDS_OUT, _FLOORS_STAND_OUT * self.noise_floor)

    def add_outlier(self, result: TrialResult) -> None:
        """Take a run into account that stood out alone: candidates can have met the same, so more are checked."""
        self.outliers.append(self._null_ratio(result.blocks))

    def add_null(self, blocks: Sequence[Block]) -> None:
        """Take blocks into account that ran what the baseline runs: their difference from it is noise."""
        self.nulls.append(self._null_ratio(blocks))

    def _null_ratio(self, blocks: Sequence[Block]) -> float:
        return median(rates(blocks)) / median(rates(self.baseline.blocks))

    def add_control(self, result: TrialResult) -> None:
        """Take the no-op control into account: its speed is noise, and its losses show the spread between streams."""
        if result.measured:
            self.add_null(result.blocks)
            self._widen_spread(result)

    def add_reference(self, result: TrialResult) -> None:
        """Take the baseline's steps in a higher precision into account, if they could be run."""
        if result.probed:
            self.reference = result

    def _widen_spread(self, run: TrialResult) -> None:
        for other in (self.baseline, *self._spread_runs):
            self.spread = self.spread.widened(spread_between(run, other))
        self._spread_runs.append(run)

    def record(self, candidate: Candidate, settings: Mapping[str, Value], result: TrialResult) -> TrialRecord:
        """A candidate's record."""
        result = self.checked(result)
        record = TrialRecord(candidate, dict(settings), result, numerics=self._failed_numerics(settings, result))
        if not result.measured:
            return record
        return replace(record, **self._effects(settings, result))

    def stack(self, settings: Mapping[str, Value], result: TrialResult, dropped: Mapping[str, str]) -> StackRecord:
        """A stack's record, from a trial of its own."""
        result = self.checked(result)
        failed = self._failed_numerics(settings, result)
        record = StackRecord(dict(settings), result, numerics=failed, dropped=dict(dropped))
        if not result.measured:
            return record
        before = self.baseline_record()
        return replace(
            record,
            **self._effects(settings, result),
            baseline_step_ms=before.step_ms,
            baseline_samples_per_s=before.samples_per_s,
        )

    def empty_stack(self, dropped: Mapping[str, str]) -> StackRecord:
        """The stack when nothing helps: the baseline itself, once as fast by definition."""
        baseline = self.baseline_record()
        return StackRecord(
            {},
            baseline.result,
            Comparison(1.0, 1.0, 1.0, self.noise_floor),
            self.numerics({}, self.baseline),
            break_even_steps=0,
            step_ms=baseline.step_ms,
            samples_per_s=baseline.samples_per_s,
            baseline_step_ms=baseline.step_ms,
            baseline_samples_per_s=baseline.samples_per_s,
            dropped=dict(dropped),
        )

    def confirmed(self, stack: StackRecord, evidence: Confirmation) -> StackRecord:
        """The stack with the comparison that alternate blocks gave, and the largest of its peaks."""
        new, old = evidence.new, evidence.old
        return replace(
            stack,
            result=_with_figures_of((stack.result, evidence.result), stack.result),
            comparison=self._alternate_comparison(rates(new), rates(old)),
            confirmed=True,
            step_ms=median(block.step_ms for block in new),
            samples_per_s=median(rates(new)),
            baseline_step_ms=median(block.step_ms for block in old),
            baseline_samples_per_s=median(rates(old)),
        )

    def confirmed_by_runs(
        self, stack: StackRecord, new: Sequence[TrialResult], old: Sequence[TrialResult]
    ) -> StackRecord:
        """The stack with the comparison that trials run in turn gave, and every earlier run of the same settings."""
        new_runs, old_runs = (stack.result, *new), (self.baseline, *self.repeats, *old)
        speedup, low, high = runs_ratio_interval(_rates_of(new_runs), _rates_of(old_runs))
        step_ms, rate = _speed_of_runs(new_runs)
        baseline_step_ms, baseline_rate = _speed_of_runs(old_runs)
        return replace(
            stack,
            result=_with_figures_of(new_runs, stack.result),
            comparison=Comparison(speedup, low, high, self.noise_floor, paired=True),
            confirmed=True,
            step_ms=step_ms,
            samples_per_s=rate,
            baseline_step_ms=baseline_step_ms,
            baseline_samples_per_s=baseline_rate,
        )

    def compare(self, result: TrialResult) -> Comparison:
        """Samples per second over the baseline's, with its interval."""
        speedup, low, high = ratio_interval(rates(result.blocks), self.baseline_rates)
        return Comparison(speedup, low, high, self.noise_floor)

    def again(self, record: TrialRecord) -> TrialRecord:
        """A record under the present baseline, noise floor and evidence."""
        fresh = self.record(record.candidate, record.settings, record.result)
        evidence = self.evidence.get(record.candidate.name)
        return self._in_turn(fresh, evidence) if evidence and fresh.comparison else fresh

    def is_close_call(self, record: TrialRecord) -> bool:
        """Whether a single trial has not decided about a candidate: its difference is within reach of the noise."""
        comparison = record.comparison
        if comparison is None or record.confirmed:
            return False
        by = self.yardstick
        gain = None if by.goal.by_time else by.gain(record.result, comparison)
        little = gain is not None and gain.proven and gain.ratio - 1 < _FLOORS_IN_REACH * gain.floor
        if little or by.may_keep_speed(record.result, comparison):
            return True
        if not (comparison.ci_low > 1 or comparison.ci_high < 1):
            return False
        reach = max(_FLOORS_IN_REACH * self.noise_floor, _SHARE_IN_REACH, *map(_distance, self.outliers))
        return _distance(comparison.speedup) < reach

    def confirm(self, record: TrialRecord, evidence: Confirmation | Runs) -> TrialRecord:
        """A candidate's record by measurements in turn with the baseline, which are repeats of the baseline as well."""
        if isinstance(evidence, Runs):
            for run in evidence.old:
                self.add_repeat(run)
        else:
            self.add_null(evidence.old)
        self.evidence[record.candidate.name] = evidence
        return self.again(record)

    def _in_turn(self, record: TrialRecord, evidence: Confirmation | Runs) -> TrialRecord:
        """The trial that made a candidate interesting is left out: it was picked for being extreme."""
        if isinstance(evidence, Runs):
            speedup, low, high = neighbours_ratio_interval(_rates_of(evidence.new), _rates_of(evidence.old))
            step_ms, rate = _speed_of_runs(evidence.new)
            comparison = Comparison(speedup, low, high, self.noise_floor, paired=True)
        else:
            step_ms, rate = median(block.step_ms for block in evidence.new), median(rates(evidence.new))
            comparison = self._alternate_comparison(rates(evidence.new), rates(evidence.old))
        result = _with_figures_of(evidence.new if isinstance(evidence, Runs) else [evidence.result], record.result)
        return replace(
            record, result=result, comparison=comparison, confirmed=True, step_ms=step_ms, samples_per_s=rate
        )

    def _alternate_comparison(self, new: Sequence[float], old: Sequence[float]) -> Comparison:
        """Blocks in turn compared: drift falls on both alike, so what drifts between trials is no noise here."""
        floor = min(self.noise_floor, alternate_noise_floor(new, old))
        return Comparison(*paired_ratio_interval(new, old), floor, paired=True)

    def break_even(self, result: TrialResult) -> int | None:
        """Steps (of the candidate) after which its slower start has paid back."""
        step_ms, rate = speed(result)
        steps_like_baseline_s = step_ms / 1e3 * rate / self.baseline_rate
        extra_s = overhead_s(result, step_ms) - overhead_s(self.baseline, speed(self.baseline)[0])
        return break_even_steps(extra_s, steps_like_baseline_s, step_ms / 1e3)

    def declared(self, settings: Mapping[str, Value]) -> Numerics:
        """The worst numerics class that the recipes of these settings declare."""
        classes = [recipe.numerics_of(value, self.mode) for recipe, value in self.catalog.in_order(settings)]
        return max(classes, key=lambda numerics: numerics.severity, default=Numerics.EXACT)

    def _effects(self, settings: Mapping[str, Value], result: TrialResult) -> dict[str, Any]:
        """The fields that a trial's and a stack's record share."""
        step_ms, rate = speed(result)
        return {
            "comparison": self.compare(result),
            "numerics": self.numerics(settings, result),
            "break_even_steps": self.break_even(result),
            "step_ms": step_ms,
            "samples_per_s": rate,
        }

    def numerics(self, settings: Mapping[str, Value], result: TrialResult) -> NumericsResult:
        """The measured numerics of settings against the baseline, and what their recipes declare."""
        return compare_numerics(
            result,
            self.baseline,
            self.declared(settings),
            rounding=self.catalog.rounding(settings),
            own_rounding=self.own_rounding,
            spread=self.spread,
            reference=self.reference,
        )

    def _failed_numerics(self, settings: Mapping[str, Value], result: TrialResult) -> NumericsResult | None:
        """The numerics of what failed by them; None for what failed otherwise, or not at all."""
        return self.numerics(settings, result) if result.outcome is Outcome.NON_FINITE else None

    def checked(self, result: TrialResult) -> TrialResult:
        """A result that is not finite where the baseline's is is a failure, however fast."""
        reason = why_unusable(result, self.baseline) if result.measured else ""
        if not reason:
            return result
        return replace(
            result,
            outcome=Outcome.NON_FINITE,
            reason=reason,
            hint="Do not use this setting here.",
        )


def _distance(ratio: float) -> float:
    """How far a ratio is from 1, the same for a value and its inverse."""
    return math.expm1(abs(math.log(ratio)))


def speed(result: TrialResult) -> tuple[float, float]:
    """Milliseconds per step and samples per second: medians over the blocks."""
    return median(block.step_ms for block in result.blocks), median(rates(result.blocks))


def _with_median_energy(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the median energy a sample of runs of the same settings, where any was measured."""
    known = [run.energy_j_per_sample for run in runs if run.energy_j_per_sample is not None]
    return replace(result, energy_j_per_sample=median(known)) if known else result


def _with_figures_of(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the largest peaks and the median energy a sample of runs of the same settings."""
    return _with_peaks(max, runs, _with_median_energy(runs, result))


def _with_peaks(choose: Callable[[list[int]], float], runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with peaks chosen among those of runs of the same settings; its own where none are known."""
    reserved = [run.peak_reserved_bytes for run in runs if run.peak_reserved_bytes]
    allocated = [run.peak_allocated_bytes for run in runs if run.peak_allocated_bytes]
    return replace(
        result,
        peak_reserved_bytes=round(choose(reserved)) if reserved else result.peak_reserved_bytes,
        peak_allocated_bytes=round(choose(allocated)) if allocated else result.peak_allocated_bytes,
    )


def _floor(objective: Objective, runs: Sequence[TrialResult], own: TrialResult) -> float:
    """The relative difference that runs of the baseline's settings show in a figure; 0 where it is not known."""
    typical = figure(objective, own)
    ratios = [value / typical for run in runs if typical and (value := figure(objective, run))]
    return noise_floor(ratios) if ratios else 0.0


def _rates_of(runs: Sequence[TrialResult]) -> list[list[float]]:
    return [rates(run.blocks) for run in runs]


def _speed_of_runs(runs: Sequence[TrialResult]) -> tuple[float, float]:
    """As :func:`speed` for several runs, each of which counts once."""
    speeds = [speed(run) for run in runs]
    return median(step_ms for step_ms, _ in speeds), median(rate for _, rate in speeds)


def overhead_s(result: TrialResult, step_ms: float) -> float:
    """Seconds of the start (applying, compiling, warming up) beyond what its steps cost in the steady state."""
    start_s = (result.prepare_s or 0.0) + (result.warmup_s or 0.0)
    return max(0.0, start_s - result.warmup_steps * step_ms / 1e3)
