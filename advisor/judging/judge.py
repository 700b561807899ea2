"""The judge: holds every run of the experiment and compares combinations of settings.

The judge is a frozen value: each run makes a new one. Its answers depend only on the runs, so a retry, a resumed
session and a longer budget judge by the same evidence. The arithmetic is in ``figures/stats.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar, cast

from advisor.figures.stats import (
    FARTHEST,
    REPORT,
    SELECTION,
    Interval,
    ProcessSpread,
    break_even_steps,
    half_width,
    largest_difference,
    process_spread,
    ratio_interval,
    side_variance,
)
from advisor.judging.numerics import Spread, compare_numerics, spread_of, why_unusable
from advisor.judging.objective import Goal, Yardstick
from advisor.judging.runs import DEVICE_BOUND, FED, Turns, as_one, is_captured, mean_speed, rates, speed, undisturbed
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    BaselineRecord,
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

BASELINE = Settings()
# The settings of the control: they change nothing but the random streams.
CONTROL_SETTINGS = Settings({"control.noop": True})
# While other programs take cores or the GPU, turns confirm settings only if their whole interval lies above this.
_CONFIRMED_WHERE_BUSY = 1.1
_EVEN, _MUCH_BETTER, _MUCH_WORSE = Interval(1.0, 1.0, 1.0), Interval(2.0, 2.0, 2.0), Interval(0.5, 0.5, 0.5)

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def cached(method: MethodT) -> MethodT:
    """A method of a frozen value that caches its answers by its arguments, since each move asks for the same ones."""
    place = f"_{method.__name__}_cached"

    @functools.wraps(method)
    def answer(value: Any, *given: Any) -> Any:
        answers = vars(value).setdefault(place, {})
        if (found := answers.get(given, answers)) is answers:
            found = answers[given] = method(value, *given)
        return found

    return cast(MethodT, answer)


@dataclass(frozen=True)
class Judge:
    """Compares combinations of settings with the baseline and with each other."""

    catalog: Catalog
    mode: Mode
    baseline: TrialResult  # the first run of the user's own settings
    goal: Goal = field(default_factory=Goal)
    runs: Mapping[Settings, tuple[TrialResult, ...]] = field(default_factory=dict)  # with failed runs and the control's
    in_turn: Mapping[Settings, Turns] = field(default_factory=dict)  # with the baseline
    reference: TrialResult | None = None  # the baseline's first steps in a higher precision
    own_rounding: float = 0.0  # the unit round-off of the user's own arithmetic
    prior: float = DEVICE_BOUND  # the expected standard deviation between processes
    crowded: bool = False  # other programs keep the cores busy

    # --- evidence -------------------------------------------------------------------------------------------------

    def with_run(self, settings: Settings, result: TrialResult) -> Judge:
        """The judge with one more run. A result that is not finite counts as a failure if the baseline is finite."""
        if result.measured and (reason := why_unusable(result, self.baseline)):
            hint = "Do not use this setting here."
            result = replace(result, outcome=Outcome.NON_FINITE, reason=reason, hint=hint)
        return replace(self, runs={**self.runs, settings: (*self.runs.get(settings, ()), result)})

    def with_turns(self, settings: Settings, turns: Turns) -> Judge:
        """The judge with more turns of these settings and the baseline, added to earlier ones."""
        return replace(self, in_turn={**self.in_turn, settings: self.in_turn.get(settings, Turns()).with_more(turns)})

    # --- the baseline and the noise -------------------------------------------------------------------------------

    @functools.cached_property
    def baseline_runs(self) -> tuple[TrialResult, ...]:
        """The measured runs of the baseline: only undisturbed ones if there are at least two of those, else all."""
        runs = (self.baseline, *(run for run in self.runs.get(BASELINE, ()) if run.measured))
        return undisturbed(runs, least=2)

    @functools.cached_property
    def changed(self) -> Mapping[Settings, tuple[TrialResult, ...]]:
        """The runs of all settings that change something."""
        return {one: runs for one, runs in self.runs.items() if one not in (BASELINE, CONTROL_SETTINGS)}

    @property
    def controls(self) -> tuple[TrialResult, ...]:
        """The runs of the control, including failed ones."""
        return self.runs.get(CONTROL_SETTINGS, ())

    @functools.cached_property
    def unchanged_runs(self) -> tuple[TrialResult, ...]:
        """The measured runs that changed nothing: the baseline's and the control's."""
        return tuple(run for run in (*self.baseline_runs, *self.controls) if run.measured)

    @functools.cached_property
    def _timed_unchanged(self) -> tuple[TrialResult, ...]:
        """Runs that changed nothing, with the baseline's blocks from turns: from a later time, so they show drift."""
        in_turn = (turns.old[0] for turns in self.in_turn.values() if turns.by_block)
        return (*self.unchanged_runs, *in_turn)

    @property
    def apart(self) -> float:
        """The spread of the runs that changed nothing: by which share the fastest was faster than the slowest."""
        found = [speed(run)[1] for run in self._timed_unchanged]
        return max(found) / min(found) - 1

    def spread_of(self, settings: Mapping[str, Value]) -> ProcessSpread:
        """The spread between processes of these settings."""
        return self._spread(is_captured(settings))

    @cached
    def _spread(self, captured: bool) -> ProcessSpread:
        """The spread between processes; captured steps have their own, since the host's noise does not affect them."""
        groups = [self._undisturbed_runs(one) for one in self.changed if is_captured(one) is captured]
        groups += [] if captured else [self._timed_unchanged]
        # A replayed graph varies only because of the loader.
        prior = min(self.prior, DEVICE_BOUND) if captured and self.prior not in FED else self.prior
        return process_spread([[speed(run)[1] for run in group] for group in groups], prior=prior)

    @property
    def is_busy(self) -> bool:
        """Whether other programs take cores or the GPU, or every run of the baseline was disturbed."""
        return self.crowded or all(run.disturbed for run in self.baseline_runs)

    @functools.cached_property
    def spread(self) -> Spread:
        """The largest numerical differences between two runs of the baseline; the control counts as a run of it."""
        return spread_of(self.unchanged_runs)

    def baseline_record(self) -> BaselineRecord:
        """The baseline as the session reports it."""
        spread, side = self.spread_of(BASELINE), [rates(run.blocks) for run in self.baseline_runs]
        # The first run also inspected the model, which takes memory, so trials are compared with later runs.
        later = [run for run in (*self.baseline_runs[1:], *self.controls) if run.measured]
        typical, all_runs = as_one(later or self.baseline_runs, peak=median), as_one(self.baseline_runs)
        result = replace(
            self.baseline,
            latency=all_runs.latency,
            energy_j_per_sample=all_runs.energy_j_per_sample,
            peak_reserved_bytes=typical.peak_reserved_bytes,
            peak_allocated_bytes=typical.peak_allocated_bytes,
        )
        return BaselineRecord(
            result,
            *mean_speed(self.baseline_runs),
            half_width=math.expm1(half_width(side_variance(side, spread), spread.degrees, REPORT)),
            memory_floor=_floor([run.peak_reserved_bytes for run in later]),
            energy_floor=_floor([run.energy_j_per_sample for run in later if not run.disturbed]),
            runs=1 + len(later),
            apart=self.apart,
        )

    @functools.cached_property
    def yardstick(self) -> Yardstick:
        """The yardstick for the session's goal."""
        return Yardstick(self.goal, self.baseline_record())

    # --- what is known about settings -------------------------------------------------------------------------------

    @cached
    def measured_runs(self, settings: Settings) -> tuple[TrialResult, ...]:
        """The runs of these settings that produced timings."""
        return tuple(run for run in self.runs.get(settings, ()) if run.measured) if settings else self.baseline_runs

    def _undisturbed_runs(self, settings: Settings) -> tuple[TrialResult, ...]:
        """The measured runs of these settings (or the baseline) without disturbance; all if each was disturbed."""
        return undisturbed(self.measured_runs(settings)) if settings else self.baseline_runs

    def has_tried(self, settings: Settings) -> bool:
        """Whether these settings were tried, even if they failed."""
        return not settings or settings in self.runs or settings in self.in_turn

    @cached
    def result(self, settings: Settings) -> TrialResult | None:
        """One result for all runs of these settings: the largest peaks and the median energy."""
        runs = self.measured_runs(settings) or self.runs.get(settings, ())[-1:]
        return as_one(runs) if runs else None

    def took_turns(self, settings: Settings) -> bool:
        """Whether turns with the baseline count for these settings. Turns with one odd baseline run do not count."""
        return self._turns(settings) is not None

    @cached
    def _turns(self, settings: Settings) -> Turns | None:
        """The turns of these settings; None if their only run of the baseline is far from all others."""
        turns = self.in_turn.get(settings)
        if turns is None or len(turns.old) > 1:
            return turns
        apart = math.log(mean_speed(turns.old)[1] / mean_speed(self.baseline_runs)[1])
        if turns.by_block and (runs := self._undisturbed_runs(settings)):  # other programs slow both runs of a pair
            drift = math.log(mean_speed(turns.new)[1] / mean_speed(runs)[1])
            apart = min(apart, apart - drift, key=abs)
        return turns if abs(apart) <= FARTHEST else None

    def holds_where_busy(self, settings: Settings) -> bool:
        """Whether the machine is not busy, or these settings are faster by at least a tenth anyway."""
        return not self.is_busy or self.compare(settings).ci_low > _CONFIRMED_WHERE_BUSY

    def speeds(self, settings: Settings) -> tuple[tuple[float, float], tuple[float, float]]:
        """Milliseconds per step and samples per second of measured settings and of the baseline; from turns if any."""
        if turns := self._turns(settings):
            return turns.speeds
        return mean_speed(self._undisturbed_runs(settings)), mean_speed(self.baseline_runs)

    def speed(self, settings: Settings) -> tuple[float, float]:
        """Milliseconds per step and samples per second of settings that were measured."""
        return self.speeds(settings)[0]

    # --- comparisons ----------------------------------------------------------------------------------------------

    @cached
    def compare(self, new: Settings, old: Settings = BASELINE) -> Comparison:
        """The ratio of samples per second. After turns (no selection) it has a 95 % interval, else a 99 % interval."""
        if new == old:
            return Comparison(1.0, 1.0, 1.0)
        if not old and (turns := self._turns(new)):
            return Comparison(*turns.interval(self.spread_of(new), self.spread_of(BASELINE)), paired=True)
        return Comparison(*self._ratio(new, old, SELECTION))

    def gain(self, new: Settings, old: Settings) -> Interval:
        """The gain of one measured combination over another by the goal; 1 is no difference.

        It decides with which one the search continues. It is not reported, so its interval is of 95 %. If only one is
        within the limits, that one is much better. If neither is, the one with less memory is better, or with a latency
        limit the one with the shorter step.
        """
        one, other = self.result(new), self.result(old) if old else self.yardstick.baseline.result
        if one is None or other is None or not one.measured:
            return _MUCH_WORSE
        goal, by = self.goal, self.yardstick
        if goal.fits(one) != goal.fits(other):
            return _MUCH_BETTER if goal.fits(one) else _MUCH_WORSE
        objective = goal.objective if goal.fits(other) else Objective.LATENCY
        if not goal.fits_memory(other):
            objective = Objective.MEMORY
        speedup = self._ratio(new, old, REPORT)
        gain = by.gain_over(one, other, speedup, objective) or _EVEN
        as_much = goal.fits_memory(other) and gain.low <= 1 <= gain.high
        return speedup if objective is Objective.MEMORY and as_much else gain

    @cached
    def _ratio(self, new: Settings, old: Settings, confidence: float) -> Interval:
        ours, theirs = ([rates(run.blocks) for run in self._undisturbed_runs(settings)] for settings in (new, old))
        return ratio_interval(ours, theirs, self.spread_of(new), self.spread_of(old), confidence=confidence)

    # --- numerics -------------------------------------------------------------------------------------------------

    @cached
    def numerics(self, settings: Settings) -> NumericsResult:
        """The numerics of settings that were tried."""
        result = self.result(settings) if settings else self.baseline
        assert result is not None, "these settings were tried"
        recipes = self.catalog.in_order(settings)
        compared = compare_numerics(
            result,
            self.baseline,
            Numerics.worst(*(recipe.numerics_of(value, self.mode) for recipe, value in recipes)),
            rounding=self.catalog.rounding(settings),
            own_rounding=self.own_rounding,
            spread=self.spread,
            reference=self.reference,
        )
        score = next((run.score for run in reversed(self.runs.get(settings, ())) if run.score), None)
        if score is None:
            return compared
        score = self.goal.judged(score, self.baseline.score or score)
        words = score.problem or f"the score is {score.value:.4g}, yours {score.baseline:.4g}"
        return replace(compared, score=score, text=f"{compared.text}; {words}")


