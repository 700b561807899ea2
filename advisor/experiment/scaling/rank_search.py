"""Several GPUs in a session: the one-GPU stack, then strategies and options with several ranks.

The loop of ``search.py`` with moves of its own: strategies, then options of the best, then the whole batch on each GPU.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from advisor.experiment import events
from advisor.experiment.consent import Consent
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.policy import POLICY
from advisor.experiment.scaling.results import ONE, Scaling, Setup
from advisor.recipe import MODES_WITH_GRAPHS, NOT_COMPILED
from advisor.recipe.catalog import Catalog
from advisor.recipe.parallel_recipe import PARALLEL, SINGLE, STRATEGY, why_not_sharded
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Facts, TrialResult, Value, World
from advisor.records.parallel import UNUSED_PARAMETERS

# torchrun imports PyTorch in each rank, which a trial of one GPU is spared. Seconds, before one was timed.
_START_S = 8.0
_NO_TIME = "no time was left: raise --budget"
# A trial that takes this many times as long as others, and this long at least, hangs. Unitless; seconds.
_HANGS_AFTER, _HANGS_AFTER_S = 4.0, 60.0
# Several machines meet within this, twice: torchrun's agents, then the ranks. Seconds.
_MEETING_S = 120.0
# Runs of settings that seem better than the stack, until they are or are not. A count.
_MOST_RUNS = 3
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
        gpus=gpus,
        catalog=catalog,
        consent=consent,
        facts=facts,
        candidates=tuple(one for one in proposals.candidates if one.recipe in parallel),
        carried=carried,
        left_out=left_out,
        passed_over=passed_over,
        # With batch norms or padding the losses depend on the other samples, which are fewer on each rank.
        same_losses=not (random or facts.computes("batch_norm", "dropout") or facts.workload.varying_shapes),
        device_type=facts.workload.device_type,
        machines=request.machines,
    )


# --- the moves ------------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """One thing to measure next, once or ``in_turn`` with one GPU, and the gain expected of it."""

    gain: float
    setup: Setup
    in_turn: bool = False

    @property
    def trials(self) -> tuple[Setup, ...]:
        """The trials that it takes."""
        return (self.setup, ONE, ONE, self.setup) if self.in_turn else (self.setup,)


def moves(known: Scaling) -> list[Move]:
    """All that could be measured next, by expected gain (as a logarithm) per trial; empty if one GPU failed."""
    if not known.measured(ONE):
        return []
    kinds = (_strategies, _options, _again, _of_the_leading)
    found = [move for kind in kinds for move in kind(known)]
    return sorted(found, key=lambda move: math.log(move.gain) / len(move.trials), reverse=True)


def leading(known: Scaling) -> Setup | None:
    """The fastest usable settings over several GPUs, even if one GPU is as fast; None before any has run."""
    if known.stack:
        return Setup(known.stack)
    compared = {one: known.compare(one) for one in known.runs if one != ONE and not one.weak}
    rates = {one: ratio.speedup for one, ratio in compared.items() if ratio and not known.why_unusable(one)}
    return max(rates, key=lambda one: rates[one], default=None)


def _strategies(known: Scaling) -> Iterator[Move]:
    """Moves that measure each strategy. One that failed is tried again in a changed form."""
    for candidate in known.candidates:
        if candidate.key != STRATEGY or known.consent.rejects(candidate.recipe):
            continue
        setup = Setup(_fitting(known, Settings(candidate.settings)))
        while setup in known.runs and not known.measured(setup) and (other := _mended(known, setup)):
            setup = other
        if setup not in known.runs:
            yield Move(_expected(known, candidate, Settings()), setup)


def _mended(known: Scaling, setup: Setup) -> Setup | None:
    """A failed strategy, changed according to the reason: find unused parameters, no graph, then no compiling."""
    if UNUSED_PARAMETERS in known.runs[setup][-1].reason and _UNUSED not in setup.settings:
        return Setup(_fitting(known, setup.settings.with_value(_UNUSED, True)))
    if _is_captured(known, setup):
        return Setup(setup.settings.with_value(_GRAPH, False))
    plain = _not_compiled(known, setup)
    return plain if plain != setup else None


def _is_captured(known: Scaling, setup: Setup) -> bool:
    """Whether the step is one CUDA graph, the exchange of gradients in it."""
    return bool(known.carried.merged(setup.settings).get(_GRAPH))


def _fitting(known: Scaling, settings: Settings) -> Settings:
    """A strategy's settings. Settings of the carried stack that do not work with it are switched off."""
    for key in known.carried:
        reason = known.catalog.conflict(known.carried.merged(settings))
        if not reason:
            break
        off = settings.with_value(key, known.catalog.by_key(key).default)
        if known.catalog.conflict(known.carried.merged(off)) != reason:
            settings = off
    return settings


