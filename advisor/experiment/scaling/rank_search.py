"""Several GPUs in a session: the one-GPU stack, then strategies and options with several ranks.

Runs the loop of ``search.py`` with its own knowledge, moves and trials: strategies, then options of the best strategy,
then the whole batch on each GPU. Settings are the ones that a trial adds to the one-GPU stack; empty settings run on
one GPU. Settings with a batch size give each GPU the whole batch of one GPU (weak scaling). That is another training
and never becomes the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from advisor.experiment import events, policy
from advisor.experiment.consent import Consent
from advisor.experiment.known import Evidence, Kind, Known, Move
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.turns import in_turn
from advisor.experiment.plan import Plan
from advisor.experiment.scaling_records import ScalingRecord, ScalingRow
from advisor.experiment.search import Trials, search
from advisor.experiment.stacks import GRAPH
from advisor.figures.formatting import format_percent
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.judging.judge import BASELINE, Judge
from advisor.judging.numerics import LOSSES, differences
from advisor.judging.runs import rates
from advisor.recipe import MODES_WITH_GRAPHS, NOT_COMPILED, PARALLEL, SINGLE, STRATEGY, why_not_sharded
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Mode, Numerics, Outcome, TrialResult, Value, World, text_of
from advisor.records.trials import UNUSED_PARAMETERS

BATCH, _UNUSED = "data.batch_size", "parallel.find_unused_parameters"
NOT_TRIED = TrialResult(Outcome.SKIPPED, "not tried")
# Assumed standard deviation between processes before any repeat, as a share of the step: several ranks on one host.
PRIOR = 0.015
# Largest difference of the first losses of the same training. Relative; the order of summation explains 1e-3 in float32
# and 1e-2 in bfloat16.
_SAME_LOSSES = 0.03
# A step with at least this share of exposed communication is bound by it.
_BOUND_BY_COMMUNICATION = 0.2
# Extra start-up of a trial, before one was timed: torchrun imports PyTorch in each rank. Seconds.
_START_S = 8.0
_NO_TIME = "no time was left: raise --budget"
# A trial hangs if it takes this multiple of other trials' time and at least this long. Unitless; seconds.
_HANGS_AFTER, _HANGS_AFTER_S = 4.0, 60.0
# Several machines meet within this time, twice: torchrun's agents, then the ranks. Seconds.
_MEETING_S = 120.0
# Largest number of runs of settings that seem better than the stack but are not decided. A count.
_MOST_RUNS = 3
# Number of trials of turns. A count.
_IN_TURN = 4


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
    """The knowledge of the search on several GPUs."""

    plan: Plan  # with the facts on several GPUs, and their strategies and options
    judge: Judge  # its baseline is the first run on one GPU
    carried: Settings = field(default_factory=Settings)  # the one-GPU stack that every trial has
    left_out: Mapping[str, str] = field(default_factory=dict)  # of the stack: not for several ranks, and why
    passed_over: Mapping[str, str] = field(default_factory=dict)
    same_losses: bool = True  # whether losses must equal one GPU's: they depend on no chance and no other samples

    # --- evidence -------------------------------------------------------------------------------------------------

    def after(self, move: Move, evidence: Evidence | None) -> Scaling:
        """The knowledge after a move."""
        return replace(self, judge=evidence.added_to(self.judge, move.settings)) if evidence else self

    @property
    def tried(self) -> list[Settings]:
        """All settings that were tried, one GPU first, including those that failed."""
        return [BASELINE, *(settings for settings in self.judge.runs if settings)]

    def measured(self, settings: Settings) -> tuple[TrialResult, ...]:
        """The runs that produced timings; empty if one GPU has none, since nothing can be compared then."""
        return self.judge.measured_runs(settings) if self.judge.baseline.measured else ()

    def loss_difference(self, settings: Settings) -> float | None:
        """The largest relative difference of the first losses from one GPU's; None if they cannot be compared."""
        ours, theirs = self.measured(settings), self.measured(BASELINE)
        if not (ours and theirs) or BATCH in settings:
            return None
        return max(differences(LOSSES, ours[0], theirs[0]), default=None)

    def why_unusable(self, settings: Settings) -> str:
        """The reason that settings may not be the stack; empty if they may."""
        if reason := self.plan.consent.why_not(settings.without(BATCH)):
            return reason
        difference = self.loss_difference(settings)
        recipes = self.judge.catalog.in_order(settings)
        changed = [recipe.numerics_of(value, Mode.TRAIN) for recipe, value in recipes if value != recipe.default]
        if self.same_losses and Numerics.CHANGED not in changed and (difference or 0.0) > _SAME_LOSSES:
            return f"its first losses differ from one GPU's by {format_percent(difference)}"
        return ""

    @cached_property
    def usable(self) -> list[Settings]:
        """The measured settings that may be the stack, all at the same global batch."""
        several = (settings for settings in self.tried if settings and BATCH not in settings)
        return [settings for settings in several if self.measured(settings) and not self.why_unusable(settings)]

    @cached_property
    def stack(self) -> Settings:
        """The best usable settings; if several are equal within the noise, the one found first."""
        best = BASELINE
        for settings in self.usable:
            if self.judge.compare(settings, best).ci_low > 1:
                best = settings
        return best

    @property
    def leading(self) -> Settings:
        """The fastest usable settings over several GPUs, even if one GPU is as fast; empty before any has run."""
        return self.stack or max(self.usable, key=lambda one: self.judge.compare(one).speedup, default=BASELINE)

    @property
    def confirmed(self) -> bool:
        """Whether the stack was timed in turn with one GPU."""
        return bool(self.stack) and self.judge.took_turns(self.stack)

    # --- the record -----------------------------------------------------------------------------------------------

    def record(self) -> ScalingRecord:
        """The whole record, as the session reports it."""
        best, evidence = self.row_of(self.stack), ""
        share = best.exposed_share if self.stack else None
        if share is not None and share >= _BOUND_BY_COMMUNICATION:
            evidence = f"communication: for {format_percent(share)} of the step of {best.name} only NCCL kernels run"
        return ScalingRecord(
            gpus=self.plan.facts.gpus,
            device_type=self.plan.facts.workload.device_type,
            carried=dict(self.carried),
            left_out=dict(self.left_out),
            rows=tuple(map(self.row_of, self.tried)),
            best=best.name if self.stack else "",
            settings=dict(self.stack),
            passed_over=dict(self.passed_over),
            confirmed=self.confirmed,
            evidence=evidence,  # about the bottleneck of the best settings; empty if none stands out
            machines=self.plan.request.machines,
        )

    def row_of(self, settings: Settings) -> ScalingRow:
        """One row: the results of these settings."""
        gpus = self.plan.facts.gpus if settings else 1
        row = ScalingRow(name_of(settings), dict(settings), gpus, BATCH in settings)
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


