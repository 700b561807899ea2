"""The judge: holds every run of the experiment and compares combinations of settings.

A value: each run makes a new judge. What it says follows from the runs alone, so a retry, a resumed session and a
longer budget judge by the same evidence. The arithmetic is that of ``figures/stats.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from advisor.experiment.cached import cached
from advisor.experiment.judging.numerics import Spread, compare_numerics, spread_of, why_unusable
from advisor.experiment.judging.runs import (
    DEVICE_BOUND,
    Turns,
    captured_prior,
    floor_between,
    is_captured,
    mean_speed,
    rates,
    speed,
    undisturbed,
    with_figures_of,
    with_peaks,
)
from advisor.experiment.objective import Gain, Goal, Yardstick, gain_of_figure, samples_per_step
from advisor.figures.stats import (
    REPORT,
    SELECTION,
    Interval,
    ProcessSpread,
    half_width,
    process_spread,
    ratio_interval,
    side_variance,
)
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    BaselineRecord,
    Comparison,
    Mode,
    Numerics,
    NumericsResult,
    Objective,
    Outcome,
    TrialResult,
    Value,
)

BASELINE = Settings()
# Where other programs take cores or the GPU, the whole interval of the turns has to lie above this to confirm anything.
_CONFIRMED_WHERE_BUSY = 1.1
_EVEN = Gain(1.0, 1.0, 1.0, 0.0)
_MUCH_BETTER, _MUCH_WORSE = Gain(2.0, 2.0, 2.0, 0.0), Gain(0.5, 0.5, 0.5, 0.0)


@dataclass(frozen=True)
class Judge:
    """Compares combinations of settings with the baseline and with each other.

    ``baseline`` is the first run of the user's own settings; ``runs`` are all runs by what they added to those, the
    failed ones too. ``controls`` changed nothing but the random streams. ``in_turn`` are the settings that took turns
    with the baseline, block by block or process by process. ``reference`` are the baseline's first steps in a higher
    precision, ``own_rounding`` the unit round-off of the user's own arithmetic. ``prior`` is the expected standard
    deviation between processes. ``crowded``: other programs keep the cores busy. ``cpu_step_ms`` is the baseline's step
    on the CPU.
    """

    catalog: Catalog
    mode: Mode
    baseline: TrialResult
    goal: Goal = field(default_factory=Goal)
    runs: Mapping[Settings, tuple[TrialResult, ...]] = field(default_factory=dict)
    controls: tuple[TrialResult, ...] = ()
    in_turn: Mapping[Settings, Turns] = field(default_factory=dict)
    reference: TrialResult | None = None
    own_rounding: float = 0.0
    prior: float = DEVICE_BOUND
    crowded: bool = False
    cpu_step_ms: float | None = None

    # --- evidence -------------------------------------------------------------------------------------------------

    def with_run(self, settings: Mapping[str, Value], result: TrialResult) -> Judge:
        """The judge with one more run; a run of the baseline's settings is a repeat."""
        key = Settings(settings)
        return replace(self, runs={**self.runs, key: (*self.runs.get(key, ()), self.checked(result))})

    def without_runs(self, settings: Mapping[str, Value]) -> Judge:
        """A judge without the runs of these settings, which will be measured again."""
        key = Settings(settings)
        runs = {other: runs for other, runs in self.runs.items() if other != key}
        return replace(self, runs=runs, in_turn={other: turns for other, turns in self.in_turn.items() if other != key})

    def with_turns(self, settings: Mapping[str, Value], turns: Turns) -> Judge:
        """The judge with turns of these settings and the baseline; those of processes add to earlier ones."""
        key = Settings(settings)
        before = self.in_turn.get(key)
        if before is not None and not turns.by_block:
            turns = before.with_more(turns)
        return replace(self, in_turn={**self.in_turn, key: turns})

    def with_control(self, result: TrialResult) -> Judge:
        """The judge with one more run of the control."""
        return replace(self, controls=(*self.controls, result))

    # --- the baseline and the noise -------------------------------------------------------------------------------

    @cached_property
    def baseline_runs(self) -> tuple[TrialResult, ...]:
        """The measured runs of the baseline: only undisturbed ones if there are at least two of those, else all."""
        runs = (self.baseline, *(run for run in self.runs.get(BASELINE, ()) if run.measured))
        return undisturbed(runs, least=2)

    @cached_property
    def unchanged_runs(self) -> tuple[TrialResult, ...]:
        """The measured runs that changed nothing: those of the baseline, and the control's."""
        return tuple(run for run in (*self.baseline_runs, *self.controls) if run.measured)

    @property
    def apart(self) -> float:
        """The share by which the fastest of the runs that changed nothing exceeded the slowest."""
        found = [speed(run)[1] for run in self.unchanged_runs]
        return max(found) / min(found) - 1

    @cached_property
    def _spreads(self) -> Mapping[bool, ProcessSpread]:
        """The spread of processes of captured steps (True), which the host's noise does not reach, and of others."""
        found: dict[bool, ProcessSpread] = {}
        for captured, prior in ((False, self.prior), (True, captured_prior(self.prior))):
            groups = [self._undisturbed_runs(one) for one in self.runs if one and is_captured(one) is captured]
            groups += [] if captured else [self.unchanged_runs]
            found[captured] = process_spread([[speed(run)[1] for run in group] for group in groups], prior=prior)
        return found

    def spread_of(self, settings: Mapping[str, Value]) -> ProcessSpread:
        """The spread between processes of these settings."""
        return self._spreads[is_captured(settings)]

    @property
    def is_busy(self) -> bool:
        """Whether other programs take cores or the GPU, or something else disturbed every run of the baseline."""
        return self.crowded or all(run.disturbed for run in self.baseline_runs)

    @cached_property
    def spread(self) -> Spread:
        """The largest differences in numerics between two runs of the baseline; the control counts as one."""
        return spread_of(self.unchanged_runs)

    @property
    def baseline_rate(self) -> float:
        """The baseline's samples per second: the mean of its runs."""
        return mean_speed(self.baseline_runs)[1]

    def baseline_record(self) -> BaselineRecord:
        """The baseline as the session reports it."""
        step_ms, rate = mean_speed(self.baseline_runs)
        # The first run inspected the model as well, which takes memory: later ones are what trials are held against.
        later = [run for run in (*self.baseline_runs[1:], *self.controls) if run.measured]
        own = with_figures_of(self.baseline_runs, self.baseline)
        spread, side = self.spread_of(BASELINE), [rates(run.blocks) for run in self.baseline_runs]
        return BaselineRecord(
            with_peaks(median, later, own),
            step_ms,
            rate,
            self.cpu_step_ms,
            half_width=math.expm1(half_width(side_variance(side, spread), spread.degrees, REPORT)),
            memory_floor=floor_between(Objective.MEMORY, later),
            energy_floor=floor_between(Objective.ENERGY, [run for run in later if not run.disturbed]),
            runs=1 + len(later),
            apart=self.apart,
        )

    @cached_property
    def yardstick(self) -> Yardstick:
        """The yardstick of the session's goal."""
        return Yardstick(self.goal, self.baseline_record())

    # --- what is known of settings --------------------------------------------------------------------------------

    def measured_runs(self, settings: Mapping[str, Value]) -> tuple[TrialResult, ...]:
        """The runs of these settings that produced timings."""
        return self._measured.get(Settings(settings), ()) if settings else self.baseline_runs

    @cached_property
    def _measured(self) -> Mapping[Settings, tuple[TrialResult, ...]]:
        return {settings: tuple(run for run in runs if run.measured) for settings, runs in self.runs.items()}

    def _undisturbed_runs(self, settings: Mapping[str, Value]) -> tuple[TrialResult, ...]:
        """The measured runs of these settings that nothing disturbed; all where each was, and of the baseline."""
        return undisturbed(self.measured_runs(settings)) if settings else self.baseline_runs

    def has_tried(self, settings: Mapping[str, Value]) -> bool:
        """Whether these settings were tried, also when they failed."""
        key = Settings(settings)
        return not key or bool(self.runs.get(key)) or key in self.in_turn

    def result(self, settings: Mapping[str, Value]) -> TrialResult | None:
        """One result for all runs of these settings: the largest peaks and the median energy."""
        return self._results.get(Settings(settings))

    @cached_property
    def _results(self) -> Mapping[Settings, TrialResult]:
        known = {settings: self._measured[settings] or tried[-1:] for settings, tried in self.runs.items() if tried}
        known[BASELINE] = self.baseline_runs
        calmest = {settings: min(runs, key=lambda run: bool(run.disturbed)) for settings, runs in known.items()}
        return {s: with_figures_of(runs, calmest[s]) if runs[1:] else runs[0] for s, runs in known.items()}

    def took_turns(self, settings: Mapping[str, Value]) -> bool:
        """Whether these settings were measured in turn with the baseline."""
        return Settings(settings) in self.in_turn

    def confirms(self, settings: Mapping[str, Value]) -> bool:
        """Whether turns with the baseline settled what these settings gain."""
        return self.took_turns(settings) and self.holds_where_busy(settings)

    def holds_where_busy(self, settings: Mapping[str, Value]) -> bool:
        """Whether nothing else uses the machine, or these settings are faster whatever it does: by a tenth at least."""
        return not self.is_busy or self.compare(settings).ci_low > _CONFIRMED_WHERE_BUSY

    def speed(self, settings: Mapping[str, Value]) -> tuple[float, float]:
        """Milliseconds per step and samples per second of settings that were measured; of turns, where there were."""
        turns = self.in_turn.get(Settings(settings))
        return mean_speed(self._undisturbed_runs(settings)) if turns is None else turns.speeds[0]

    def baseline_speed_beside(self, settings: Mapping[str, Value]) -> tuple[float, float]:
        """Milliseconds per step and samples per second of the baseline, as timed in turn with these settings if it was.

        The speed-up of the settings is the ratio of their samples per second to these.
        """
        turns = self.in_turn.get(Settings(settings))
        return mean_speed(self.baseline_runs) if turns is None else turns.speeds[1]

    # --- comparisons ----------------------------------------------------------------------------------------------

    def compare(self, settings: Mapping[str, Value]) -> Comparison:
        """The speed-up of measured settings: their samples per second over the baseline's, with its interval.

        Of 95 % where they took turns with the baseline, by processes that chose nothing; else of 99 %.
        """
        key = Settings(settings)
        turns = self.in_turn.get(key)
        if turns is not None:
            return Comparison(*turns.interval(self.spread_of(key), self.spread_of(BASELINE)), paired=True)
        return Comparison(*self._ratio(key, BASELINE))

    def contribution(self, whole: Mapping[str, Value], rest: Mapping[str, Value]) -> Comparison:
        """Samples per second of one combination over those of another; both were measured."""
        return Comparison(*self._ratio(Settings(whole), Settings(rest)))

    def gain(self, new: Mapping[str, Value], old: Mapping[str, Value]) -> Gain:
        """The gain of one measured combination over another, by the goal; 1 is no difference.

        It says which of them the search goes on from and is reported nowhere, so its interval is of 95 %. Where only
        one of them stays within the limits, it is much better. Where none does, the one with less memory is better, or
        under a limit on latency the one with the shorter step.
        """
        one, other = self.result(new), self.result(old) if old else self.yardstick.baseline.result
        if one is None or other is None or not one.measured:
            return _MUCH_WORSE
        goal, by = self.goal, self.yardstick
        if goal.fits(one) != goal.fits(other):
            return _MUCH_BETTER if goal.fits(one) else _MUCH_WORSE
        smaller = gain_of_figure(other.peak_reserved_bytes, one.peak_reserved_bytes, by.saving_floor) or _EVEN
        if not goal.fits_memory(other):
            return smaller
        objective = goal.objective if goal.fits(other) else Objective.LATENCY
        if objective is Objective.MEMORY:
            return smaller if smaller.is_better or smaller.is_worse else self._faster(new, old, objective)
        if objective is Objective.ENERGY:
            return gain_of_figure(other.energy_j_per_sample, one.energy_j_per_sample, by.energy_floor) or _EVEN
        return self._faster(new, old, objective)

    def _faster(self, new: Mapping[str, Value], old: Mapping[str, Value], objective: Objective) -> Gain:
        """The ratio of samples per second; for latency that of steps per second."""
        factor = 1.0
        if objective is Objective.LATENCY:
            factor = samples_per_step(self.measured_runs(old)[0]) / samples_per_step(self.measured_runs(new)[0])
        ratio, low, high = self._ratio(Settings(new), Settings(old), REPORT)
        return Gain(factor * ratio, factor * low, factor * high, 0.0)

    @cached
    def _ratio(self, new: Settings, old: Settings, confidence: float = SELECTION) -> Interval:
        ours, theirs = ([rates(run.blocks) for run in self._undisturbed_runs(settings)] for settings in (new, old))
        return ratio_interval(ours, theirs, self.spread_of(new), self.spread_of(old), confidence=confidence)

    # --- numerics -------------------------------------------------------------------------------------------------

    @cached
    def numerics(self, settings: Settings) -> NumericsResult:
        """The numerics of settings that were tried."""
        result = self.result(settings) if settings else self.baseline
        assert result is not None, "these settings were tried"
        recipes = self.catalog.in_order(settings)
        return compare_numerics(
            result,
            self.baseline,
            Numerics.worst(*(recipe.numerics_of(value, self.mode) for recipe, value in recipes)),
            rounding=self.catalog.rounding(settings),
            own_rounding=self.own_rounding,
            spread=self.spread,
            reference=self.reference,
        )

    def checked(self, result: TrialResult) -> TrialResult:
        """A result that is not finite where the baseline's is is a failure, however fast."""
        reason = why_unusable(result, self.baseline) if result.measured else ""
        if not reason:
            return result
        return replace(result, outcome=Outcome.NON_FINITE, reason=reason, hint="Do not use this setting here.")
