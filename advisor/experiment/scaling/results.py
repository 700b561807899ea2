"""The knowledge about several GPUs: every run over ranks, beside the one-GPU stack at the same global batch. A value.

As ``known.py`` does for one GPU: each run makes a new value, and all that is said follows from the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from advisor.experiment.consent import Consent
from advisor.experiment.scaling_records import ScalingRecord, ScalingRow
from advisor.figures.formatting import format_percent
from advisor.figures.stats import REPORT, SELECTION, ProcessSpread, process_spread, ratio_interval
from advisor.judging.numerics import LOSSES, differences
from advisor.judging.runs import rates
from advisor.recipe.catalog import Catalog
from advisor.recipe.parallel_recipe import SINGLE, STRATEGY
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Comparison, Facts, Mode, Numerics, TrialResult, text_of

# Standard deviation between processes before any was repeated, as a share of the step: several ranks on one host.
_PRIOR = 0.015
# Largest difference of the first losses of the same training. Relative; the order of sums explains 1e-3 in
# float32 and 1e-2 in bfloat16.
_SAME_LOSSES = 0.03
# Exposed communication from which on a step is bound by it. Share of the step.
BOUND_BY_COMMUNICATION = 0.2


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings added to the one-GPU stack, with equal global batch or (``weak``) with the whole batch on each GPU."""

    settings: Settings = field(default_factory=Settings)
    weak: bool = False

    @property
    def strategy(self) -> str:
        """The kind of parallelism: ``ddp``, ``fully_shard`` or ``single``."""
        return str(self.settings.get(STRATEGY, SINGLE))

    @property
    def name(self) -> str:
        """The settings as a person reads them: ``ddp, bucket_cap_mb: 100``."""
        if not self.settings:
            return "one GPU"
        others = self.settings.without(STRATEGY).items()
        options = [f"{key.removeprefix('parallel.')}: {text_of(value)}" for key, value in others]
        weak = ["whole batch on each GPU"] if self.weak else []
        return ", ".join([self.strategy, *options, *weak])


ONE = Setup()


