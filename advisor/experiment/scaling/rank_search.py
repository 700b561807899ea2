"""Several GPUs in a session: the one-GPU stack, then strategies and options with several ranks.

The loop of ``search.py`` with moves of its own: strategies, then options of the best, then the whole batch on each GPU.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import median

from advisor.experiment import events, policy
from advisor.experiment.consent import Consent
from advisor.experiment.known import Evidence, Kind, Move
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.turns import in_turn
from advisor.experiment.scaling.results import BATCH, NOT_TRIED, PRIOR, Scaling, name_of, strategy_of
from advisor.experiment.search import Trials, search
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.judging.judge import BASELINE, Judge
from advisor.recipe import MODES_WITH_GRAPHS, NOT_COMPILED, PARALLEL, SINGLE, STRATEGY, why_not_sharded
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Facts, Mode, TrialResult, Value, World
from advisor.records.trials import UNUSED_PARAMETERS

# torchrun imports PyTorch in each rank, which a trial of one GPU is spared. Seconds, before one was timed.
_START_S = 8.0
_NO_TIME = "no time was left: raise --budget"
# A trial that takes this many times as long as others, and this long at least, hangs. Unitless; seconds.
_HANGS_AFTER, _HANGS_AFTER_S = 4.0, 60.0
# Several machines meet within this, twice: torchrun's agents, then the ranks. Seconds.
_MEETING_S = 120.0
# Runs of settings that seem better than the stack, until they are or are not. A count.
_MOST_RUNS = 3
# Trials of turns. A count.
_IN_TURN = 4
_GRAPH, _UNUSED = "step.cuda_graph", "parallel.find_unused_parameters"


def carried_over(catalog: Catalog, stack: Mapping[str, Value]) -> tuple[Settings, dict[str, str]]:
    """The one-GPU stack as several ranks can have it, and why the rest is left out."""
    carried, left_out = Settings(stack), dict[str, str]()
    mode = str(carried.get("compile.mode", "none"))
    if mode in MODES_WITH_GRAPHS:
        carried = carried.with_value("compile.mode", MODES_WITH_GRAPHS[mode])
        left_out["compile.mode"] = f"the CUDA graphs of {mode} cannot hold the exchange of gradients"
    if carried.get("compile.scope") == "with_loss":
        carried = carried.without("compile.scope").merged({"compile.mode": carried.get("compile.mode", "default")})
        left_out["compile.scope"] = "the wrapper of the model is between the model and the loss"
    ddp = {STRATEGY: "ddp"}
    for key in stack:
        if catalog.conflict(carried.merged(ddp)) and not catalog.conflict(carried.without(key).merged(ddp)):
            left_out[key] = str(catalog.conflict(carried.merged(ddp)))
            carried = carried.without(key)
    return carried, left_out


def knowledge_before(
    bench: Bench, one_gpu: Settings, facts: Facts, gpus: int, consent: Consent, *, random: bool
) -> Scaling:
    """The knowledge before the first trial: the settings carried over from one GPU, and the candidates.

    ``random``: the steps draw random numbers.
    """
    catalog, request = bench.catalog, bench.request
    carried, left_out = carried_over(catalog, one_gpu)
    current = {**facts.workload.current, **carried}
    facts = replace(facts, gpus=gpus, workload=replace(facts.workload, current=current))
    proposals = catalog.propose(facts, only=request.only, skip=request.skip)
    parallel = [recipe.id for recipe in catalog if recipe.key.startswith(PARALLEL) or recipe.over_ranks]
    asked_for = [recipe for recipe in parallel if not request.only or recipe in request.only]
    passed_over = {catalog[one].key: why for one, why in proposals.skipped.items() if one in asked_for}
    if reason := why_not_sharded(facts):
        passed_over["fully_shard"] = reason
    return Scaling(
        consent=consent,
        judge=Judge(catalog, Mode.TRAIN, NOT_TRIED, prior=PRIOR),
        facts=facts,
        candidates=tuple(one for one in proposals.candidates if one.recipe in parallel),
        carried=carried,
        left_out=left_out,
        passed_over=passed_over,
        # With batch norms or padding the losses depend on the other samples, which are fewer on each rank.
        same_losses=not (random or facts.computes("batch_norm", "dropout") or facts.workload.varying_shapes),
        machines=request.machines,
    )


# --- the moves ------------------------------------------------------------------------------------------------


def moves(known: Scaling) -> list[Move]:
    """All that could be measured next; empty if one GPU failed."""
    if not known.measured(BASELINE):
        return []
    return [move for kind in (_strategies, _options, _again, _of_the_leading) for move in kind(known)]


def _move(gain: float, settings: Settings, kind: Kind = Kind.ADD) -> Move:
    return Move(kind, settings, gain, name_of(settings))


def leading(known: Scaling) -> Settings:
    """The fastest usable settings over several GPUs, even if one GPU is as fast; empty before any has run."""
    if known.stack:
        return known.stack
    compared = {one: known.compare(one) for one in known.tried if one and BATCH not in one}
    rates = {one: ratio.speedup for one, ratio in compared.items() if ratio and not known.why_unusable(one)}
    return max(rates, key=lambda one: rates[one], default=BASELINE)


def _strategies(known: Scaling) -> Iterator[Move]:
    """Moves that measure each strategy. One that failed is tried again in a changed form."""
    for candidate in known.candidates:
        if candidate.key != STRATEGY or known.consent.rejects(candidate.recipe):
            continue
        settings = _fitting(known, Settings(candidate.settings))
        while settings in known.tried and not known.measured(settings):
            settings = _mended(known, settings)
        if settings not in known.tried:
            yield _move(_expected(known, candidate, BASELINE), settings)


def _mended(known: Scaling, failed: Settings) -> Settings:
    """A failed strategy, changed according to the reason: find unused parameters, no graph, then no compiling.

    Empty where nothing is left to change.
    """
    if UNUSED_PARAMETERS in known.row_of(failed).reason and _UNUSED not in failed:
        return _fitting(known, failed.with_value(_UNUSED, True))
    if known.carried.merged(failed).get(_GRAPH):
        return failed.with_value(_GRAPH, False)
    plain = _not_compiled(known, failed)
    return plain if plain != failed else BASELINE


def _fitting(known: Scaling, settings: Settings) -> Settings:
    """A strategy's settings. Settings of the carried stack that do not work with it are switched off."""
    for key in known.carried:
        reason = known.judge.catalog.conflict(known.carried.merged(settings))
        if not reason:
            break
        off = settings.with_value(key, known.judge.catalog.by_key(key).default)
        if known.judge.catalog.conflict(known.carried.merged(off)) != reason:
            settings = off
    return settings


