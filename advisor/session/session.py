"""The session: baseline, control, trials, stack, confirmation. Runs in a thread of its own and posts events."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from advisor.catalog import Catalog, load_catalog
from advisor.errors import AdvisorError, ExitCode, TargetError, UsageError
from advisor.formatting import format_bytes
from advisor.hardware import counts_energy, inspect_hardware
from advisor.records import (
    Candidate,
    Facts,
    Finding,
    Hardware,
    Mode,
    Objective,
    Outcome,
    ParetoPoint,
    StackRecord,
    TrialRecord,
    TrialResult,
    Value,
    Verdict,
    WorkloadFacts,
)
from advisor.runner import Runner
from advisor.session import events
from advisor.session.bench import ENERGY_S, Bench, SessionCancelledError
from advisor.session.bounds import hopeless, pointless
from advisor.session.budget import Budget
from advisor.session.confirmation import (
    BLOCKS_PER_CANDIDATE,
    PAIRS_PER_CANDIDATE,
    Confirmation,
    Runs,
    confirm_in_turn,
    confirm_side_by_side,
    fits_together,
)
from advisor.session.control import REJECTED, Decision
from advisor.session.decisions import Decisions
from advisor.session.hints import Hints, hints_for, keep_hints, workload_name
from advisor.session.journal import Journal, PastSession
from advisor.session.judge import Judge, speed
from advisor.session.numerics import finite
from advisor.session.pareto import least_memory
from advisor.session.ranking import CONTROL, may_enter, recommend
from advisor.session.reference import reference_spec
from advisor.session.request import Request
from advisor.session.schedule import Schedule, needs_consent, schedule, waits
from advisor.session.search import Stack, StackSearch
from advisor.session.state import SessionState
from advisor.session.tolerance import own_rounding
from advisor.settings import Settings
from advisor.source import read_sources

# What a session keeps back for the stack and its confirmation while solo trials run.
_STACK_TRIALS_RESERVED = 2
_LARGEST_RESERVE = 0.35
# A compilation for which no more than this share of the budget has to be kept is waited for.
_LARGEST_COMPILE = 0.5
# A ladder that gains less than this from one value to the next has passed its knee.
_SMALLEST_CLIMB = 0.02
_NOISY = 0.1
# A step that the CPU does not finish a few times in so long is not waited for.
_CPU_TRIAL_S = 20.0
_CPU_MEASURE_S = 0.5
# What is kept back of the budget for candidates that are not usual while those that came in at once are checked.
_REST_SHARE = 0.15
# What is kept back of the budget for close calls while trials run whose recipes cannot be in the stack.
_CLOSE_CALLS_SHARE = 0.1
# Building that takes less is not worth a process that holds the model.
_WORTH_BUILDING_ONCE_S = 0.2
_NO_ENERGY = (
    "no energy counter can be read here, so energy cannot be the objective.",
    "Choose --objective throughput; NVIDIA GPUs count their energy from Volta on, whole ones only.",
)
# Solo trials between two measurements of the baseline: what drifts meanwhile counts as noise.
_TRIALS_PER_BASELINE = 6
_REWORK = "rework"


class Session:
    """Implements ``SessionControl``. ``emit`` is called in the thread that runs the session, or that decides.

    ``past`` continues an interrupted session: what it measured is kept, what the person decided holds, and the baseline
    is measured once more.
    """

    def __init__(
        self,
        request: Request,
        runner: Runner,
        emit: Callable[[events.Event], None],
        journal: Journal,
        *,
        past: PastSession | None = None,
    ) -> None:
        self.request = request
        self.catalog: Catalog = load_catalog(request.recipe_folders)
        self._runner = runner
        self._post = emit
        self._journal = journal
        self._past = SessionState.of(past.events) if past else None
        self._budget = Budget(request.budget_s)
        self._bench = Bench(request, runner, self._budget, journal, self._emit, environment=self.catalog.environment)
        self._records: dict[str, TrialRecord] = {}
        self._decisions = Decisions(self._past.decisions if self._past else {})
        # The version of the decisions that the search follows, that the confirmed stack follows (None before there is
        # one), and what was found under each set of them.
        self._searched = 0
        self._followed: int | None = None
        self._found: dict[frozenset[tuple[str, Decision]], tuple[Stack, StackRecord]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._aside = ""
        self._search: StackSearch | None = None
        self._waiting: list[Candidate] = []
        self._stage_now = ""
        self._planned: tuple[Candidate, ...] = ()
        self._skipped: dict[str, str] = {}
        self._passed_over: dict[str, str] = {}
        self._planned_left = 0
        self._compile_cost = 0.0
        self._share = 0.0
        self._hardware: Hardware | None = None
        self._facts: Facts | None = None
        self._hints = Hints()
        self._findings: tuple[Finding, ...] = ()
        self._judge: Judge | None = None
        self._stack: StackRecord | None = None
        self._combinations: list[ParetoPoint] = []
        self.exit_code = ExitCode.OK

    # --- what a user interface calls ---------------------------------------------------------------------------

    def run(self) -> None:
        """Run the whole session; returns when it is over or cancelled. Never raises."""
        self._guarded(self._run, finishes=True)

    def cancel(self) -> None:
        """End the running trial at once, and the session with it."""
        with self._lock:
            self._closed = True
        self._runner.cancel()

    def stop(self) -> None:
        """End a running ``rework`` or ``retry``; nothing else changes."""
        with self._lock:
            if self._aside:
                self._runner.cancel()

    def decide(self, recipe_id: str, decision: Decision | None) -> None:
        """Record what the person said of a recipe; a rework that does not know of it yet is ended."""
        if not self._decisions.take(recipe_id, decision):
            return
        self._emit(events.Decided(recipe_id, decision))
        with self._lock:
            if self._aside == _REWORK:
                self._runner.cancel()

    def decisions(self) -> dict[str, Decision]:
        """What the person said so far."""
        return self._decisions.all()

    def rework(self) -> None:
        """Find the stack again as the decisions have it: without the rejected, with the accepted."""
        if self._judge is not None and self._decisions.version != self._followed:
            self._run_aside(_REWORK, self._rework)

    def retry(self, name: str) -> None:
        """Run a candidate's trial again."""
        if self._judge is not None and name in self._records:
            self._run_aside(name, lambda: self._retry(name))

    # --- the stages --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        for problem in self.catalog.problems:
            self._say(f"a recipe could not be loaded: {problem}", "warning")
        for recipe, decision in self.decisions().items():
            self._post(events.Decided(recipe, decision))  # in the journal already
        self._emit(events.GoalSet(self.request.goal))
        self._hardware = inspect_hardware()
        self._emit(events.HardwareFound(self._hardware))
        self._check_energy(self._hardware)
        self._read_source()
        self._stage("baseline")
        self._measure_baseline()
        self._stage("trials")
        planned = self._plan()
        self._planned_left = len(planned.all) - len(planned.later)
        self._find_stack(planned)
        self._confirm_found()
        self._keep_hints()
        self._follow_in_time()
        self._stage("others")
        self._planned_left = len(self._waiting)
        self._run_solo(self._those_that_waited(), reserve_s=_CLOSE_CALLS_SHARE * self._budget.total_s)
        self._rank()
        self._stage("close calls")
        self._confirm_close_calls(list(self._records.values()))
        self._solo_expensive(planned.expensive)
        self._measure_on_the_cpu()
        self._follow_in_time()
        self._warn_of_the_limit()
        self._warn_of_noise()
        self._stage("done")

    def _find_stack(self, planned: Schedule) -> None:
        """Two rounds: what most workloads gain from, compiled; then the rest, and what compiles for long.

        The first round spends a short budget on what is most likely to help; the second has the time that is left.
        """
        self._search = search = self._new_search()
        self._searched = self._decisions.version
        quick = [c for c in planned.expensive if self._is_quick(c)]
        slow = [c for c in planned.expensive if c not in quick]
        self._compile_cost = self.catalog.cost(quick[0].settings) if quick else 0.0
        self._run_solo(planned.prime)
        self._measure_control()
        self._probe_reference()
        self._settle_promising()
        self._stage("stack")
        search.grow(self._records.values(), self._untried(planned), compiles_next=lambda: self._compile_s() > 0)
        company = [*planned.company, *self._proposed_for(search.stack)]
        self._try_on_top(search, company, reserve_s=self._stack_reserve_s)
        self._compile_cost = 0.0
        self._try_on_top(search, quick)
        search.settle_unproven(reserve_s=self._confirmation_s() + _REST_SHARE * self._budget.total_s)
        if planned.rest:
            self._stage("trials")
            self._run_solo(planned.rest)
            self._repeat_baseline()
            self._stage("stack")
            search.grow(self._records.values())
            search.add_leftovers(self._records.values(), self._untried(planned))
        self._try_on_top(search, [*self._proposed_for(search.stack), *slow])
        self._bring_in_line(search)
        search.leave_one_out()

    def _keep_hints(self) -> None:
        """Leave for the next session of this workload what to try first; a session of a few recipes says too little."""
        if self._stack is not None and self._stack.settings and not (self.request.only or self.request.skip):
            name = workload_name(self.request.target, self._known_facts)
            keep_hints(name, self._stack.settings, self._budget.compile_s)

    def _is_quick(self, candidate: Candidate) -> bool:
        """Whether an expensive candidate is one of those that are tried before the rest."""
        hinted = self._hints.settings.get(candidate.key) == candidate.value
        return hinted or (self.catalog.cost(candidate.settings) <= 1 and not self.catalog[candidate.recipe].fallback)

    def _untried(self, planned: Schedule) -> list[Candidate]:
        """What has no trial of its own by now, because there was no time or it could not have shown anything."""
        return [c for c in (*planned.prime, *planned.company, *planned.rest) if not self._was_measured(c)]

    def _was_measured(self, candidate: Candidate) -> bool:
        record = self._records.get(candidate.name)
        return record is not None and record.result.outcome is not Outcome.SKIPPED

    def _check_energy(self, hardware: Hardware) -> None:
        """Refuse at once to minimise what nothing here can measure."""
        if self.request.objective is not Objective.ENERGY:
            return
        on_cpu = self.request.target.device == "cpu"
        if on_cpu or not any(counts_energy(gpu.uuid) for gpu in hardware.gpus):
            raise UsageError(*_NO_ENERGY)

    def _read_source(self) -> None:
        """Read the user's files for habits, which the trials then price; nothing in them changes a setting."""
        target = self.request.target
        readings = read_sources(target.target, target.directory, self.request.scripts)
        self._findings = tuple(finding for reading in readings for finding in reading.findings)
        problems = tuple(reading.problem for reading in readings if reading.problem)
        self._emit(events.SourceRead(tuple(reading.file for reading in readings), self._findings, problems))

    def _measure_baseline(self) -> None:
        if self._past is not None and self._past.baseline is not None and self._past.facts is not None:
            self._facts = replace(self._past.facts, findings=self._findings)
            past = self._past.baseline
            workload = self._facts.workload
            self._judge = Judge(
                self.catalog,
                workload.mode,
                past.result,
                earlier_floor=past.noise_floor,
                own_rounding=own_rounding(self.catalog, workload),
                goal=self.request.goal,
            )
            self._emit(events.FactsFound(self._facts))
            self._repeat_baseline()
            return
        spec = replace(self._bench.spec("baseline", {}, at_least_s=ENERGY_S), inspect=True, profile=True)
        result = self._bench.run(spec)
        if not result.measured or self._bench.inspected is None:
            raise TargetError(
                _baseline_problem(result), result.hint or "Mend the target and try again.", result.details
            )
        if self.request.objective is Objective.ENERGY and result.energy_j_per_sample is None:
            raise UsageError(*_NO_ENERGY)
        inspected, profiled = self._bench.inspected, self._bench.profiled
        assert self._hardware is not None
        self._facts = Facts(
            self._hardware,
            inspected.workload,
            profiled.profile if profiled else None,
            inspected.versions,
            findings=self._findings,
            peak_allocated_bytes=result.peak_allocated_bytes,
            peak_reserved_bytes=result.peak_reserved_bytes,
        )
        rounding = own_rounding(self.catalog, inspected.workload)
        mode, goal = inspected.workload.mode, self.request.goal
        self._judge = Judge(self.catalog, mode, result, own_rounding=rounding, goal=goal)
        self._budget.parameter_tensors = inspected.workload.parameter_tensors
        self._budget.compiles_backward = mode is Mode.TRAIN
        self._hints = hints_for(workload_name(self.request.target, self._facts))
        self._budget.hinted_compile_s = self._hints.compile_s
        self._emit(events.FactsFound(self._facts))
        self._emit(events.BaselineMeasured(self._judge.baseline_record()))
        if result.build_s is not None and result.build_s > _WORTH_BUILDING_ONCE_S:
            self._bench.build_once(result.build_s)
        if not finite(result):
            self._say(
                "the baseline's own losses or outputs are not finite, so no numerics can be compared: check the data, "
                "the loss and the learning rate",
                "warning",
            )

    def _measure_control(self) -> None:
        """The trial that changes nothing, once, and what follows from the noise that it shows."""
        judge = self._known_judge
        candidate = Candidate(CONTROL, self.catalog[CONTROL].key, True)
        if candidate.name in self._records:
            return
        spec = replace(self._bench.spec(candidate.name, candidate.settings), stream_seed=self.request.seed + 1)
        result = self._bench.run(spec)
        judge.add_control(result)
        self._keep(judge.record(candidate, candidate.settings, result))
        self._judge_again()
        if not self.request.only:
            self._passed_over |= self._but_usual(self._without_hope(self._planned), self._planned)

    def _probe_reference(self) -> None:
        """The baseline's first steps in a higher precision, where they fit. A failure only leaves a wider tolerance."""
        judge = self._known_judge
        spec = reference_spec(self._bench, self._known_facts, judge.baseline, judge.spread)
        if spec is not None:
            result = self._bench.run(spec)
            judge.add_reference(result)
            self._emit(events.TrialActivity(spec.trial_id, result.reason or "done"))
            self._judge_again()

    def _measure_on_the_cpu(self) -> None:
        """The baseline's step on the CPU, when a GPU session has time left: what the GPU is worth."""
        if not self._known_facts.on_cuda or not self._budget.allows(_CPU_TRIAL_S):
            return
        spec = self._bench.spec("the same step on the CPU", {})
        target = replace(spec.target, device="cpu")
        result = self._bench.run(replace(spec, target=target, measure_s=_CPU_MEASURE_S, timeout_s=_CPU_TRIAL_S))
        if result.measured:
            self._known_judge.cpu_step_ms = speed(result)[0]
            self._emit(events.BaselineMeasured(self._known_judge.baseline_record()))

    def _plan(self) -> Schedule:
        """What is tried, and when. What the profile shows to be hopeless is passed over, unless it was asked for."""
        facts = self._known_facts
        proposals = self.catalog.propose(facts, only=self.request.only, skip=(*self.request.skip, CONTROL))
        skipped = {recipe: reason for recipe, reason in proposals.skipped.items() if recipe != CONTROL}
        candidates = proposals.candidates
        hopeless_alone: dict[str, str] = {} if self.request.only else self._without_hope(candidates)
        if hopeless_alone:
            self._passed_over = self._but_usual(hopeless_alone, candidates)
            skipped |= self._passed_over
            candidates = tuple(c for c in candidates if c.recipe not in self._passed_over)
        if not candidates:
            self._say(self._nothing_to_try(skipped), "warning")
        planned = schedule(
            self.catalog,
            facts,
            candidates,
            allow=self.request.allow,
            objective=self.request.objective,
            decision=self._decisions.of,
            hints=self._hints.settings,
            doubtful=hopeless_alone,
        )
        self._planned, self._skipped, self._waiting = planned.all, skipped, list(planned.later)
        self._tell_plan()
        return planned

    def _but_usual(self, reasons: Mapping[str, str], candidates: Iterable[Candidate]) -> dict[str, str]:
        """Those of the hopeless that are so in company too: what most workloads gain from may help once others have."""
        mode = self._known_facts.workload.mode
        usual = {c.recipe for c in candidates if self.catalog[c.recipe].is_usual(c.value, mode)}
        return {recipe: why for recipe, why in reasons.items() if recipe not in usual}

    def _tell_plan(self) -> None:
        facts, allow = self._known_facts, self.request.allow
        consent = (c.name for c in self._waiting if needs_consent(self.catalog, facts, c, allow=allow))
        self._emit(events.TrialsPlanned(self._planned, self._skipped, tuple(consent)))

    def _without_hope(self, candidates: Iterable[Candidate]) -> dict[str, str]:
        """The recipes among the candidates that cannot serve the objective, each with the reason."""
        objective, facts, floor = self.request.objective, self._known_facts, self._known_judge.noise_floor
        bounded = hopeless(self.catalog, facts.profile, candidates, floor)
        if objective is Objective.MEMORY:  # what the profile bounds is time
            bounded = {recipe: why for recipe, why in bounded.items() if not self.catalog[recipe].saves_memory}
        return bounded | pointless(objective, candidates)

    def _nothing_to_try(self, skipped: Mapping[str, str]) -> str:
        """Why no candidate is left, of those recipes that were asked for when some were."""
        named = [f"{recipe}: {skipped[recipe]}" for recipe in self.request.only if recipe in skipped]
        if named:
            return f"there is nothing to try of what --only names ({'; '.join(named)})"
        return "there is nothing to try here: every recipe is left out, each for a reason of its own"

    def _run_solo(self, candidates: Iterable[Candidate], *, reserve_s: float | None = None) -> None:
        """Try candidates, and before what is left of them those that the person accepts meanwhile."""
        stopped: dict[str, str] = {}
        measured = 0
        for candidate in self._with_accepted(candidates):
            self._drop_rejected()
            self._progress()
            self._planned_left -= 1
            if self._reused(candidate):
                continue
            if candidate.recipe in stopped and not candidate.already_on:  # what one has is measured off in any case
                self._skip(candidate, stopped[candidate.recipe])
            elif self._decisions.rejects(candidate.recipe):
                self._skip(candidate, REJECTED)
            elif candidate.recipe in self._passed_over and self._decisions.of(candidate.recipe) is None:
                self._skip(candidate, self._passed_over[candidate.recipe])
            elif not self._affordable(cost=self.catalog.cost(candidate.settings), reserve_s=reserve_s):
                self._skip(candidate, self._too_late())
            else:
                record = self._solo(candidate, reserve_s=reserve_s)
                self._rank()
                self._measure_control()  # behind the first: a person sees an answer soon, then how much of it is noise
                measured += 1
                if measured % _TRIALS_PER_BASELINE == 0:
                    self._repeat_baseline()
                if self.catalog[candidate.recipe].ladder and not (self._climbs(record) or self._descends(record)):
                    stopped[candidate.recipe] = _end_of_ladder(record)

    def _with_accepted(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        for candidate in candidates:
            yield from self._accepted_meanwhile()
            yield candidate
        yield from self._accepted_meanwhile()

    def _accepted_meanwhile(self) -> Iterator[Candidate]:
        """What waited for the person's consent, and has it now."""
        for candidate in list(self._waiting):
            if not self._waits(self._known_facts, candidate):
                self._waiting.remove(candidate)
                self._planned_left += 1
                yield candidate

    def _those_that_waited(self) -> Iterator[Candidate]:
        """What waited for the stack, which follows the person's decisions before each."""
        while self._waiting:
            self._follow_in_time()
            if self._waiting:
                yield self._waiting.pop(0)

    def _solo(self, candidate: Candidate, *, reserve_s: float | None = None) -> TrialRecord:
        """Measure a candidate alone. ``reserve_s`` is what must be left when it hangs: by default, to confirm."""
        reserve_s = self._confirmation_s() if reserve_s is None else reserve_s
        spec = self._bench.spec(candidate.name, candidate.settings, reserve_s=reserve_s)
        result = self._bench.run(spec, cost=self.catalog.cost(candidate.settings))
        record = self._known_judge.record(candidate, candidate.settings, result)
        self._keep(record)
        return record

    def _climbs(self, record: TrialRecord) -> bool:
        """Whether a ladder's value may be better than every value before it, the present one included.

        The upper end of its interval decides: where steps wait for data they vary, and a ladder is not climbed again.
        One that leads down begins with the value that is expected to be best, and goes on only while it gets better.
        """
        earlier = [
            other.samples_per_s or 0.0
            for other in self._records.values()
            if other.candidate.recipe == record.candidate.recipe and other.candidate != record.candidate
        ]
        best = max([self._known_judge.baseline_rate, *earlier])
        comparison = record.comparison
        if earlier and self._leads_down(record):
            return (record.samples_per_s or 0.0) > best
        upper = (record.samples_per_s or 0.0) * (comparison.ci_high / comparison.speedup if comparison else 1.0)
        return upper > (1 + _SMALLEST_CLIMB if earlier else 1.0) * best

    def _descends(self, record: TrialRecord) -> bool:
        """Whether memory ran out on a ladder that leads down, where a smaller value may fit."""
        return record.result.outcome is Outcome.OUT_OF_MEMORY and self._leads_down(record)

    def _leads_down(self, record: TrialRecord) -> bool:
        """Whether a ladder's values get smaller."""
        recipe = record.candidate.recipe
        values = [c.value for c in self._planned if c.recipe == recipe and not c.already_on]
        numbers = [value for value in values if not isinstance(value, str)]
        return len(numbers) > 1 and numbers[0] > numbers[-1]

    def _repeat_baseline(self) -> None:
        """Measure the baseline once more, and again when it stands out: a slow minute of the host is no noise floor."""
        if not self._affordable(reserve_s=0.0):
            return
        judge = self._known_judge
        spec = self._bench.spec("baseline", {})
        if judge.spread.random:
            # Another draw of what the steps draw: the more are seen, the better their spread is known.
            spec = replace(spec, stream_seed=self.request.seed + 2 + len(judge.repeats))
        result = self._bench.run(spec)
        if judge.stands_out(result) and self._affordable(reserve_s=0.0):
            again = self._bench.run(spec)
            if again.measured and not judge.stands_out(again):
                judge.add_outlier(result)
                self._say(
                    f"one run of the baseline took {speed(result)[0] / speed(again)[0]:.2f} times as long as the next: "
                    "it does not count as noise, and close calls are settled up to that difference"
                )
            else:
                judge.add_repeat(result)
            result = again
        judge.add_repeat(result)
        self._judge_again()

    def _judge_again(self) -> None:
        """Every verdict anew, after the baseline was measured once more: a machine that drifts tells less apart."""
        judge = self._known_judge
        self._emit(events.BaselineMeasured(judge.baseline_record()))
        for record in list(self._records.values()):
            if record.result.measured:
                self._keep(judge.again(record))

    def _new_search(self) -> StackSearch:
        return StackSearch(
            self._bench,
            self._known_judge,
            self.catalog,
            allowed=self._allowed,
            reserve_s=self._stack_reserve_s,
            applies=self._applies,
            progress=self._stack_grew,
            say=lambda text: self._say(text, "warning"),
            combined=self._combined,
            decision=self._decisions.of,
        )

    def _proposed_for(self, stack: Stack) -> list[Candidate]:
        """What recipes propose in the stack's company only: an attention kernel that needs half precision, say."""
        facts = replace(self._known_facts, workload=_under(self._known_facts.workload, stack.settings))
        proposals = self.catalog.propose(facts, only=self.request.only, skip=(*self.request.skip, CONTROL))
        planned = {candidate.name for candidate in self._planned}
        new = [c for c in proposals.candidates if c.name not in planned and c.key not in stack.settings]
        added = tuple(c for c in new if not (c.already_on or c.recipe in self._passed_over or self._waits(facts, c)))
        if added:
            proposing = {candidate.recipe for candidate in added}
            self._skipped = {recipe: why for recipe, why in self._skipped.items() if recipe not in proposing}
            self._planned = (*self._planned, *added)
            self._tell_plan()
        return list(added)

    def _waits(self, facts: Facts, candidate: Candidate) -> bool:
        decision = self._decisions.of(candidate.recipe)
        return waits(self.catalog, facts, candidate, allow=self.request.allow, decision=decision)

    def _try_on_top(
        self, search: StackSearch, candidates: Iterable[Candidate], *, reserve_s: Callable[[], float] | None = None
    ) -> None:
        """Compile on top of the stack, and try what needs its company; then partners in the new company."""
        reserve_s = reserve_s or self._confirmation_s
        tried: list[Candidate] = []
        for candidate in candidates:
            self._progress()
            self._planned_left = max(0, self._planned_left - 1)
            if self._reused(candidate):
                continue
            cost = self.catalog.cost({**search.stack.settings, **candidate.settings})
            if self._decisions.rejects(candidate.recipe):
                self._skip(candidate, REJECTED)
                continue
            if not self._affordable(cost=cost, reserve_s=reserve_s()):
                self._skip(candidate, self._too_late(cost=cost))
                continue
            record = search.try_expensive(candidate)
            if record is None:
                self._skip(candidate, f"it cannot be combined with the stack so far ({search.stack.settings})")
                continue
            self._keep(record)
            tried.append(candidate)
        if tried:
            search.add_partners(self._records.values())

    def _solo_expensive(self, candidates: Iterable[Candidate]) -> None:
        """What compilation is worth alone, when there is time left: the person wants to know, the stack does not."""
        for candidate in candidates:
            known = self._records.get(candidate.name)
            skipped = known is not None and known.result.outcome is Outcome.SKIPPED
            if known is None or not (skipped or (known.result.measured and not known.alone)):
                continue
            if self._decisions.rejects(candidate.recipe):
                continue
            if self._affordable(cost=self.catalog.cost(candidate.settings), reserve_s=0.0):
                self._solo(candidate, reserve_s=0.0)
        self._rank()

    def _confirm(self, stack: Stack) -> None:
        if stack.result is None or not stack.settings:
            self._no_stack(stack)
            return
        record = self._known_judge.stack(stack.settings, stack.result, stack.dropped)
        together = self._side_by_side(stack.result)
        proven = self._confirmed_side_by_side(record) if together else self._confirmed_in_turn(record)
        self._keep_proven(proven)

    def _settle_promising(self) -> None:
        """On a noisy machine, see in turn with the baseline which candidates help, before there is a stack.

        Only where two processes take turns block by block: whole trials in turn take longer than trying combinations.
        """
        judge = self._known_judge
        if judge.noise_floor > _NOISY and not self._known_facts.on_cuda:
            allowed, by = list(filter(self._allowed, self._records.values())), judge.yardstick
            promising = [r for r in allowed if _seems_faster(r) or by.may_keep_speed(r.result, r.comparison)]
            self._confirm_close_calls(promising, reserve_s=self._reserve_s())

    def _confirm_close_calls(self, records: Iterable[TrialRecord], *, reserve_s: float = 0.0) -> None:
        """Measure again, in turn with the baseline, what one trial has not decided; what is recommended first."""
        judge = self._known_judge
        undecided = [record for record in records if record.alone and judge.is_close_call(record)]
        helps = judge.yardstick.helps
        for record in sorted(undecided, key=lambda r: (not helps(r.result, r.comparison), *_by_interest(r))):
            name = record.candidate.name
            unwanted = record.candidate.recipe == CONTROL or self._decisions.rejects(record.candidate.recipe)
            if unwanted or not self._confirmation_fits(record, reserve_s):
                continue
            evidence = self._in_turn_with_baseline(record)
            if isinstance(evidence, TrialResult):
                self._say(f"{name} could not be confirmed: {evidence.reason}", "warning")
                continue
            self._records[name] = judge.confirm(record, evidence)
            self._judge_again()
        self._rank()

    def _confirmation_fits(self, record: TrialRecord, reserve_s: float) -> bool:
        once_s = self._budget.expected_s() + max(record.result.wall_s or 0.0, self._budget.expected_s())
        return self._budget.allows(PAIRS_PER_CANDIDATE * once_s, reserve_s=reserve_s)

    def _in_turn_with_baseline(self, record: TrialRecord) -> Confirmation | Runs | TrialResult:
        name, settings = record.candidate.name, record.settings
        if self._side_by_side(record.result):
            outcome = confirm_side_by_side(self._bench, settings, name=name, pairs=BLOCKS_PER_CANDIDATE)
            if isinstance(outcome, Confirmation):
                return outcome
        cost = self.catalog.cost(settings)
        return confirm_in_turn(self._bench, settings, cost, name=name, pairs=PAIRS_PER_CANDIDATE)

    def _side_by_side(self, result: TrialResult) -> bool:
        """Whether two live processes may take turns: not on CUDA, where even an idle one changes the other's times."""
        if self._known_facts.on_cuda:
            return False
        return fits_together(self._known_judge.baseline, result, self._available_bytes())

    def _confirmed_side_by_side(self, record: StackRecord) -> StackRecord:
        outcome = confirm_side_by_side(self._bench, record.settings)
        if isinstance(outcome, Confirmation):
            confirmed = self._known_judge.confirmed(record, outcome)
            self._known_judge.add_null(outcome.old)
            self._judge_again()
            return confirmed
        self._say(f"the stack could not be confirmed side by side: {outcome.reason}", "warning")
        return self._confirmed_in_turn(record)

    def _confirmed_in_turn(self, record: StackRecord) -> StackRecord:
        outcome = confirm_in_turn(self._bench, record.settings, self.catalog.cost(record.settings))
        if isinstance(outcome, Runs):
            confirmed = self._known_judge.confirmed_by_runs(record, outcome.new, outcome.old)
            for run in outcome.old:
                self._known_judge.add_repeat(run)
            self._judge_again()
            return confirmed
        self._say(f"the stack could not be confirmed: {outcome.reason}", "warning")
        return record

    def _keep_proven(self, record: StackRecord) -> None:
        """Keep a stack that its confirmation shows to serve the goal; another is emptied, and the person told."""
        by = self._known_judge.yardstick
        if by.worth(record.result, record.comparison):
            self._keep_stack(record)
            return
        why = f"together they {by.goal.not_better(2)}"
        if not by.goal.fits(record.result):
            why = "together they take more than the memory limit"
        self._say(f"{why}, so none is kept: {Settings(record.settings)}", "warning")
        self._no_stack(Stack(dropped={**record.dropped, **dict.fromkeys(record.settings, why)}))

    def _no_stack(self, stack: Stack) -> None:
        """Nothing helps: the stack is empty, which is the baseline."""
        self._keep_stack(self._known_judge.empty_stack(stack.dropped))

    # --- the person's decisions --------------------------------------------------------------------------------

    def _drop_rejected(self) -> None:
        if self._search is not None:
            self._search.drop_rejected()

    def _bring_in_line(self, search: StackSearch) -> bool:
        """Have the search follow what was decided since: the accepted tried, the rejected out, and then grown again.

        False when there is no time for it.
        """
        while (version := self._decisions.version) != self._searched:
            self._run_solo(list(self._accepted_meanwhile()))
            if not search.drop_rejected():
                return False
            search.grow(self._records.values())
            self._tell_refused(search.stack)
            self._searched = version
        return True

    def _tell_refused(self, stack: Stack) -> None:
        """Why something that the person accepted is not in the stack all the same."""
        for recipe, decision in self.decisions().items():
            key = self.catalog[recipe].key
            if decision is Decision.ACCEPTED and key not in stack.settings:
                why = stack.dropped.get(key, "alone it is not faster, or it needs more memory than there is")
                self._say(f"{recipe} is accepted, but not in the stack: {why}", "warning")

    def _confirm_found(self) -> None:
        """Confirm the stack that was found, unless it holds what the person rejected since, and there is no time."""
        assert self._search is not None, "there is a search once candidates are planned"
        self._stage("confirmation")
        if self._search.drop_rejected():
            stack = self._search.stack
            self._confirm(stack)
            self._followed = self._searched
            if self._stack is not None and self._decisions.version == self._followed:
                found = Stack(stack.settings, stack.result, dict(stack.dropped))
                self._found[frozenset(self.decisions().items())] = (found, self._stack)
        self._rank()

    def _follow(self) -> None:
        """Find and confirm the stack that follows what was decided since; one that was found before is taken again."""
        search = self._search = self._search or self._new_search()
        version, known = self._decisions.version, self._found.get(frozenset(self.decisions().items()))
        if known is not None:
            stack, record = known
            search.stack = Stack(stack.settings, stack.result, dict(stack.dropped))
            self._searched = self._followed = version
            self._keep_stack(record)
            self._rank()
            return
        self._stage("stack")
        if self._bring_in_line(search):
            self._confirm_found()

    def _follow_in_time(self) -> None:
        """As :meth:`_follow` while the session runs: when something was decided, and the budget has the time."""
        if self._decisions.version != self._followed and self._affordable(reserve_s=self._confirmation_s()):
            stage = self._stage_now
            self._follow()
            self._stage(stage)

    def _rework(self) -> None:
        self._begin_anew()
        self._follow()
        self._stage("done")

    def _begin_anew(self) -> None:
        """Give what is measured after the session as much time as the session had."""
        self._share, self._planned_left = 0.0, 0
        self._budget = self._bench.budget = self._budget.renewed()

    def _retry(self, name: str) -> None:
        candidate = self._records[name].candidate
        self._begin_anew()
        self._found.clear()
        self._known_judge.evidence.pop(name, None)
        self._solo(candidate)
        self._rank()

    # --- small parts -------------------------------------------------------------------------------------------

    @property
    def _known_facts(self) -> Facts:
        assert self._facts is not None, "the facts are known once the baseline is measured"
        return self._facts

    @property
    def _known_judge(self) -> Judge:
        assert self._judge is not None, "there is a judge once the baseline is measured"
        return self._judge

    def _run_aside(self, name: str, work: Callable[[], None]) -> None:
        """Run work after the session; being stopped leaves the session as it was, and able to do more."""
        with self._lock:
            if self._closed:
                return
            self._runner.resume()
            self._aside = name
        try:
            self._guarded(work, finishes=False)
        finally:
            with self._lock:
                self._aside = ""

    def _guarded(self, work: Callable[[], None], *, finishes: bool) -> None:
        """Run work; whatever it raises becomes an event."""
        cancelled = False
        try:
            work()
        except SessionCancelledError:
            cancelled = finishes
            self._salvage()
        except AdvisorError as error:
            self.exit_code = error.exit_code
            self._emit(events.SessionFailed(error.message, error.hint, error.details, int(error.exit_code)))
        except Exception as error:  # our own bug: the person sees it, and what was measured is kept
            self.exit_code = ExitCode.BUG
            self._emit(
                events.SessionFailed(
                    f"perf-advisor has a bug: {type(error).__name__}: {error}",
                    "Please report it with the details; what was measured is kept.",
                    traceback.format_exc(),
                    int(ExitCode.BUG),
                )
            )
        if cancelled:
            self.exit_code = ExitCode.INTERRUPTED
        if finishes:
            self._emit(events.SessionFinished(cancelled, self._budget.spent_s, self._bench.time_spent()))

    def _salvage(self) -> None:
        """The best that is known when a session ends early: ranked, and the stack as far as it was measured."""
        if self._judge is not None and self._facts is not None:
            self._rank()

    def _allowed(self, record: TrialRecord) -> bool:
        return may_enter(
            self.catalog,
            self._known_facts,
            record,
            self._known_judge.yardstick,
            decision=self._decisions.of(record.candidate.recipe),
        )

    def _affordable(self, *, cost: float = 0.0, reserve_s: float | None = None) -> bool:
        reserve = self._reserve_s() if reserve_s is None else reserve_s
        return self._budget.allows(self._budget.expected_s(cost=cost), reserve_s=reserve)

    def _reserve_s(self) -> float:
        stack_s = _STACK_TRIALS_RESERVED * self._budget.expected_s()
        wanted_s = stack_s + self._compile_s() + self._confirmation_s()
        return min(wanted_s, _LARGEST_RESERVE * self._budget.total_s)

    def _stack_reserve_s(self) -> float:
        """What growing the stack leaves for what comes after it: a compilation, while one is to come, and the proof."""
        return self._compile_s() + self._confirmation_s()

    def _applies(self, candidate: Candidate, settings: Mapping[str, Value]) -> bool:
        """Whether a recipe would propose a candidate to somebody who has these settings (and not its own) already."""
        others = Settings(settings).without(candidate.key)
        facts = replace(self._known_facts, workload=_under(self._known_facts.workload, others))
        return self.catalog.proposes(candidate, facts)

    def _compile_s(self) -> float:
        """One compilation, while one is still to come and the budget is of a size that can pay it."""
        expected_s = self._budget.expected_s(cost=self._compile_cost) if self._compile_cost else 0.0
        return expected_s if expected_s < _LARGEST_COMPILE * self._budget.total_s else 0.0

    def _confirmation_s(self) -> float:
        """Two processes that start and warm up, and the alternate blocks."""
        cost = self.catalog.cost(self._stack.settings) if self._stack else 0.0
        # The compiler's cache on disk is warm by then.
        warm_compile_s = 0.5 * self._budget.expected_s(cost=cost) if cost else 0.0
        return 2 * self._budget.expected_s() + 3 * self._budget.measure_s + warm_compile_s

    def _available_bytes(self) -> int:
        facts = self._known_facts
        return facts.workload.device_memory_bytes or facts.hardware.host.memory_available_bytes

    def _reused(self, candidate: Candidate) -> bool:
        """Whether a resumed session measured this candidate already; its record is then kept."""
        old = self._past.trials.get(candidate.name) if self._past else None
        if old is None or old.result.outcome is Outcome.SKIPPED:
            return False
        self._keep(self._known_judge.record(candidate, old.settings, old.result))
        return True

    def _skip(self, candidate: Candidate, reason: str) -> None:
        self._keep(TrialRecord(candidate, candidate.settings, TrialResult(Outcome.SKIPPED, reason)))

    def _too_late(self, *, cost: float = 0.0) -> str:
        needed = self._budget.expected_s(cost=cost)
        return f"it needs about {needed:.0f} s, more than the budget has left; raise --budget to try it"

    def _keep(self, record: TrialRecord) -> None:
        self._records[record.candidate.name] = record
        self._emit(events.TrialMeasured(record))
        self._progress()

    def _keep_stack(self, record: StackRecord) -> None:
        self._stack = record
        self._emit(events.StackMeasured(record))

    def _stack_grew(self, stack: Stack) -> None:
        if stack.result is not None and self.request.goal.fits(stack.result):
            self._stack = self._known_judge.stack(stack.settings, stack.result, stack.dropped)
            self._emit(events.StackMeasured(self._stack))
            self._rank()
            self._progress()

    def _combined(self, settings: Settings, result: TrialResult) -> None:
        """Keep what several settings did together: a choice between time and memory."""
        if result.peak_reserved_bytes is not None:
            comparison = self._known_judge.compare(result)
            point = ParetoPoint(str(settings), dict(settings), comparison, result.peak_reserved_bytes)
            self._emit(events.CombinationMeasured(point))
            self._combinations.append(point)

    def _warn_of_the_limit(self) -> None:
        """Say plainly that nothing stays within the memory limit, and what came nearest to it."""
        limit_bytes = self.request.memory_limit_bytes
        own = self._known_judge.yardstick.baseline.result.peak_reserved_bytes
        if limit_bytes is None or own is None:
            return
        alone = [
            ParetoPoint(record.candidate.name, dict(record.settings), record.comparison, peak)
            for record in self._records.values()
            if self._allowed(record) and (peak := record.result.peak_reserved_bytes) is not None
        ]
        least = least_memory([ParetoPoint("baseline", {}, None, own), *alone, *self._combinations])
        if least is None or least.peak_reserved_bytes <= limit_bytes:
            return
        what = f"with {Settings(least.settings)}" if least.settings else "your own settings"
        self._say(
            f"nothing that was measured stays within the memory limit of {format_bytes(limit_bytes)}: the least was "
            f"{format_bytes(least.peak_reserved_bytes)}, {what}; raise --memory-limit, or make the batch smaller",
            "warning",
        )

    def _warn_of_noise(self) -> None:
        floor = self._known_judge.noise_floor
        if floor > _NOISY:
            self._say(
                f"this machine was noisy: identical runs differed so much that effects below {floor:.0%} cannot be "
                "told from noise; end other programs and run again for finer verdicts",
                "warning",
            )

    def _rank(self) -> None:
        stack = self._stack.settings if self._stack else {}
        by = self._known_judge.yardstick
        ranked = recommend(self.catalog, self._known_facts, self._records.values(), by, stack)
        self._emit(events.Ranked(ranked))

    def _stage(self, stage: str) -> None:
        self._stage_now = stage
        self._emit(events.StageStarted(stage))
        self._progress()

    def _progress(self) -> None:
        expected_s = self._planned_left * self._budget.expected_s() + self._reserve_s()
        left_s = min(self._budget.left_s, expected_s) if self._planned else self._budget.left_s
        spent_s = self._budget.spent_s
        share = spent_s / (spent_s + left_s) if left_s else 1.0
        # What is left is an estimate that grows when trials turn out slow; a bar that runs backwards helps nobody.
        self._share = max(self._share, share)
        self._emit(events.ProgressMade(self._share, left_s))

    def _say(self, text: str, severity: str = "information") -> None:
        self._emit(events.Said(text, severity))

    def _emit(self, event: events.Event) -> None:
        self._journal.record(event)
        self._post(event)


def _under(workload: WorkloadFacts, settings: Mapping[str, Value]) -> WorkloadFacts:
    """The facts as they are when these settings are applied over the user's own."""
    loader = workload.loader
    if loader is not None and "data.num_workers" in settings:
        workers = int(settings["data.num_workers"])
        loader = replace(loader, num_workers=workers, persistent_workers=workers > 0)
    return replace(workload, loader=loader, current={**workload.current, **settings})


def _end_of_ladder(record: TrialRecord) -> str:
    """Why the larger values of a ladder are not tried."""
    if record.result.outcome is Outcome.OUT_OF_MEMORY:
        return f"{record.candidate.name} ran out of memory, so larger values would too"
    if not record.result.measured:
        return f"{record.candidate.name} failed: {record.result.reason}"
    return f"{record.candidate.name} was no better than the value before it"


def _seems_faster(record: TrialRecord) -> bool:
    """Whether only the machine's noise keeps a candidate from being called faster."""
    undecided = record.verdict is Verdict.NO_DIFFERENCE and record.comparison is not None
    return undecided and record.comparison is not None and record.comparison.ci_low > 1


def _by_interest(record: TrialRecord) -> tuple[bool, bool, float]:
    """Close calls in the order of what a person wants settled: the fastest, then the slower, then the undecided."""
    speedup = record.comparison.speedup if record.comparison else 0.0
    return record.verdict is Verdict.NO_DIFFERENCE, record.verdict is not Verdict.FASTER, -speedup


def _baseline_problem(result: TrialResult) -> str:
    if result.outcome is Outcome.FAILED:
        return result.reason
    return f"the baseline could not be measured: {result.reason or result.outcome.value}"
