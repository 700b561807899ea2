"""Several GPUs in a session: the one-GPU stack carried over, and trials over ranks measured for the search."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

from advisor.experiment import events
from advisor.experiment.consent import Consent
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.scaling.rank_moves import moves
from advisor.experiment.scaling.results import ONE, Move, Scaling, Setup
from advisor.recipe import MODES_WITH_GRAPHS
from advisor.recipe.catalog import Catalog
from advisor.recipe.parallel_recipe import PARALLEL, STRATEGY, why_not_sharded
from advisor.recipe.settings import Settings
from advisor.records import Facts, TrialResult, Value

# torchrun imports PyTorch in each rank, which a trial of one GPU is spared. Seconds, before one was timed.
_START_S = 8.0
_TURNS = (True, False, False, True)
_NO_TIME = "no time was left: raise --budget"
# A trial that takes this many times as long as others, and this long at least, hangs. Unitless; seconds.
_HANGS_AFTER, _HANGS_AFTER_S = 4.0, 60.0
# Several machines meet within this, twice: torchrun's agents, then the ranks. Seconds.
_MEETING_S = 120.0


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


def losses_compare(facts: Facts) -> bool:
    """Whether ranks with parts of a batch have the losses of one GPU with all of it.

    Batch norms and padding depend on the samples beside one, dropout on chance.
    """
    return not (facts.computes("batch_norm", "dropout") or facts.workload.varying_shapes)


class RankTrials:
    """Implements ``search.Trials`` with trials over ranks. ``one_gpu`` is the stack as one GPU has it, whole."""

    def __init__(self, bench: Bench, one_gpu: Settings, consented: Callable[[Consent], Consent]) -> None:
        self.bench = bench
        self._one_gpu = one_gpu
        self._consented = consented
        self._walls: list[float] = []

    def begin(self, facts: Facts, gpus: int, consent: Consent, *, same_losses: bool) -> Scaling:
        """Return the knowledge before the first strategy: one GPU under its stack, on torchrun as all others."""
        catalog, request = self.bench.catalog, self.bench.request
        carried, left_out = carried_over(catalog, self._one_gpu)
        current = {**facts.workload.current, **carried}
        facts = replace(facts, gpus=gpus, workload=replace(facts.workload, current=current))
        proposals = catalog.propose(facts, only=request.only, skip=request.skip)
        parallel = [recipe.id for recipe in catalog if recipe.key.startswith(PARALLEL) or recipe.over_ranks]
        asked_for = [recipe for recipe in parallel if not request.only or recipe in request.only]
        passed_over = {catalog[one].key: why for one, why in proposals.skipped.items() if one in asked_for}
        if reason := why_not_sharded(facts):
            passed_over["fully_shard"] = reason
        known = Scaling(
            gpus=gpus,
            catalog=catalog,
            consent=consent,
            facts=facts,
            candidates=tuple(one for one in proposals.candidates if one.recipe in parallel),
            carried=carried,
            left_out=left_out,
            passed_over=passed_over,
            same_losses=same_losses,
            device_type=facts.workload.device_type,
            machines=request.machines,
        )
        return known.with_run(ONE, self._trial(known, ONE))

    def cost_s(self, move: Move, known: Scaling) -> float:
        """The seconds that a move is expected to take."""
        return self._once_s(known) * (len(_TURNS) if move.in_turn else 1)

    def _once_s(self, known: Scaling) -> float:
        """The seconds that one trial is expected to take."""
        return median(self._walls) if self._walls else self.bench.expected_s(known.carried) + _START_S

    def comes_first(self, move: Move) -> bool:
        """No move comes before all others: what is expected of strategies is the most."""
        return False

    def affords(self, move: Move, known: Scaling) -> bool:
        """Whether the budget has time for a move and for the turns that confirm the stack afterwards.

        No time is kept for turns without a stack, and once it is confirmed.
        """
        if self.bench.steering.ending:
            return False
        half_the_turns_s = self._once_s(known) * len(_TURNS) / 2
        if move.in_turn:
            return self.bench.budget.allows(half_the_turns_s)
        reserve_s = half_the_turns_s if known.stack and not known.confirmed else 0.0
        return self.bench.budget.allows(self.cost_s(move, known), reserve_s=reserve_s)

    def measure(self, move: Move, known: Scaling) -> tuple[tuple[Setup, TrialResult], ...]:
        """Run the trials of a move. Raises SessionCancelledError when the person ends the session meanwhile."""
        if not move.in_turn:
            return ((move.setup, self._trial(known, move.setup)),)
        evidence: list[tuple[Setup, TrialResult]] = []
        for place, ours in enumerate(_TURNS):
            setup = move.setup if ours else ONE
            evidence.append((setup, self._trial(known, setup)))
            if place % 2 and not self.bench.budget.allows(2 * median(self._walls)):
                break
        return tuple(evidence)

    def _trial(self, known: Scaling, setup: Setup) -> TrialResult:
        request, stack = self.bench.request, self._one_gpu if setup == ONE else known.carried
        spec = self.bench.spec(known.row_of(setup).trial, stack.merged(setup.settings))
        limit_s = max(_HANGS_AFTER_S, _HANGS_AFTER * self._once_s(known))
        limit_s += _MEETING_S if request.machines > 1 else 0.0
        world = setup.world(known.gpus, request.launch, request.machines)
        result = self.bench.run(replace(spec, world=world, timeout_s=min(spec.timeout_s, limit_s)))
        if result.wall_s is not None and result.measured:
            self._walls.append(result.wall_s)
        return result

    def publish(self, known: Scaling) -> Scaling:
        """Post the events for new knowledge, and return it with the decisions that were taken meanwhile."""
        self.bench.emit(events.ScalingMeasured(known.record()))
        self.bench.post_progress(sum(self.cost_s(move, known) for move in moves(known)))
        return replace(known, consent=self._consented(known.consent))

    def end(self, known: Scaling) -> None:
        """Post at the end what no time was left for."""
        if untried := {move.setup.name: _NO_TIME for move in moves(known) if move.setup not in known.runs}:
            record = replace(known, passed_over={**known.passed_over, **untried}).record()
            self.bench.emit(events.ScalingMeasured(record))