def _not_compiled(known: Scaling, settings: Settings) -> Settings:
    """The same without compiling what the carried stack compiles."""
    off = {key: value for key, value in NOT_COMPILED.items() if known.carried.get(key, value) != value}
    return settings.merged(off)


def _options(known: Scaling) -> Iterator[Move]:
    """Moves that add one option to the leading settings; opt-in ones are measured for their price."""
    lead = leading(known)
    # Measured under this strategy, on whatever else the stack held then.
    tried = {item for one in known.tried if strategy_of(one) == strategy_of(lead) for item in one.items()}
    for candidate in known.candidates:
        settings = lead.merged(candidate.settings)
        fits = lead and candidate.key not in lead and not known.judge.catalog.conflict(known.carried.merged(settings))
        if fits and (candidate.key, candidate.value) not in tried and not known.consent.rejects(candidate.recipe):
            yield _move(_expected(known, candidate, lead), settings)


def _expected(known: Scaling, candidate: Candidate, beside: Settings) -> float:
    """The expected gain of a candidate; at least the value of one more figure in the report."""
    joined = known.carried.merged(beside)
    gain = known.judge.catalog.expected_gain(candidate.recipe, known.facts, candidate.value, joined)
    return max(gain, policy.INFORMATION)


def _again(known: Scaling) -> Iterator[Move]:
    """Run settings again that seem better than the stack while the interval leaves it open."""
    for settings in known.tried:
        comparison = known.compare(settings, known.stack)
        if comparison is None or settings in (BASELINE, known.stack) or BATCH in settings:
            continue
        is_open = comparison.ci_low <= 1 and len(known.measured(settings)) < _MOST_RUNS
        if is_open and comparison.speedup > policy.LEAST_GAIN and not known.why_unusable(settings):
            yield _move(min(comparison.speedup, policy.SMALL_GAIN), settings)


