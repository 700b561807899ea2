"""The trials of the search's moves: their cost, whether there is time for them, and their results."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from advisor.experiment import events, policy
from advisor.experiment.known import Evidence, Kind, Known, Move
from advisor.experiment.measuring.baseline import reference_spec, with_scores
from advisor.experiment.measuring.bench import ENERGY_S, Bench
from advisor.experiment.measuring.turns import in_turn, may_be_side_by_side, side_by_side, turns_s
from advisor.experiment.moves import moves
from advisor.experiment.ranking import INSTRUMENTED
from advisor.experiment.reporting import Reporter
from advisor.experiment.stacks import compiled_next
from advisor.judging.judge import BASELINE, CONTROL_SETTINGS
from advisor.recipe.settings import Settings
from advisor.records import TrialKind, TrialResult, TrialSpec, Value

# Extra time of an instrumented pass over an ordinary trial, plus extra time for each operation of the forward pass.
# Measured on an H200's host: 4.4 s for ResNet-50 (178 operations), 6.6 s for Whisper (518), over 8.7 s for T5-small
# (1,256). Seconds.
_INSTRUMENTS_S = 3.0
_INSTRUMENTS_PER_OPERATION_S = 0.007
# Steps of an instrumented pass on the CPU, where steps take most of its time: at least three timed in phases, four
# recorded, one counted, and validation of about four steps. A count.
_INSTRUMENTED_STEPS = 12
# A compilation without priority is given up after this multiple of its expected duration.
_GIVEN_UP_AFTER = 2.0
# Half of the trials before the turns take longer than expected, so the reserve for turns has this factor. Unitless.
_MARGIN = 1.2
_STAGES = {
    Kind.STACK: "stack",
    Kind.TURNS: "confirmation",
    Kind.ALONE: "alone",
    Kind.CONTROL: "instruments",
    Kind.PROFILE: "instruments",
    Kind.REFERENCE: "instruments",
}


class MoveTrials:
    """Implements ``search.Trials`` with trial processes."""

    def __init__(self, bench: Bench, reporter: Reporter) -> None:
        self.bench = bench
        self.known: Known | None = None  # the latest published: a cancelled session continues from it
        self._reporter = reporter
        self.wanted: Callable[[Move], bool] = lambda move: True  # whether the search may take a move

    # --- what things cost -----------------------------------------------------------------------------------------

    def cost_s(self, move: Move, known: Known) -> float:
        """The seconds that a move is expected to take."""
        facts, once_s = known.plan.facts, self.bench.expected_s(move.settings)
        match move.kind:
            case Kind.TURNS:
                return turns_s(self.bench, known, move.settings)
            case Kind.PROFILE:
                beside_s = _INSTRUMENTS_S + _INSTRUMENTS_PER_OPERATION_S * facts.operations
                steps_s = 0.0 if facts.on_cuda else _INSTRUMENTED_STEPS * known.judge.speed(BASELINE)[0] / 1e3
                return once_s + beside_s + steps_s
        return max(once_s, 0.1)

    def comes_first(self, move: Move) -> bool:
        """Whether a move comes before all others: by priority, or as compiled beside trials, once that has ended."""
        if self.bench.compiles_beside(move.settings):
            return False
        return move.has_priority or (move.kind is Kind.STACK and move.settings in self.bench.compiled_beside)

    def affords(self, move: Move, known: Known) -> bool:
        """Whether a move is wanted, may compile now, and leaves time for the stack's turns after it."""
        bench, budget, cost_s = self.bench, self.bench.budget, self.cost_s(move, known)
        if bench.ending or not self.wanted(move):
            return False
        if move.kind is Kind.TURNS:
            return budget.allows(cost_s)
        if move.kind is Kind.STACK:
            return self._affords_stack(move, known)
        stacks = [other for other in moves(known) if other.kind is Kind.STACK]
        if not move.has_priority:
            waits = bench.catalog.compiles(move.settings) and any(bench.compiles_beside(one.settings) for one in stacks)
            return not waits and budget.allows(cost_s, reserve_s=self.reserve_s(known))
        # Repeating the baseline takes a small part of the budget and leaves enough time for the stacks after it.
        takes_little = cost_s <= policy.BASELINE_SHARE * budget.total_s or move.kind is Kind.CONTROL
        return takes_little and budget.allows(cost_s + policy.SAFE * sum(self.cost_s(one, known) for one in stacks))

    def _affords_stack(self, move: Move, known: Known) -> bool:
        """Whether there is time for a whole stack. A stack with priority starts even if it may end too late.

        While its code compiles beside the trials, it waits as long as there is something else to measure.
        """
        bench, cost_s = self.bench, self.cost_s(move, known)
        beside = bench.compiles_beside(move.settings)
        if beside and any(other.kind is not Kind.STACK and self.affords(other, known) for other in moves(known)):
            return False
        if beside or move.settings in bench.compiled_beside:
            cost_s = bench.expected_s(BASELINE)
        elif move.has_priority:
            cost_s *= policy.START_SHARE
        return bench.budget.allows(cost_s, reserve_s=self._reserve_s_beside(move, known))

    def _reserve_s_beside(self, move: Move, known: Known) -> float:
        """The seconds that a stack with priority leaves for the turns; 0 if its code is compiled already."""
        return self.reserve_s(known) if self.bench.budget.has_to_compile(move.settings) else 0.0

    def reserve_s(self, known: Known) -> float:
        """The seconds reserved for the stack's turns; 0 if too few are left for them, so shorter trials can run."""
        stack = known.to_confirm
        if not stack or known.judge.took_turns(stack):
            return 0.0
        needed_s = turns_s(self.bench, known, stack)
        if not self.bench.budget.allows(needed_s):
            return 0.0
        return min(_MARGIN * needed_s, policy.RESERVE_SHARE * self.bench.budget.total_s)

    # --- measuring ------------------------------------------------------------------------------------------------

    def measure(self, move: Move, known: Known) -> Evidence | None:
        """Measure a move; None if it still compiles when the turns have to begin. Raises SessionCancelledError."""
        self.enter(_STAGES.get(move.kind, "search"))
        match move.kind:
            case Kind.CONTROL:
                spec = replace(self.bench.spec(move.name, CONTROL_SETTINGS), stream_seed=self.bench.request.seed + 1)
                evidence = Evidence(runs=((CONTROL_SETTINGS, self.bench.run(spec)),))
            case Kind.PROFILE:
                evidence = self._profile(known)
            case Kind.REFERENCE:
                evidence = self._reference(known)
            case Kind.TURNS:
                waits = self.bench.compiles_beside(move.settings)  # for the code that is being compiled
                with contextlib.nullcontext() if waits else self.bench.runner.beside_stopped():
                    if may_be_side_by_side(known, move.settings):
                        evidence = side_by_side(self.bench, move.settings)
                    else:
                        evidence = in_turn(known.judge, move.settings, self._turn, self._has_time)
            case Kind.STACK if not self._is_compiled(move, known):
                return None
            case _:
                evidence = self._trial(move, known)
        evidence = with_scores(self.bench, known, evidence)
        for event in runs_of(move, evidence):
            self.bench.emit(event)
        return evidence

    def _is_compiled(self, move: Move, known: Known) -> bool:
        """Whether a stack can be measured now. Its code compiles beside the trials while there are others to run."""
        bench = self.bench
        to_do = bench.budget.has_to_compile(move.settings) and move.settings not in bench.compiled_beside
        if to_do and bench.has_compiled_beside() and may_compile_beside(bench, known, move.settings):
            bench.compile_beside(move.settings)
            return False
        if not bench.compiles_beside(move.settings):
            return True
        return bench.wait_until_compiled(move.name, bench.budget.left_s - self._reserve_s_beside(move, known))

    def _trial(self, move: Move, known: Known) -> Evidence:
        """Run one trial. If its settings need no compiler, compile the next trial's code at the same time."""
        bench, spec = self.bench, self._spec(move, known)
        coming = compiled_next(known, move.settings) if move.kind is Kind.STACK else BASELINE
        possible = not bench.catalog.compiles(move.settings) and bench.budget.has_to_compile(coming)
        undisturbed = possible and all(may_compile_beside(bench, known, one) for one in (move.settings, coming))
        if undisturbed and bench.has_compiled_beside():
            bench.compile_beside(coming)
        return Evidence(runs=((move.settings, bench.run(spec)),))

    def _spec(self, move: Move, known: Known) -> TrialSpec:
        at_least_s = ENERGY_S if len(move.settings) > 1 else 0.0
        baseline_again = move.kind is Kind.AGAIN and not move.settings
        spec = self.bench.spec(move.name, move.settings, at_least_s=at_least_s)
        if baseline_again and known.judge.spread.random:
            # Other random numbers for the steps: the more draws are seen, the better their spread is known.
            spec = replace(spec, stream_seed=self.bench.request.seed + 1 + len(known.judge.baseline_runs))
        if not self.bench.catalog.compiles(move.settings):
            return spec
        if move.has_priority:
            limit_s = spec.timeout_s - self._reserve_s_beside(move, known)
        else:
            limit_s = min(spec.timeout_s - self.reserve_s(known), _GIVEN_UP_AFTER * self.cost_s(move, known))
        return replace(spec, timeout_s=max(1.0, limit_s))

    def _turn(self, settings: Settings, pair: int) -> TrialResult:
        name = "combination, in turns" if settings else "baseline, in turns"
        return self.bench.run(replace(self.bench.spec(name, settings), times_phases=bool(settings) and not pair))

    def _has_time(self, *combinations: Settings) -> bool:
        return self.bench.budget.allows(sum(map(self.bench.expected_s, combinations)))

    def _profile(self, known: Known) -> Evidence:
        """Run the baseline once more with its profile; give up if that would take the time of the turns."""
        bench, facts = self.bench, known.plan.facts
        spec = bench.spec(INSTRUMENTED, {}, kind=TrialKind.PROFILE)
        result = bench.run(replace(spec, timeout_s=max(1.0, spec.timeout_s - self.reserve_s(known))))
        if bench.profiled and result.measured and bench.profiled != facts.profile:
            facts = replace(facts, profile=bench.profiled)
            bench.emit(events.FactsFound(facts))
        return Evidence(runs=((BASELINE, result),), facts=facts)

    def _reference(self, known: Known) -> Evidence:
        judge = known.judge
        spec = reference_spec(self.bench, known.plan.facts, judge.baseline, judge.spread)
        if spec is None:
            return Evidence()
        result = self.bench.run(spec)
        self.bench.emit(events.TrialActivity(spec.trial_id, result.reason or "done"))
        return Evidence(reference=result)

    # --- events ---------------------------------------------------------------------------------------------------

    def publish(self, known: Known) -> Known:
        """Post the events for new knowledge, and return it with the decisions that were made meanwhile."""
        self.known = known
        self.post_progress(known)  # first, so that the journal lines of the new events have it
        self._reporter.report(known)
        followed = known.with_consent(self._reporter.consented(known.plan.consent))
        return known if followed is known else self.publish(followed)

    def enter(self, stage: str) -> None:
        """Begin a stage unless it has begun already."""
        if stage != self._reporter.state.stage:
            self._reporter.emit(events.StageStarted(stage))

    def post_progress(self, known: Known) -> None:
        """Post how far the session has got."""
        self.bench.post_progress(sum(self.cost_s(move, known) for move in moves(known)))