# --- the start ------------------------------------------------------------------------------------------------


def carried_over(catalog: Catalog, stack: Mapping[str, Value]) -> tuple[Settings, dict[str, str]]:
    """Return the settings of the one-GPU stack that several ranks can use, and why the others are left out."""
    carried, left_out = Settings(stack), dict[str, str]()
    mode = str(carried.get("compile.mode", "none"))
    if mode in MODES_WITH_GRAPHS:
        carried = carried.with_value("compile.mode", MODES_WITH_GRAPHS[mode])
        left_out["compile.mode"] = f"the CUDA graphs of {mode} cannot hold the exchange of gradients"
    if carried.get("compile.scope") == "with_loss":
        carried = carried.without("compile.scope").merged({"compile.mode": carried.get("compile.mode", "default")})
        left_out["compile.scope"] = "the model's wrapper separates the model from the loss"
    ddp = {STRATEGY: "ddp"}
    for key in stack:
        if catalog.conflict(carried.merged(ddp)) and not catalog.conflict(carried.without(key).merged(ddp)):
            left_out[key] = str(catalog.conflict(carried.merged(ddp)))
            carried = carried.without(key)
    return carried, left_out


def knowledge_before(known: Known, gpus: int) -> Scaling:
    """The knowledge before the first trial: the settings carried over from one GPU, and the candidates."""
    plan, facts = known.plan, known.plan.facts
    catalog, only = plan.catalog, plan.request.only
    carried, left_out = carried_over(catalog, known.found)
    current = {**facts.workload.current, **carried}
    facts = replace(facts, gpus=gpus, workload=replace(facts.workload, current=current))
    proposals = catalog.propose(facts, only=only, skip=plan.request.skip)
    parallel = [recipe.id for recipe in catalog if recipe.key.startswith(PARALLEL) or recipe.over_ranks]
    asked_for = [recipe for recipe in parallel if not only or recipe in only]
    passed_over = {catalog[one].key: why for one, why in proposals.skipped.items() if one in asked_for}
    if reason := why_not_sharded(facts):
        passed_over["fully_shard"] = reason
    candidates = tuple(one for one in proposals.candidates if one.recipe in parallel)
    # With batch norms or padding, losses depend on the other samples of a rank, and a rank has fewer samples.
    varies = facts.computes("batch_norm", "dropout") or facts.workload.varying_shapes
    return Scaling(
        # Scores are taken on one GPU.
        replace(plan, facts=facts, candidates=candidates, consent=replace(plan.consent, by_score=False)),
        Judge(catalog, Mode.TRAIN, NOT_TRIED, prior=PRIOR),
        carried,
        left_out,
        passed_over,
        same_losses=not (known.judge.spread.random or varies),
    )


