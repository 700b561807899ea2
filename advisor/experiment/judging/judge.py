"""The judge: holds every run of the experiment and compares combinations of settings.

A value: each run makes a new judge. What it says follows from the runs alone, so a retry, a resumed session and a
longer budget judge by the same evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, geometric_mean, median

from advisor.experiment.judging.numerics import Spread, compare_numerics, spread_between, why_unusable
from advisor.experiment.kept import kept
from advisor.experiment.objective import Gain, Goal, Yardstick, figure, gain_of_figure
from advisor.figures.stats import (
    Interval,
    ProcessSpread,
    fastest_over_slowest,
    largest_difference,
    noise_floor,
    paired_ratio_interval,
    process_spread,
    runs_ratio_interval,
)
from advisor.recipe import MODES_WITH_GRAPHS
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    BaselineRecord,
    Block,
    Comparison,
    Facts,
    Mode,
    Numerics,
    NumericsResult,
    Objective,
    Outcome,
    TrialResult,
    Value,
)

BASELINE = Settings()
# Standard deviation between processes of one program before any was repeated, as a share of the step. H200 hosts and
# two-core machines, tests/gpu/RESULTS.md and tests/benchmarks: device-bound steps repeat within 1 %, host-bound ones
# within 2 to 5 % and now and then a third apart, those that a loader feeds within 5 to 10 %. Before the instrumented
# pass nobody knows which of them a step is.
_DEVICE_BOUND, _UNKNOWN, _HOST_BOUND, _FED, _ON_CPU = 0.01, 0.025, 0.04, 0.05, 0.03
_BUSY = 0.7
# The same of runs that something from outside disturbed, where a result does not say how far off it may be: on two
# loaded cores they took up to eight times as long.
_DISTURBED = 0.7
# The same of rates less the waits of the only thread for a core, and the share of the difference between two waits that
# adds to it. From 37 trials of settings that change nothing, in eleven sessions of the demo on loaded cores.
_LESS_WAITS, _OF_WAITS = 0.15, 0.25
# Degrees of freedom of a spread that is known and not estimated from a few runs.
_KNOWN = 1000.0
# Two live processes that take turns on one machine share its drift; what is left is where their memory lies.
_BESIDE = ProcessSpread(0.012, 30.0)
# The same where other programs leave a process no second core: threads that lack one run in one of several ways for
# all of a process's life. Where plain loops took 787 and 802 ms, a session reported 1.20x. Estimated from that.
_BESIDE_IN_A_CROWD = ProcessSpread(0.1, 30.0)
_BESIDE_FLOOR = 0.03
# Other draws of random numbers may differ more than the two or three seen, by this factor. Unitless; of simulated
# GraphSAGE steps with dropout 7 % were refused after two draws, 1 % after three, 0.2 % after four.
_UNSEEN = 10.0
_EVEN = Gain(1.0, 1.0, 1.0, 0.0)
_MUCH_BETTER, _MUCH_WORSE = Gain(2.0, 2.0, 2.0, 0.0), Gain(0.5, 0.5, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class AlternatedBlocks:
    """Blocks of two live processes in turn, ``new[i]`` timed next to ``old[i]``; ``result`` is the new one's trial."""

    new: tuple[Block, ...]
    old: tuple[Block, ...]
    result: TrialResult

    @property
    def speeds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Milliseconds per step and samples per second of the new settings, and the same of the old ones.

        Both are taken from the pair of blocks with the median ratio, so that they agree with the speed-up. Medians of
        each side alone would not: where the machine drifts, they come from different times.
        """
        pairs = sorted(
            zip(self.new, self.old, strict=True), key=lambda pair: pair[0].samples_per_s / pair[1].samples_per_s
        )[_middle(len(self.new))]
        return _mean_speed([_of_block(new) for new, _ in pairs]), _mean_speed([_of_block(old) for _, old in pairs])


def prior_spread(facts: Facts) -> float:
    """The standard deviation between processes that is expected before any of them was repeated."""
    if not facts.on_cuda:
        return _ON_CPU
    busy = facts.profile.device_busy_share if facts.profile else None
    if facts.workload.loader is not None:
        return _FED
    if busy is None:
        return _UNKNOWN
    return _HOST_BOUND if busy < _BUSY else _DEVICE_BOUND


def beside_spread(facts: Facts) -> ProcessSpread:
    """The spread of two live processes that take turns: larger where other programs keep the cores busy."""
    return _BESIDE_IN_A_CROWD if facts.hardware.host.is_crowded else _BESIDE


def _is_captured(settings: Mapping[str, Value]) -> bool:
    """Whether a step of these settings is a graph that is replayed, wholly or in large parts."""
    return bool(settings.get("step.cuda_graph")) or settings.get("compile.mode") in MODES_WITH_GRAPHS


def rates(blocks: Sequence[Block]) -> list[float]:
    """Samples per second of each block."""
    return [block.samples_per_s for block in blocks]


@dataclass(frozen=True)
class Judge:
    """Compares combinations of settings with the baseline and with each other.

    ``baseline`` is the first run of the user's own settings; ``runs`` are all runs by what they added to those, the
    failed ones too. ``controls`` changed nothing but the random streams. ``alternated`` are pairs that took turns
    block by block, ``in_turn`` the settings whose runs alternated with the baseline's. ``reference`` are the
    baseline's first steps in a higher precision, ``own_rounding`` the unit round-off of the user's own arithmetic.
    ``prior`` is the expected standard deviation between processes, ``beside`` the spread of two live ones that take
    turns, ``cpu_step_ms`` the baseline's step on the CPU.
    """

    catalog: Catalog
    mode: Mode
    baseline: TrialResult
    goal: Goal = field(default_factory=Goal)
    runs: Mapping[Settings, tuple[TrialResult, ...]] = field(default_factory=dict)
    controls: tuple[TrialResult, ...] = ()
    alternated: Mapping[Settings, AlternatedBlocks] = field(default_factory=dict)
    in_turn: frozenset[Settings] = frozenset()
    reference: TrialResult | None = None
    own_rounding: float = 0.0
    prior: float = _DEVICE_BOUND
    beside: ProcessSpread = _BESIDE
    cpu_step_ms: float | None = None

    # --- evidence -------------------------------------------------------------------------------------------------

    def with_run(self, settings: Mapping[str, Value], result: TrialResult) -> Judge:
        """The judge with one more run; a run of the baseline's settings is a repeat."""
        key = Settings(settings)
        return replace(self, runs={**self.runs, key: (*self.runs.get(key, ()), self.checked(result))})

    def without_runs(self, settings: Mapping[str, Value]) -> Judge:
        """The judge without the runs of these settings: they are measured anew."""
        key = Settings(settings)
        kept = {other: runs for other, runs in self.runs.items() if other != key}
        alternated = {other: blocks for other, blocks in self.alternated.items() if other != key}
        return replace(self, runs=kept, alternated=alternated, in_turn=self.in_turn - {key})

    def with_alternated(self, settings: Mapping[str, Value], blocks: AlternatedBlocks) -> Judge:
        """This judge with more blocks of these settings, which were timed in turn with the baseline's."""
        return replace(self, alternated={**self.alternated, Settings(settings): blocks})

    def with_in_turn(self, settings: Mapping[str, Value]) -> Judge:
        """The judge to which the runs of these settings are in turn with the baseline's."""
        return replace(self, in_turn=self.in_turn | {Settings(settings)})

    def with_control(self, result: TrialResult) -> Judge:
        """The judge with one more run of the control."""
        return replace(self, controls=(*self.controls, result))

    # --- noise ----------------------------------------------------------------------------------------------------

    @cached_property
    def baseline_runs(self) -> tuple[TrialResult, ...]:
        """The measured runs of the baseline: only undisturbed ones if there are at least two of those, else all."""
        runs = (self.baseline, *(run for run in self.runs.get(BASELINE, ()) if run.measured))
        calm = tuple(run for run in runs if not run.disturbed)
        return calm if len(calm) > 1 else runs

    @cached_property
    def process_spread(self) -> ProcessSpread:
        """The spread of processes of the same settings, the control's and the baseline's above all."""
        others = [self.measured_runs(settings) for settings in self.runs if settings and not _is_captured(settings)]
        groups = [[speed(run)[1] for run in group] for group in (self._nulls, *others)]
        return process_spread(groups, prior=self.prior)

    @cached_property
    def _captured_spread(self) -> ProcessSpread:
        """The process spread of captured steps: the host's noise does not reach a graph that is replayed."""
        runs = [self.measured_runs(settings) for settings in self.runs if _is_captured(settings)]
        prior = self.prior if self.prior == _FED else min(self.prior, _DEVICE_BOUND)
        return process_spread([[speed(run)[1] for run in group] for group in runs], prior=prior)

    @cached_property
    def _one_thread_spread(self) -> ProcessSpread:
        """The process spread of steps whose only thread waited for a core, less those waits."""
        runs = [self._calm_runs(settings) for settings in self.runs if settings and self._lost(settings)]
        groups = [[median(_less_waits(run)) for run in group] for group in runs]
        return process_spread(groups, prior=self.prior)

    def spread_of(self, settings: Mapping[str, Value]) -> ProcessSpread:
        """The spread of processes of these settings."""
        if _is_captured(settings):
            return self._captured_spread
        return self._one_thread_spread if settings and self._lost(settings) else self.process_spread

    def _lost(self, settings: Mapping[str, Value]) -> float | None:
        """The logarithm of the factor by which these settings took longer, since others had the core of their thread.

        0 where nothing disturbed a run; None where that factor is not known.
        """
        runs = self._calm_runs(settings)
        if not all(run.disturbed for run in runs):
            return 0.0
        waits = [run.waited for run in runs if run.waited is not None]
        return -fmean(math.log1p(-share) for share in waits) if waits and len(waits) == len(runs) else None

    @property
    def apart(self) -> float:
        """The share by which the fastest of the runs that changed nothing exceeded the slowest undisturbed one."""
        return fastest_over_slowest([speed(run)[1] for run in self._nulls], self.process_spread)

    @property
    def _nulls(self) -> list[TrialResult]:
        return [run for run in (*self.baseline_runs, *self.controls) if run.measured]

    @property
    def noise_floor(self) -> float:
        """The relative difference that identical runs typically show."""
        return noise_floor(self.process_spread)

    @cached_property
    def spread(self) -> Spread:
        """The largest differences in numerics between two runs of the baseline; the control counts as one."""
        spread = Spread()
        known: list[TrialResult] = []
        for run in (*self.baseline_runs, *self.controls):
            if run.measured:
                for other in known:
                    spread = spread.widened(spread_between(run, other))
                known.append(run)
        return spread

    @property
    def baseline_rate(self) -> float:
        """The baseline's samples per second: the median of its runs."""
        return _speed_of_runs(self.baseline_runs)[1]

    def baseline_record(self) -> BaselineRecord:
        """The baseline as the session reports it."""
        step_ms, rate = _speed_of_runs(self.baseline_runs)
        # The first run inspected the model as well, which takes memory: later ones are what trials are held against.
        later = [run for run in (*self.baseline_runs[1:], *self.controls) if run.measured]
        own = with_median_energy(self.baseline_runs, self.baseline)
        result = with_peaks(median, later, own)
        undisturbed = [run for run in later if not run.disturbed]
        return BaselineRecord(
            result,
            step_ms,
            rate,
            self.noise_floor,
            self.cpu_step_ms,
            memory_floor=_floor(Objective.MEMORY, later),
            energy_floor=_floor(Objective.ENERGY, undisturbed),
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

    def has_tried(self, settings: Mapping[str, Value]) -> bool:
        """Whether these settings were tried, also when they failed."""
        key = Settings(settings)
        return not key or bool(self.runs.get(key)) or key in self.alternated

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
        key = Settings(settings)
        return key in self.alternated or key in self.in_turn

    def speed(self, settings: Mapping[str, Value]) -> tuple[float, float]:
        """Milliseconds per step and samples per second of settings that were measured; of turns, where there were."""
        beside = self.alternated.get(Settings(settings))
        return beside.speeds[0] if beside is not None else _speed_of_runs(self._calm_runs(settings))

    def _calm_runs(self, settings: Mapping[str, Value]) -> tuple[TrialResult, ...]:
        """The measured runs of these settings that nothing disturbed; all where each was, and of the baseline."""
        runs = self.measured_runs(settings)
        return tuple(run for run in runs if settings and not run.disturbed) or runs

    # --- comparisons ----------------------------------------------------------------------------------------------

    def compare(self, settings: Mapping[str, Value]) -> Comparison:
        """The speed-up of measured settings: their samples per second over the baseline's, with its interval."""
        key = Settings(settings)
        beside = self.alternated.get(key)
        if beside is not None:
            interval = paired_ratio_interval(rates(beside.new), rates(beside.old), self.beside)
            in_a_crowd = noise_floor(self.beside)
            floor = in_a_crowd if in_a_crowd > _BESIDE_FLOOR else min(self.noise_floor, _BESIDE_FLOOR)
            return Comparison(*interval, floor, paired=True)
        return Comparison(*self._ratio(key, BASELINE), self.noise_floor, paired=key in self.in_turn)

    def compare_later_runs(self, settings: Mapping[str, Value]) -> Comparison:
        """The comparison with the baseline, with the interval of a later run where processes were timed apart.

        A person starts their loop once, after the session: its speed differs from the mean of many runs.
        """
        key, measured = Settings(settings), self.compare(settings)
        if key in self.alternated:
            return measured
        _, low, high = self._ratio(key, BASELINE, of_later_runs=True)
        return replace(measured, ci_low=low, ci_high=high)

    def contribution(self, whole: Mapping[str, Value], rest: Mapping[str, Value]) -> Comparison:
        """Samples per second of one combination over those of another; both were measured."""
        floor = max(noise_floor(self.spread_of(whole)), noise_floor(self.spread_of(rest)))
        return Comparison(*self._ratio(Settings(whole), Settings(rest)), floor)

    def gain(self, new: Mapping[str, Value], old: Mapping[str, Value]) -> Gain:
        """The gain of one measured combination over another, by the goal; 1 is no difference.

        Where only one of them stays within the limits, it is much better. Where none does, the one with less memory is
        better, or under a limit on latency the one with the shorter step.
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
            factor = self._samples_per_step(old) / self._samples_per_step(new)
        ratio, low, high = self._ratio(Settings(new), Settings(old))
        return Gain(factor * ratio, factor * low, factor * high, 0.0)

    def _samples_per_step(self, settings: Mapping[str, Value]) -> float:
        return median(block.samples / block.steps for block in self.measured_runs(settings)[0].blocks)

    @kept
    def _ratio(self, new: Settings, old: Settings, *, of_later_runs: bool = False) -> Interval:
        off_by = self._off_by_less_waits(new, old)
        trust = self._trusted_spread(new, off_by), self._trusted_spread(old, off_by)
        known = off_by is not None
        sides = self._rates(new, less_waits=known), self._rates(old, less_waits=known)
        return runs_ratio_interval(*sides, *trust, of_later_runs=of_later_runs)

    def _off_by_less_waits(self, new: Settings, old: Settings) -> float | None:
        """How far off the rates of two settings may be once their threads' waits for a core are subtracted.

        None where those waits are not known, and beside the baseline: its gain is the ratio of the step times shown.
        """
        one, other = self._lost(new), self._lost(old)
        if not (new and old) or one is None or other is None:
            return None
        return math.hypot(_LESS_WAITS, _OF_WAITS * (one - other))

    def _trusted_spread(self, settings: Settings, off_by: float | None) -> ProcessSpread:
        """The spread of processes with these settings; wider when all of their runs were disturbed from outside."""
        runs = self.measured_runs(settings)
        spread = self.spread_of(settings)
        if runs and all(run.disturbed for run in runs):
            off_by = off_by or fmean(run.off_by or _DISTURBED for run in runs)
            return ProcessSpread(math.hypot(spread.widened, off_by), _KNOWN)
        return spread

    def _rates(self, settings: Settings, *, less_waits: bool) -> list[list[float]]:
        runs = [_less_waits(run) if less_waits else rates(run.blocks) for run in self._calm_runs(settings)]
        beside = self.alternated.get(settings)
        return runs or [rates(beside.new if beside else ())]

    # --- numerics -------------------------------------------------------------------------------------------------

    def declared(self, settings: Mapping[str, Value]) -> Numerics:
        """The worst numerics class that the recipes of these settings declare."""
        recipes = self.catalog.in_order(settings)
        return Numerics.worst(*(recipe.numerics_of(value, self.mode) for recipe, value in recipes))

    def numerics(
        self, settings: Mapping[str, Value], result: TrialResult, *, unseen_draws: bool = False
    ) -> NumericsResult:
        """The numerics of settings, measured and declared; ``unseen_draws`` allows for larger random differences."""
        # The search asks dozens of times for each move; the result stays, so that its id is its own.
        key = Settings(settings), id(result), unseen_draws
        if key not in self._compared:
            self._compared[key] = result, self._numerics(key[0], result, unseen_draws)
        return self._compared[key][1]

    @cached_property
    def _compared(self) -> dict[tuple[Settings, int, bool], tuple[TrialResult, NumericsResult]]:
        return {}

    def _numerics(self, settings: Settings, result: TrialResult, unseen_draws: bool) -> NumericsResult:
        return compare_numerics(
            result,
            self.baseline,
            self.declared(settings),
            rounding=self.catalog.rounding(settings),
            own_rounding=self.own_rounding,
            spread=self.spread.times(_UNSEEN) if unseen_draws else self.spread,
            reference=self.reference,
        )

    def checked(self, result: TrialResult) -> TrialResult:
        """A result that is not finite where the baseline's is is a failure, however fast."""
        reason = why_unusable(result, self.baseline) if result.measured else ""
        if not reason:
            return result
        return replace(result, outcome=Outcome.NON_FINITE, reason=reason, hint="Do not use this setting here.")


def speed(result: TrialResult) -> tuple[float, float]:
    """Milliseconds per step and samples per second: medians over the blocks."""
    return median(block.step_ms for block in result.blocks), median(rates(result.blocks))


def _less_waits(run: TrialResult) -> list[float]:
    """Samples per second of each block, less the waits of the step's only thread for a core, where they are known."""
    return [rate / (1 - (run.waited or 0.0)) for rate in rates(run.blocks)]


def _floor(objective: Objective, runs: Sequence[TrialResult]) -> float:
    """The largest relative difference between runs of the baseline's settings that followed one another; 0 of one."""
    values = [value for run in runs if (value := figure(objective, run))]
    return largest_difference([after / before for before, after in pairwise(values)])


def _speed_of_runs(runs: Sequence[TrialResult]) -> tuple[float, float]:
    """The step time in ms and samples per second of several runs, each of which counts once."""
    return _mean_speed(sorted(speed(run) for run in runs)[_middle(len(runs))])


def _of_block(block: Block) -> tuple[float, float]:
    return block.step_ms, block.samples_per_s


def _mean_speed(speeds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of milliseconds per step and of samples per second; geometric, as a ratio of runs has it."""
    return geometric_mean([step_ms for step_ms, _ in speeds]), geometric_mean([rate for _, rate in speeds])


def _middle(count: int) -> slice:
    """The place in the middle, or of an even number the two."""
    return slice((count - 1) // 2, count // 2 + 1)


def with_median_energy(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the median energy a sample of runs of the same settings, where any was measured."""
    known = [run.energy_j_per_sample for run in runs if run.energy_j_per_sample is not None]
    return replace(result, energy_j_per_sample=median(known)) if known else result


def with_figures_of(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the largest peaks and latency, and the median energy a sample, of runs of the same settings."""
    known = [run.latency for run in runs if run.latency is not None]
    longest = max(known, key=lambda latency: latency.p95_ms, default=result.latency)
    return with_peaks(max, runs, with_median_energy(runs, replace(result, latency=longest)))


def with_peaks(choose: Callable[[list[int]], float], runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with peaks chosen among those of runs of the same settings; its own where none are known."""
    reserved = [run.peak_reserved_bytes for run in runs if run.peak_reserved_bytes]
    allocated = [run.peak_allocated_bytes for run in runs if run.peak_allocated_bytes]
    return replace(
        result,
        peak_reserved_bytes=round(choose(reserved)) if reserved else result.peak_reserved_bytes,
        peak_allocated_bytes=round(choose(allocated)) if allocated else result.peak_allocated_bytes,
    )


def with_phases_of(runs: Sequence[TrialResult], result: TrialResult) -> TrialResult:
    """A result with the phases of a step from the last run that timed them."""
    return replace(result, phases=next((run.phases for run in reversed(runs) if run.phases), {}))
