"""The knowledge about several GPUs: every run over ranks, beside the one-GPU stack at the same global batch. A value.

As ``known.py`` does for one GPU: each run makes a new value, and all that is said follows from the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from statistics import median

from advisor.experiment.consent import Consent
from advisor.experiment.judging.judge import rates
from advisor.figures.stats import ProcessSpread, noise_floor, process_spread, runs_ratio_interval
from advisor.recipe.catalog import Catalog
from advisor.recipe.parallel_recipe import SINGLE, STRATEGY
from advisor.recipe.settings import Settings
from advisor.records import (
    Candidate,
    Comparison,
    Facts,
    Mode,
    Numerics,
    RanksFound,
    ScalingRecord,
    ScalingRow,
    TrialResult,
    Value,
    World,
    text_of,
)
from advisor.records.kinds import COLLECTIVES

# Standard deviation between processes before any was repeated, as a share of the step: several ranks on one host.
_PRIOR = 0.015
# Largest difference of the first losses of the same training. Relative; the order of sums explains 1e-3 in
# float32 and 1e-2 in bfloat16.
_SAME_LOSSES = 0.03
# Exposed communication from which on a step is bound by it. Share of the step.
BOUND_BY_COMMUNICATION = 0.2


@dataclass(frozen=True, slots=True)
class Spread:
    """Settings added to the one-GPU stack, with equal global batch or (``weak``) with the whole batch on each GPU."""

    settings: Settings = field(default_factory=Settings)
    weak: bool = False

    @property
    def strategy(self) -> str:
        """The way in which the model is spread."""
        return str(self.settings.get(STRATEGY, SINGLE))

    @property
    def name(self) -> str:
        """The settings as a person reads them: ``ddp, static_graph: true``."""
        if not self.settings:
            return "one GPU"
        options = [
            f"{key.removeprefix('parallel.')}: {text_of(value)}"
            for key, value in self.settings.items()
            if key != STRATEGY
        ]
        weak = ["whole batch on each GPU"] if self.weak else []
        return ", ".join([self.strategy, *options, *weak])

    def world(self, gpus: int, options: tuple[str, ...] = (), machines: int = 1) -> World:
        """The processes of a trial on this many GPUs. DataParallel runs one process for all of them."""
        if self.strategy == SINGLE:
            return World(1, devices=1)
        here = gpus // machines
        ranks = 1 if self.strategy == "data_parallel" else here
        return World(ranks, devices=here, weak=self.weak, options=options, machines=machines)


ONE = Spread()


class Kind(StrEnum):
    """The kinds of moves on several GPUs."""

    STRATEGY = "strategy"
    OPTION = "option"
    WITHOUT = "without"
    AGAIN = "again"
    WEAK = "weak"
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class Move:
    """One thing to measure next over several GPUs, with the gain that is expected of it."""

    kind: Kind
    spread: Spread
    gain: float

    @property
    def is_bold(self) -> bool:
        """A strategy comes before all others: options belong to the best of them."""
        return self.kind is Kind.STRATEGY


@dataclass(frozen=True)
class Scaling:
    """The knowledge. ``carried`` is the one-GPU stack in every trial, ``left_out`` what does not go with ranks.

    ``candidates`` are the strategies and options to try, ``facts`` those of the workload on several GPUs; without
    facts only what is measured anyway is judged. ``stack`` is the best at the same global batch so far.
    ``same_losses``: the first losses have to be those of one GPU, since nothing in a step depends on the samples beside
    it or on chance. ``confirmed``: the stack was timed in turn with one GPU.
    """

    gpus: int
    catalog: Catalog
    consent: Consent
    facts: Facts | None = None
    candidates: tuple[Candidate, ...] = ()
    carried: Settings = field(default_factory=Settings)
    left_out: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[Spread, tuple[TrialResult, ...]] = field(default_factory=dict)
    stack: Settings = field(default_factory=Settings)
    passed_over: Mapping[str, str] = field(default_factory=dict)
    same_losses: bool = True
    confirmed: bool = False
    turns: int = 0
    device_type: str = "cpu"
    machines: int = 1

    # --- evidence -------------------------------------------------------------------------------------------------

    def with_run(self, spread: Spread, result: TrialResult) -> Scaling:
        """Return the knowledge with one more run, and the stack that follows."""
        known = replace(self, runs={**self.runs, spread: (*self.runs.get(spread, ()), result)})
        return known if spread.weak else known._settled()

    def after(self, move: Move, evidence: tuple[tuple[Spread, TrialResult], ...]) -> Scaling:
        """Return the knowledge after a move."""
        known = self
        for spread, result in evidence:
            known = known.with_run(spread, result)
        proven = move.kind is Kind.TURNS and all(result.measured for _, result in evidence)
        return replace(
            known, confirmed=proven or (self.confirmed and known.stack == self.stack), turns=known.turns + proven
        )

    def has_tried(self, spread: Spread) -> bool:
        """Whether it was tried, also where it failed."""
        return spread in self.runs

    def measured(self, spread: Spread) -> tuple[TrialResult, ...]:
        """Its runs that produced timings."""
        return tuple(run for run in self.runs.get(spread, ()) if run.measured)

    @cached_property
    def _spread(self) -> ProcessSpread:
        groups = [[median(rates(run.blocks)) for run in self.measured(spread)] for spread in self.runs]
        return process_spread([group for group in groups if group], prior=_PRIOR)

    def compare(self, new: Spread, old: Spread = ONE) -> Comparison | None:
        """Samples per second of one over another, with the interval; None unless both were measured."""
        ours, theirs = self.measured(new), self.measured(old)
        if not (ours and theirs):
            return None
        interval = runs_ratio_interval(
            [rates(run.blocks) for run in ours], [rates(run.blocks) for run in theirs], self._spread
        )
        return Comparison(*interval, noise_floor(self._spread), paired=self.confirmed and new == Spread(self.stack))

    def loss_difference(self, spread: Spread) -> float | None:
        """The largest relative difference of the first losses from one GPU's; None where they cannot be compared."""
        ours, theirs = self.measured(spread), self.measured(ONE)
        if not (ours and theirs) or spread.weak:
            return None
        pairs = zip(ours[0].losses, theirs[0].losses, strict=False)
        return max((abs(one - other) / max(abs(other), 1e-12) for one, other in pairs), default=None)

    def why_unusable(self, spread: Spread) -> str:
        """The reason that settings may not be the stack; empty where they may."""
        if reason := self.consent.why_not(spread.settings):
            return reason
        difference = self.loss_difference(spread)
        changes = any(_changes(self.catalog, key, value) for key, value in spread.settings.items())
        if difference is not None and difference > _SAME_LOSSES and self.same_losses and not changes:
            return f"its first losses differ from one GPU's by {100 * difference:.0f} %"
        return ""

    def _settled(self) -> Scaling:
        """The best usable settings: better ones have to clear the noise, among equals the first found stays."""
        best = ONE
        for spread in self.runs:
            if spread.weak or spread == ONE or self.why_unusable(spread):
                continue
            comparison = self.compare(spread, best)
            if comparison is not None and comparison.ci_low > 1:
                best = spread
        return replace(self, stack=best.settings)

    # --- the record -----------------------------------------------------------------------------------------------

    def record(self) -> ScalingRecord:
        """All of it, as the session reports it."""
        best = self.row_of(Spread(self.stack))
        return ScalingRecord(
            gpus=self.gpus,
            device_type=self.device_type,
            backend=COLLECTIVES[self.device_type],
            carried=dict(self.carried),
            left_out=dict(self.left_out),
            rows=tuple(self.row_of(spread) for spread in self.runs),
            best=best.name if self.stack else "",
            settings=dict(self.stack),
            passed_over=dict(self.passed_over),
            confirmed=self.confirmed,
            evidence=self._evidence(best) if self.stack else "",
            machines=self.machines,
        )

    def row_of(self, spread: Spread) -> ScalingRow:
        """One row: what was found under these settings."""
        gpus = 1 if spread == ONE else self.gpus
        runs = self.measured(spread)
        if not runs:
            reason = self.runs[spread][-1].reason if spread in self.runs else "not tried"
            return ScalingRow(spread.name, dict(spread.settings), gpus, spread.weak, reason=reason)
        comparison, found = self.compare(spread), _closest_look(runs)
        return ScalingRow(
            spread.name,
            dict(spread.settings),
            gpus,
            spread.weak,
            reason=self.why_unusable(spread),
            global_batch=found.global_batch,
            batch_per_gpu=found.batch_per_rank,
            step_ms=median(block.step_ms for run in runs for block in run.blocks),
            samples_per_s=median(median(rates(run.blocks)) for run in runs),
            speedup=comparison.speedup if comparison else None,
            ci_low=comparison.ci_low if comparison else None,
            ci_high=comparison.ci_high if comparison else None,
            verdict=str(comparison.verdict) if comparison and spread != ONE else "",
            exposed_ms=found.exposed_ms,
            exposed_by=found.exposed_by,
            straggler_share=found.straggler_share,
            peak_reserved_bytes=tuple(one.peak_reserved_bytes or 0 for one in found.ranks),
            rank_ms=tuple(one.alone_ms for one in found.ranks if one.alone_ms is not None),
            loss_difference=self.loss_difference(spread) if spread != ONE else None,
            runs=len(runs),
        )

    def _evidence(self, best: ScalingRow) -> str:
        """A sentence on the bottleneck of the best settings; empty where nothing stands out."""
        share = best.exposed_share
        if share is None or share < BOUND_BY_COMMUNICATION:
            return ""
        how = "NCCL kernels run beside no other kernel" if best.exposed_by == "profiler" else "it is so much longer"
        than = "" if best.exposed_by == "profiler" else " than the same step without communication"
        return f"communication: for {100 * share:.0f} % of the step of {best.name} {how}{than}"


def _closest_look(runs: tuple[TrialResult, ...]) -> RanksFound:
    """The findings of the run that looked closest."""
    found = [run.ranks for run in runs if run.ranks is not None]
    return next((one for one in found if one.exposed_ms is not None), found[0])


def _changes(catalog: Catalog, key: str, value: Value) -> bool:
    recipe = catalog.by_key(key)
    return value != recipe.default and recipe.numerics_of(value, Mode.TRAIN) is Numerics.CHANGED