def runs_of(move: Move, evidence: Evidence) -> Iterator[events.Event]:
    """The events that tell a resumed session what a move has measured."""
    turns, settings = evidence.turns, dict(move.settings)
    for of_run, result in evidence.runs:
        yield events.RunMeasured(dict(of_run), result, settings if turns and not turns.by_block else None)
    if turns and turns.by_block:
        yield events.TurnsMeasured(settings, turns.old[0].blocks, turns.new[0])


# --- beside a trial that compiles -----------------------------------------------------------------------------

# Each compilation needs a core, and more for the processes that it starts. On 16 cores, two compilations side by side
# took no longer than one, and the second trial then took 2 s instead of 11 s.
_CORES_FOR_TWO = 8
# Two trials that compile need about twice the baseline's memory: at most this share of the device's memory.
_MEMORY_SHARE = 0.8


def may_compile_beside(bench: Bench, known: Known, settings: Mapping[str, Value]) -> bool:
    """Whether settings may be compiled while a trial runs: there are cores and memory, and no kernels are timed.

    Compilation that takes longer than usual times many kernels and chooses among them, as some libraries do. Other
    compilation times only a few, at their first run. A kernel chosen while another trial ran is not reused. A trial
    over several GPUs uses all of them.
    """
    facts, peak = known.plan.facts, known.judge.baseline.peak_reserved_bytes or 0
    if not facts.on_cuda or facts.hardware.host.usable_cores < _CORES_FOR_TWO or bench.world is not None:
        return False
    catalog = bench.catalog
    if 2 * peak > _MEMORY_SHARE * facts.workload.device_memory_bytes:
        return False
    if catalog.environment(settings) or catalog.cost(settings) > 1:
        return False
    in_use = {**facts.workload.current, **settings}
    return not any(recipe.times_kernels and in_use.get(recipe.key) for recipe in catalog)