@dataclass(frozen=True)
class Scaling:
    """The knowledge of the search on several GPUs.

    ``carried`` is the one-GPU stack in every trial, ``left_out`` its settings that several ranks cannot have, with the
    reasons. ``candidates`` are the strategies and options to try, and ``facts`` those of the workload on several GPUs;
    without facts no gain is expected of any. ``in_turn`` are the settings that were timed in turn with one GPU.
    ``same_losses``: the first losses must equal those of one GPU, since no step depends on chance or on the samples
    beside one.
    """

    gpus: int
    catalog: Catalog
    consent: Consent
    facts: Facts | None = None
    candidates: tuple[Candidate, ...] = ()
    carried: Settings = field(default_factory=Settings)
    left_out: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[Setup, tuple[TrialResult, ...]] = field(default_factory=dict)
    in_turn: Settings = field(default_factory=Settings)
    passed_over: Mapping[str, str] = field(default_factory=dict)
    same_losses: bool = True
    device_type: str = "cpu"
    machines: int = 1

    # --- evidence -------------------------------------------------------------------------------------------------

    def with_run(self, setup: Setup, result: TrialResult) -> Scaling:
        """Return the knowledge with one more run."""
        return replace(self, runs={**self.runs, setup: (*self.runs.get(setup, ()), result)})

    def measured(self, setup: Setup) -> tuple[TrialResult, ...]:
        """Its runs that produced timings."""
        return tuple(run for run in self.runs.get(setup, ()) if run.measured)

    @cached_property
    def _process_spread(self) -> ProcessSpread:
        groups = [[median(rates(run.blocks)) for run in self.measured(setup)] for setup in self.runs]
        return process_spread([group for group in groups if group], prior=_PRIOR)

    def compare(self, new: Setup, old: Setup = ONE) -> Comparison | None:
        """Samples per second of one over another, with the interval; None unless both were measured."""
        ours, theirs = self.measured(new), self.measured(old)
        if not (ours and theirs):
            return None
        paired = bool(self.in_turn) and new == Setup(self.in_turn)
        new_rates, old_rates = ([rates(run.blocks) for run in runs] for runs in (ours, theirs))
        confidence = REPORT if paired else SELECTION
        interval = ratio_interval(new_rates, old_rates, self._process_spread, confidence=confidence)
        return Comparison(*interval, paired=paired)

    def loss_difference(self, setup: Setup) -> float | None:
        """The largest relative difference of the first losses from one GPU's; None where they cannot be compared."""
        ours, theirs = self.measured(setup), self.measured(ONE)
        if not (ours and theirs) or setup.weak:
            return None
        return max(differences(LOSSES, ours[0], theirs[0]), default=None)

    def why_unusable(self, setup: Setup) -> str:
        """The reason that settings may not be the stack; empty where they may."""
        if reason := self.consent.why_not(setup.settings):
            return reason
        difference = self.loss_difference(setup)
        recipes = ((self.catalog.by_key(key), value) for key, value in setup.settings.items())
        changed = [recipe.numerics_of(value, Mode.TRAIN) for recipe, value in recipes if value != recipe.default]
        if self.same_losses and Numerics.CHANGED not in changed and (difference or 0.0) > _SAME_LOSSES:
            return f"its first losses differ from one GPU's by {format_percent(difference)}"
        return ""

    @cached_property
    def stack(self) -> Settings:
        """The best usable settings at the same global batch; of equal ones within the noise, those found first."""
        best = ONE
        for setup in self.runs:
            if setup.weak or setup == ONE or self.why_unusable(setup):
                continue
            if (comparison := self.compare(setup, best)) and comparison.ci_low > 1:
                best = setup
        return best.settings

    @property
    def confirmed(self) -> bool:
        """Whether the stack was timed in turn with one GPU."""
        return bool(self.stack) and self.stack == self.in_turn

    # --- the record -----------------------------------------------------------------------------------------------

    def record(self) -> ScalingRecord:
        """All of it, as the session reports it."""
        best, evidence = self.row_of(Setup(self.stack)), ""
        share = best.exposed_share if self.stack else None
        if share is not None and share >= BOUND_BY_COMMUNICATION:
            evidence = f"communication: for {format_percent(share)} of the step of {best.name} only NCCL kernels run"
        return ScalingRecord(
            gpus=self.gpus,
            device_type=self.device_type,
            carried=dict(self.carried),
            left_out=dict(self.left_out),
            rows=tuple(self.row_of(setup) for setup in self.runs),
            best=best.name if self.stack else "",
            settings=dict(self.stack),
            passed_over=dict(self.passed_over),
            confirmed=self.confirmed,
            evidence=evidence,  # of the bottleneck of the best settings; empty where nothing stands out
            machines=self.machines,
        )

    def row_of(self, setup: Setup) -> ScalingRow:
        """One row: what was found under these settings."""
        row = ScalingRow(setup.name, dict(setup.settings), 1 if setup == ONE else self.gpus, setup.weak)
        runs = self.measured(setup)
        if not runs:
            return replace(row, reason=self.runs[setup][-1].reason if setup in self.runs else "not tried")
        comparison = self.compare(setup)
        found = runs[0].ranks
        assert found is not None, "it ran over ranks"
        return replace(
            row,
            reason=self.why_unusable(setup),
            global_batch=found.global_batch,
            batch_per_gpu=found.batch_per_rank,
            step_ms=median(block.step_ms for run in runs for block in run.blocks),
            samples_per_s=median(median(rates(run.blocks)) for run in runs),
            speedup=comparison.speedup if comparison else None,
            ci_low=comparison.ci_low if comparison else None,
            ci_high=comparison.ci_high if comparison else None,
            exposed_ms=found.exposed_ms,
            straggler_share=found.straggler_share,
            peak_reserved_bytes=found.peak_reserved_bytes,
            rank_ms=found.alone_ms,
            loss_difference=self.loss_difference(setup) if setup != ONE else None,
            runs=len(runs),
        )
