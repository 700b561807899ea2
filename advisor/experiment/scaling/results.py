"""The knowledge about several GPUs: every run over ranks, beside the one-GPU stack at the same global batch. A value.

As ``known.py`` does for one GPU: each run makes a new value, and all that is said follows from the runs. Settings are
those that a trial adds to the one-GPU stack; without any it is one GPU. With a batch size among them each GPU gets the
whole batch of one GPU (weak scaling), which is another training and never the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from advisor.experiment.consent import Consent
from advisor.experiment.known import Evidence, Move
from advisor.experiment.scaling_records import ScalingRecord, ScalingRow
from advisor.figures.formatting import format_percent
from advisor.judging.judge import BASELINE, Judge
from advisor.judging.numerics import LOSSES, differences
from advisor.judging.runs import rates
from advisor.recipe import SINGLE, STRATEGY
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Comparison, Facts, Mode, Numerics, Outcome, TrialResult, text_of

BATCH = "data.batch_size"
# Standard deviation between processes before any was repeated, as a share of the step: several ranks on one host.
PRIOR = 0.015
# Largest difference of the first losses of the same training. Relative; the order of sums explains 1e-3 in
# float32 and 1e-2 in bfloat16.
_SAME_LOSSES = 0.03
NOT_TRIED = TrialResult(Outcome.SKIPPED, "not tried")
# Exposed communication from which on a step is bound by it. Share of the step.
_BOUND_BY_COMMUNICATION = 0.2


def strategy_of(settings: Settings) -> str:
    """The kind of parallelism: ``ddp``, ``fully_shard`` or ``single``."""
    return str(settings.get(STRATEGY, SINGLE))


def name_of(settings: Settings) -> str:
    """The settings as a person reads them: ``ddp, bucket_cap_mb: 100``."""
    if not settings:
        return "one GPU"
    others = settings.without(STRATEGY).without(BATCH).items()
    options = [f"{key.removeprefix('parallel.')}: {text_of(value)}" for key, value in others]
    weak = ["whole batch on each GPU"] if BATCH in settings else []
    return ", ".join([strategy_of(settings), *options, *weak])


@dataclass(frozen=True)
class Scaling:
    """The knowledge of the search on several GPUs.

    ``judge`` holds the runs and compares them; its baseline is the first of one GPU. ``carried`` is the one-GPU stack
    in every trial, ``left_out`` its settings that several ranks cannot have, with the reasons. ``candidates`` are the
    strategies and options to try, and ``facts`` those of the workload on several GPUs. ``same_losses``: the first
    losses must equal those of one GPU, since no step depends on chance or on the samples beside one.
    """

    consent: Consent
    judge: Judge
    facts: Facts
    candidates: tuple[Candidate, ...] = ()
    carried: Settings = field(default_factory=Settings)
    left_out: Mapping[str, str] = field(default_factory=dict)
    passed_over: Mapping[str, str] = field(default_factory=dict)
    same_losses: bool = True
    machines: int = 1

    # --- evidence -------------------------------------------------------------------------------------------------

    def after(self, move: Move, evidence: Evidence | None) -> Scaling:
        """The knowledge after a move."""
        return replace(self, judge=evidence.added_to(self.judge, move.settings)) if evidence else self

    @property
    def tried(self) -> list[Settings]:
        """All settings that were tried, one GPU first, also those that failed."""
        return [BASELINE, *(settings for settings in self.judge.runs if settings)]

    def measured(self, settings: Settings) -> tuple[TrialResult, ...]:
        """Its runs that produced timings."""
        # Without one GPU there is nothing to compare with.
        return self.judge.measured_runs(settings) if self.judge.baseline.measured else ()

    def compare(self, new: Settings, old: Settings = BASELINE) -> Comparison | None:
        """Samples per second of one over another, with the interval; None unless both were measured."""
        return self.judge.compare(new, old) if self.measured(new) and self.measured(old) else None

    def loss_difference(self, settings: Settings) -> float | None:
        """The largest relative difference of the first losses from one GPU's; None where they cannot be compared."""
        ours, theirs = self.measured(settings), self.measured(BASELINE)
        if not (ours and theirs) or BATCH in settings:
            return None
        return max(differences(LOSSES, ours[0], theirs[0]), default=None)

    def why_unusable(self, settings: Settings) -> str:
        """The reason that settings may not be the stack; empty where they may."""
        if reason := self.consent.why_not(settings.without(BATCH)):
            return reason
        difference = self.loss_difference(settings)
        recipes = self.judge.catalog.in_order(settings)
        changed = [recipe.numerics_of(value, Mode.TRAIN) for recipe, value in recipes if value != recipe.default]
        if self.same_losses and Numerics.CHANGED not in changed and (difference or 0.0) > _SAME_LOSSES:
            return f"its first losses differ from one GPU's by {format_percent(difference)}"
        return ""

    @cached_property
    def stack(self) -> Settings:
        """The best usable settings at the same global batch; of equal ones within the noise, those found first."""
        best = BASELINE
        for settings in self.tried:
            if not settings or BATCH in settings or self.why_unusable(settings):
                continue
            if (comparison := self.compare(settings, best)) and comparison.ci_low > 1:
                best = settings
        return best

    @property
    def confirmed(self) -> bool:
        """Whether the stack was timed in turn with one GPU."""
        return bool(self.stack) and self.judge.took_turns(self.stack)

    # --- the record -----------------------------------------------------------------------------------------------

    def record(self) -> ScalingRecord:
        """All of it, as the session reports it."""
        best, evidence = self.row_of(self.stack), ""
        share = best.exposed_share if self.stack else None
        if share is not None and share >= _BOUND_BY_COMMUNICATION:
            evidence = f"communication: for {format_percent(share)} of the step of {best.name} only NCCL kernels run"
        return ScalingRecord(
            gpus=self.facts.gpus,
            device_type=self.facts.workload.device_type,
            carried=dict(self.carried),
            left_out=dict(self.left_out),
            rows=tuple(map(self.row_of, self.tried)),
            best=best.name if self.stack else "",
            settings=dict(self.stack),
            passed_over=dict(self.passed_over),
            confirmed=self.confirmed,
            evidence=evidence,  # of the bottleneck of the best settings; empty where nothing stands out
            machines=self.machines,
        )

    def row_of(self, settings: Settings) -> ScalingRow:
        """One row: what was found under these settings."""
        row = ScalingRow(name_of(settings), dict(settings), self.facts.gpus if settings else 1, BATCH in settings)
        if not (runs := self.measured(settings)):
            failed = self.judge.runs.get(settings, (NOT_TRIED,)) if settings else (self.judge.baseline,)
            return replace(row, reason=failed[-1].reason)
        found, comparison = runs[0].ranks, self.judge.compare(settings)
        assert found is not None, "it ran over ranks"
        return replace(
            row,
            reason=self.why_unusable(settings),
            global_batch=found.global_batch,
            batch_per_gpu=found.batch_per_rank,
            step_ms=median(block.step_ms for run in runs for block in run.blocks),
            samples_per_s=median(median(rates(run.blocks)) for run in runs),
            speedup=comparison.speedup,
            ci_low=comparison.ci_low,
            ci_high=comparison.ci_high,
            exposed_ms=found.exposed_ms,
            straggler_share=found.straggler_share,
            peak_reserved_bytes=found.peak_reserved_bytes,
            rank_ms=found.alone_ms,
            loss_difference=self.loss_difference(settings) if settings else None,
            runs=len(runs),
        )