def _floor(figures: Sequence[float | None]) -> float:
    """The largest relative difference between consecutive known figures; 0 for a single one."""
    return largest_difference([after / before for before, after in pairwise(filter(None, figures))])


# --- records of candidates and stacks -----------------------------------------------------------------------------


def trial_record(
    judge: Judge, candidate: Candidate, settings: Settings, contribution: Comparison | None = None
) -> TrialRecord:
    """A candidate's record from the runs of these settings, with its ``contribution`` to a combination."""
    result = judge.result(settings)
    assert result is not None, "these settings were tried"
    effects = _effects(judge, settings, result)
    return TrialRecord(candidate, dict(settings), result, **effects, contribution=contribution)


def stack_record(judge: Judge, settings: Settings, dropped: Mapping[str, str]) -> StackRecord:
    """A stack's record. Without settings it is the baseline itself, with a speed-up of 1."""
    result = judge.result(settings) if settings else judge.baseline_record().result
    assert result is not None, "the stack was measured"
    step_ms, rate = judge.speeds(settings)[1] if result.measured else (None, None)
    runs = (*judge.runs.get(settings, ()), *judge.in_turn.get(settings, Turns()).new)
    phases = next((run.phases for run in reversed(runs) if run.phases), {})
    return StackRecord(
        dict(settings),
        replace(result, phases=phases) if settings else result,
        **_effects(judge, settings, result),
        baseline_step_ms=step_ms,
        baseline_samples_per_s=rate,
        dropped=dict(dropped),
    )


def _effects(judge: Judge, settings: Settings, result: TrialResult) -> dict[str, Any]:
    """The fields that trials and stacks share. A failed result only has the numerics that made it fail."""
    if not result.measured:
        return {"numerics": judge.numerics(settings)} if result.outcome is Outcome.NON_FINITE else {}
    (step_ms, rate), (_, baseline_rate) = judge.speeds(settings)
    like_baseline_s = step_ms / 1e3 * rate / baseline_rate  # as many samples, at the baseline's rate
    extra_s = _overhead_s(result) - _overhead_s(judge.baseline)
    return {
        "comparison": judge.compare(settings),
        "numerics": judge.numerics(settings),
        "break_even_steps": break_even_steps(extra_s, like_baseline_s, step_ms / 1e3) if settings else 0,
        "step_ms": step_ms,
        "samples_per_s": rate,
        "confirmed": judge.took_turns(settings) and judge.holds_where_busy(settings),
    }


def _overhead_s(result: TrialResult) -> float:
    """Seconds that the start (applying, compiling, warming up) takes beyond its steps at the steady speed."""
    start_s = (result.prepare_s or 0.0) + (result.warmup_s or 0.0)
    return max(0.0, start_s - result.warmup_steps * speed(result)[0] / 1e3)