# --- the moves ------------------------------------------------------------------------------------------------


def moves(known: Scaling) -> list[Move]:
    """All that could be measured next; empty if one GPU failed."""
    if not known.measured(BASELINE):
        return []
    return [move for kind in (_strategies, _options, _again, _of_the_leading) for move in kind(known)]


def _move(gain: float, settings: Settings, kind: Kind = Kind.ADD) -> Move:
    return Move(kind, settings, gain, name_of(settings))


def _strategies(known: Scaling) -> Iterator[Move]:
    """Moves that measure each strategy. A failed strategy is tried again in a changed form."""
    for candidate in known.plan.candidates:
        if candidate.key != STRATEGY or known.plan.consent.rejects(candidate.recipe):
            continue
        settings = _fitting(known, Settings(candidate.settings))
        while settings in known.tried and not known.measured(settings):
            settings = _mended(known, settings)
        if settings not in known.tried:
            yield _move(_expected(known, candidate, BASELINE), settings)


def _mended(known: Scaling, failed: Settings) -> Settings:
    """A failed strategy, changed by the reason: unused parameters, no graph, not compiled. Empty if nothing is left."""
    if UNUSED_PARAMETERS in known.row_of(failed).reason and _UNUSED not in failed:
        return _fitting(known, failed.with_value(_UNUSED, True))
    if known.carried.merged(failed).get(GRAPH):
        return failed.with_value(GRAPH, False)
    plain = _not_compiled(known, failed)
    return plain if plain != failed else BASELINE


def _fitting(known: Scaling, settings: Settings) -> Settings:
    """A strategy's settings, with carried settings that do not work with it switched off."""
    for key in known.carried:
        reason = known.plan.catalog.conflict(known.carried.merged(settings))
        if not reason:
            break
        off = settings.with_value(key, known.plan.catalog.by_key(key).default)
        if known.plan.catalog.conflict(known.carried.merged(off)) != reason:
            settings = off
    return settings


def _not_compiled(known: Scaling, settings: Settings) -> Settings:
    """The same settings, without compiling what the carried stack compiles."""
    off = {key: value for key, value in NOT_COMPILED.items() if known.carried.get(key, value) != value}
    return settings.merged(off)


def _options(known: Scaling) -> Iterator[Move]:
    """Moves that add one option to the leading settings. Opt-in options are measured to show their effect."""
    lead = known.leading
    # Already measured under this strategy, whatever other settings the stack had.
    tried = {item for one in known.tried if strategy_of(one) == strategy_of(lead) for item in one.items()}
    for candidate in known.plan.candidates:
        settings = lead.merged(candidate.settings)
        fits = lead and candidate.key not in lead and not known.plan.catalog.conflict(known.carried.merged(settings))
        if fits and (candidate.key, candidate.value) not in tried and not known.plan.consent.rejects(candidate.recipe):
            yield _move(_expected(known, candidate, lead), settings)


def _expected(known: Scaling, candidate: Candidate, beside: Settings) -> float:
    """The expected gain of a candidate; at least the value of one more figure in the report."""
    joined = known.carried.merged(beside)
    gain = known.plan.catalog.expected_gain(candidate.recipe, known.plan.facts, candidate.value, joined)
    return max(gain, policy.INFORMATION)


def _again(known: Scaling) -> Iterator[Move]:
    """Repeat settings that seem better than the stack while the interval leaves it open."""
    for settings in known.usable:
        comparison = known.judge.compare(settings, known.stack)
        is_open = comparison.ci_low <= 1 and len(known.measured(settings)) < _MOST_RUNS
        if settings != known.stack and is_open and comparison.speedup > policy.LEAST_GAIN:
            yield _move(min(comparison.speedup, policy.SMALL_GAIN), settings)


