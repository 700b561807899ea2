"""Several GPUs in a session: the one-GPU stack, then strategies and options with several ranks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

from advisor.experiment import events
from advisor.experiment.consent import Consent
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.scaling.rank_moves import Move, moves
from advisor.experiment.scaling.results import ONE, Scaling, Setup
from advisor.recipe import MODES_WITH_GRAPHS
from advisor.recipe.catalog import Catalog
from advisor.recipe.parallel_recipe import PARALLEL, SINGLE, STRATEGY, why_not_sharded
from advisor.recipe.settings import Settings
from advisor.records import Facts, TrialResult, Value, World

# torchrun imports PyTorch in each rank, which a trial of one GPU is spared. Seconds, before one was timed.
_START_S = 8.0
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


def knowledge_before(
    bench: Bench, one_gpu: Settings, facts: Facts, gpus: int, consent: Consent, *, random: bool
) -> Scaling:
    """The knowledge before the first trial: the settings carried over from one GPU, and the candidates.

    ``random``: the steps draw random numbers.
    """
    catalog, request = bench.catalog, bench.request
    # With batch norms or padding the losses depend on the other samples, which are fewer on each rank.
    differ = random or facts.computes("batch_norm", "dropout") or facts.workload.varying_shapes
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
        gpus=gpus,
        catalog=catalog,
        consent=consent,
        facts=facts,
        candidates=tuple(one for one in proposals.candidates if one.recipe in parallel),
        carried=carried,
        left_out=left_out,
        passed_over=passed_over,
        same_losses=not differ,
        device_type=facts.workload.device_type,
        machines=request.machines,
    )


class RankSearch:
    """Measures the best move over several GPUs until none is affordable. ``known`` is what is known by now.

    ``one_gpu`` is the stack as one GPU has it, whole. ``consented`` adds the decisions that were taken meanwhile.
    """

    def __init__(
        self, bench: Bench, known: Scaling, one_gpu: Settings, consented: Callable[[Consent], Consent]
    ) -> None:
        self.bench = bench
        self.known = known
        self._one_gpu = one_gpu
        self._consented = consented
        self._walls: list[float] = []

    def run(self) -> Scaling:
        """Search, and return what is known at the end. Raises SessionCancelledError when the person ends the session.

        One GPU runs first, on torchrun as all others: without it there is nothing to compare with.
        """
        self._measure(Move(1.0, ONE))
        while move := next(filter(self._affords, moves(self.known)), None):
            self._measure(move)
        if untried := {move.setup.name: _NO_TIME for move in moves(self.known) if move.setup not in self.known.runs}:
            record = replace(self.known, passed_over={**self.known.passed_over, **untried}).record()
            self.bench.emit(events.ScalingMeasured(record))
        return self.known

    def _measure(self, move: Move) -> None:
        """Run the trials of a move, as many of its turns as there is time for; then follow the person's decisions."""
        for place, setup in enumerate(move.trials):
            result = self._run(setup)
            self.known = self.known.with_run(setup, result)
            if not result.measured or (place % 2 and not self._has_time(2)):
                break
        if move.in_turn and result.measured:
            self.known = replace(self.known, in_turn=move.setup.settings)
        self.bench.emit(events.ScalingMeasured(self.known.record()))
        self.bench.post_progress(sum(len(other.trials) for other in moves(self.known)) * self._once_s)
        self.known = replace(self.known, consent=self._consented(self.known.consent))

    def _run(self, setup: Setup) -> TrialResult:
        request, stack = self.bench.request, self._one_gpu if setup == ONE else self.known.carried
        spec = self.bench.spec(self.known.row_of(setup).trial, stack.merged(setup.settings))
        limit_s = max(_HANGS_AFTER_S, _HANGS_AFTER * self._once_s)
        limit_s += _MEETING_S if request.machines > 1 else 0.0
        world = World(1)
        if setup.strategy != SINGLE:
            here = self.known.gpus // request.machines
            world = World(here, weak=setup.weak, options=request.launch, machines=request.machines)
        result = self.bench.run(replace(spec, world=world, timeout_s=min(spec.timeout_s, limit_s)))
        if result.wall_s is not None and result.measured:
            self._walls.append(result.wall_s)
        return result

    @property
    def _once_s(self) -> float:
        """The seconds that one trial is expected to take."""
        return median(self._walls) if self._walls else self.bench.expected_s(self.known.carried) + _START_S

    def _has_time(self, trials: int) -> bool:
        """Whether the budget has time for this number of trials."""
        return self.bench.budget.allows(trials * self._once_s)

    def _affords(self, move: Move) -> bool:
        """Whether there is time for a move and, while the stack is not confirmed, for half of its turns."""
        if self.bench.steering.ending:
            return False
        if move.in_turn:
            return self._has_time(2)
        return self._has_time(3 if self.known.stack and not self.known.confirmed else 1)