def _of_the_leading(known: Scaling) -> Iterator[Move]:
    """The leading settings without compiling, with the whole batch on each GPU, and in turn with one GPU.

    Compiling may hide the gradients' way worse than it computes faster. The whole batch on each GPU is how many people
    use several; it is not comparable with the same global batch. The turns are for the figure that is reported.
    """
    lead = leading(known)
    if not lead:
        return
    plain = _not_compiled(known, lead)
    if plain not in known.tried and not known.carried.merged(lead).get(_GRAPH):
        yield _move(policy.NOT_COMPILED, plain)
    weak = any(BATCH in one and strategy_of(one) == strategy_of(lead) for one in known.tried)
    if not weak and known.judge.catalog.propose(known.facts, only=(BATCH_SIZE,)).candidates:
        own = known.carried.get(BATCH) or known.facts.workload.batch_size
        yield _move(policy.PROOF, lead.with_value(BATCH, int(own or 1) * known.facts.gpus))
    if known.stack and not known.confirmed:
        yield _move(policy.PROOF, known.stack, Kind.TURNS)


# --- the loop -------------------------------------------------------------------------------------------------


class RankSearch(Trials[Scaling]):
    """Implements ``search.Trials`` with trials over ranks, which torchrun starts.

    ``known`` is what is known before; ``one_gpu`` the stack as one GPU has it, whole. ``consented`` adds the decisions
    that were taken meanwhile.
    """

    def __init__(
        self, bench: Bench, known: Scaling, one_gpu: Settings, consented: Callable[[Consent], Consent]
    ) -> None:
        self.bench = bench
        self._before = known
        self._one_gpu = one_gpu
        self._consented = consented
        self._walls: list[float] = []

    def run(self) -> Scaling:
        """Search, and return what is known at the end. Raises SessionCancelledError when the person ends the session.

        One GPU runs first, on torchrun as all others: without it there is nothing to compare with.
        """
        judge = replace(self._before.judge, baseline=self._run(BASELINE))
        known = search(self.publish(replace(self._before, judge=judge)), self, moves)
        if untried := {move.name: _NO_TIME for move in moves(known) if move.settings not in known.tried}:
            record = replace(known, passed_over={**known.passed_over, **untried}).record()
            self.bench.emit(events.ScalingMeasured(record))
        return known

    def measure(self, move: Move, known: Scaling) -> Evidence:
        """Run the trial of a move, or as many of its turns as there is time for."""
        if move.kind is not Kind.TURNS:
            return Evidence(runs=((move.settings, self._run(move.settings)),))
        return in_turn(known.judge, move.settings, self._run, lambda *each: self._has_time(len(each)))

    def publish(self, known: Scaling) -> Scaling:
        """Post the record, and return the knowledge with the person's decisions."""
        self.bench.emit(events.ScalingMeasured(known.record()))
        self.bench.post_progress(sum(self.cost_s(move, known) for move in moves(known)))
        return replace(known, consent=self._consented(known.consent))

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
        if strategy_of(settings) != SINGLE:
            world = World(before.facts.gpus // request.machines, options=request.launch, machines=request.machines)
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