def _not_compiled(known: Scaling, setup: Setup) -> Setup | None:
    """The same without compiling; None where nothing is compiled."""
    off = {key: value for key, value in NOT_COMPILED.items() if known.carried.get(key, value) != value}
    return Setup(setup.settings.merged(off), setup.weak) if off else None


def _options(known: Scaling) -> Iterator[Move]:
    """Moves that add one option to the leading settings; opt-in ones are measured for their price."""
    lead = leading(known)
    if lead is None:
        return
    for candidate in known.candidates:
        if candidate.key == STRATEGY or candidate.key in lead.settings or known.consent.rejects(candidate.recipe):
            continue
        settings = lead.settings.merged(candidate.settings)
        # Measured under this strategy, on whatever else the stack held then.
        alike = (one.settings for one in known.runs if one.strategy == lead.strategy)
        tried = any(other.get(candidate.key) == candidate.value for other in alike)
        if tried or known.catalog.conflict(known.carried.merged(settings)):
            continue
        yield Move(_expected(known, candidate, lead.settings), Setup(settings))


def _expected(known: Scaling, candidate: Candidate, beside: Settings) -> float:
    """The expected gain of a candidate; at least the value of one more figure in the report."""
    if known.facts is None:
        return POLICY.information
    joined = known.carried.merged(beside)
    gain = known.catalog.expected_gain(candidate.recipe, known.facts, candidate.value, joined)
    return max(gain, POLICY.information)


def _again(known: Scaling) -> Iterator[Move]:
    """Run settings again that seem better than the stack while the interval leaves it open."""
    for setup in known.runs:
        if setup in (ONE, Setup(known.stack)) or setup.weak or known.why_unusable(setup):
            continue
        comparison = known.compare(setup, Setup(known.stack))
        if comparison is None or comparison.ci_low > 1 or len(known.runs[setup]) >= _MOST_RUNS:
            continue
        if comparison.speedup > POLICY.least_gain:
            yield Move(min(comparison.speedup, POLICY.small_gain), setup)


def _of_the_leading(known: Scaling) -> Iterator[Move]:
    """The leading settings without compiling, with the whole batch on each GPU, and in turn with one GPU.

    Compiling may hide the gradients' way worse than it computes faster. The whole batch on each GPU is how many people
    use several; it is not comparable with the same global batch. The turns are for the figure that is reported.
    """
    lead = leading(known)
    if lead is None:
        return
    plain = None if _is_captured(known, lead) else _not_compiled(known, lead)
    if plain and plain not in known.runs:
        yield Move(POLICY.not_compiled, plain)
    if not any(one.weak and one.strategy == lead.strategy for one in known.runs):
        yield Move(POLICY.proof, Setup(lead.settings, weak=True))
    if known.stack and not known.confirmed:
        yield Move(POLICY.proof, Setup(known.stack), in_turn=True)


# --- the loop -------------------------------------------------------------------------------------------------


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
        limit_s = max(_HANGS_AFTER_S, _HANGS_AFTER * self._once_s) + (_MEETING_S if request.machines > 1 else 0.0)
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
        behind = 2 if self.known.stack and not (self.known.confirmed or move.in_turn) else 0
        return self._has_time((2 if move.in_turn else 1) + behind)