def _of_the_leading(known: Scaling) -> Iterator[Move]:
    """The leading settings without compiling, with the whole batch on each GPU, and in turn with one GPU.

    Compiling may lose more by hiding less communication than it gains in computing. Many people use the whole batch on
    each GPU, but it is not comparable with the same global batch. The turns give the reported figure.
    """
    lead = known.leading
    if not lead:
        return
    plain = _not_compiled(known, lead)
    if plain not in known.tried and not known.carried.merged(lead).get(GRAPH):
        yield _move(policy.NOT_COMPILED, plain)
    weak = any(BATCH in one and strategy_of(one) == strategy_of(lead) for one in known.tried)
    if not weak and known.plan.catalog.propose(known.plan.facts, only=(BATCH_SIZE,)).candidates:
        own = known.carried.get(BATCH) or known.plan.facts.workload.batch_size
        yield _move(policy.PROOF, lead.with_value(BATCH, int(own or 1) * known.plan.facts.gpus))
    if known.stack and not known.confirmed:
        yield _move(policy.PROOF, known.stack, Kind.TURNS)


# --- the loop -------------------------------------------------------------------------------------------------


class RankSearch(Trials[Scaling]):
    """Implements ``search.Trials`` over ranks, from ``known``; ``one_gpu`` is the whole stack of one GPU."""

    def __init__(
        self, bench: Bench, known: Scaling, one_gpu: Settings, consented: Callable[[Consent], Consent]
    ) -> None:
        self.bench = bench
        self._before = known
        self._one_gpu = one_gpu
        self._consented = consented
        self._walls: list[float] = []

    def run(self) -> Scaling:
        """Search after a run on one GPU, which uses torchrun like all others. Raises SessionCancelledError."""
        judge = replace(self._before.judge, baseline=self._run(BASELINE))
        known = search(self.publish(replace(self._before, judge=judge)), self, moves)
        if untried := {move.name: _NO_TIME for move in moves(known) if move.settings not in known.tried}:
            record = replace(known, passed_over={**known.passed_over, **untried}).record()
            self.bench.emit(events.ScalingMeasured(record))
        return known

    def measure(self, move: Move, known: Scaling) -> Evidence:
        """Run the trial of a move. For a move of turns, alternate runs with the baseline while there is time."""
        if move.kind is not Kind.TURNS:
            return Evidence(runs=((move.settings, self._run(move.settings)),))
        return in_turn(known.judge, move.settings, self._run, lambda *each: self._has_time(len(each)))

    def publish(self, known: Scaling) -> Scaling:
        """Post the record, and return the knowledge with the person's decisions."""
        self.bench.emit(events.ScalingMeasured(known.record()))
        self.bench.post_progress(sum(self.cost_s(move, known) for move in moves(known)))
        return replace(known, plan=replace(known.plan, consent=self._consented(known.plan.consent)))

    def cost_s(self, move: Move, known: Scaling) -> float:
        """The seconds that a move is expected to take."""
        return (_IN_TURN if move.kind is Kind.TURNS else 1) * self._once_s

    def affords(self, move: Move, known: Scaling) -> bool:
        """Whether there is time for a move and, while the stack is not confirmed, for half of its turns."""
        if self.bench.ending:
            return False
        is_last = move.kind is Kind.TURNS or known.confirmed or not known.stack
        return self._has_time(2 if move.kind is Kind.TURNS else 1 if is_last else 3)

    def _run(self, settings: Settings, pair: int = 0) -> TrialResult:
        request, before = self.bench.request, self._before
        stack = before.carried if settings else self._one_gpu
        spec = self.bench.spec(before.row_of(settings).trial, stack.merged(settings))
        limit_s = max(_HANGS_AFTER_S, _HANGS_AFTER * self._once_s) + (_MEETING_S if request.machines > 1 else 0.0)
        world = World(1)
        if settings:
            ranks = before.plan.facts.gpus // request.machines
            world = World(ranks, options=request.launch, machines=request.machines)
        result = self.bench.run(replace(spec, world=world, timeout_s=min(spec.timeout_s, limit_s)))
        if result.wall_s is not None and result.measured:
            self._walls.append(result.wall_s)
        return result

    @property
    def _once_s(self) -> float:
        """The seconds that one trial is expected to take."""
        return median(self._walls) if self._walls else self.bench.expected_s(self._before.carried) + _START_S

    def _has_time(self, trials: int) -> bool:
        """Whether the budget has time for this number of trials."""
        return self.bench.budget.allows(trials * self._once_s)
