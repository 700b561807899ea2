"""The session: the baseline, the search and the final remarks. Runs in its own thread and posts events."""

import math
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from advisor.errors import AdvisorError, TargetError, refusal_of
from advisor.experiment import caveats, events, policy
from advisor.experiment.consent import Consent
from advisor.experiment.control import Decision
from advisor.experiment.known import Kind, Known, Move
from advisor.experiment.measuring.baseline import baseline_score, check_energy, first_run
from advisor.experiment.measuring.bench import Bench, SessionCancelledError
from advisor.experiment.measuring.budget import Budget, expected_compile_s
from advisor.experiment.measuring.move_trials import MoveTrials
from advisor.experiment.measuring.verification import verify
from advisor.experiment.moves import moves
from advisor.experiment.past.journal import Journal, PastSession
from advisor.experiment.past.resuming import check_same_machine, hints_for, save_hints, take_over, workload_name
from advisor.experiment.plan import COMPILE_MODE, Plan
from advisor.experiment.ranking import CONTROL
from advisor.experiment.reporting import Reporter
from advisor.experiment.request import Request
from advisor.experiment.scaling.gpus import SEVERAL, gpus_in_use, spreads_itself, why_not_several
from advisor.experiment.scaling.rank_search import RankSearch, knowledge_before
from advisor.experiment.search import search
from advisor.experiment.state import SessionState
from advisor.judging.judge import Judge
from advisor.judging.numerics import finite, own_rounding
from advisor.judging.runs import prior_spread
from advisor.machine.hardware import inspect_hardware
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Exported, Facts, Outcome, StackRecord, TimeSpent, TrialRecord, TrialResult, Value, World
from advisor.runner.trials import Runner
from advisor.source.reading import read_sources, relevant

_REWORK = "rework"
_MOST_READ = 40  # of the user's modules, for habits; a count


class Session:
    """``emit`` is called in the thread that runs the session or makes the decision.

    ``run``, ``rework``, ``retry``, ``try_more`` and ``verify`` block: call them in a thread. Everything else may be
    called from any thread at any time.

    ``past`` continues an interrupted session: its measurements and decisions are kept, and the baseline is measured
    once more. ``clock`` is the budget's, in seconds.
    """

    def __init__(
        self,
        request: Request,
        runner: Runner,
        emit: Callable[[events.Event], None],
        journal: Journal,
        *,
        past: PastSession | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._past_session = past
        self._past = SessionState.of(past.events if past else ())
        self.request = request
        self.catalog: Catalog = load_catalog(request.recipe_folders)
        self._runner = runner
        self._journal = journal
        self._reporter = Reporter(emit, journal, self._past if past else None)
        self._lock = threading.Lock()
        self._closed = False
        self._running_afterwards = ""
        self._in_ranks = spreads_itself(request)
        # Seconds of the budget reserved for the search on several GPUs.
        is_kept = request.wants_several and not self._in_ranks
        self._several_s = request.budget_s * (1 - policy.ONE_GPU) if is_kept else 0.0
        budget = Budget(request.budget_s - self._several_s, clock, self.catalog)
        self._bench = Bench(request, runner, budget, journal, emit=self._reporter.emit)
        self._trials = MoveTrials(self._bench, self._reporter)
        self._follows_decisions = False  # whether the search has ended under the decisions that it knows of

    # --- what a user interface calls ---------------------------------------------------------------------------

    def run(self) -> None:
        """Run the whole session; returns when it is over or cancelled. Never raises."""
        self._guarded(self._run, finishes=True)

    def cancel(self) -> None:
        """End the running trial and the session at once. What was measured is kept."""
        with self._lock:
            self._closed = True
        self._runner.cancel()
        self._bench.may_go_on.set()

    def stop(self) -> None:
        """End a running ``rework``, ``retry`` or ``verify`` at once. The session and its measurements stay."""
        with self._lock:
            if self._running_afterwards:
                self._runner.cancel()
                self._bench.may_go_on.set()

    def skip(self) -> None:
        """End only the running trial. Ignored before the baseline is measured, since everything else needs it."""
        if self._trials.known is not None:
            self._runner.skip()

    def pause(self) -> None:
        """Start no further trial until :meth:`go_on`. The running trial goes on to its end. The budget stops too."""
        self._bench.may_go_on.clear()

    def go_on(self) -> None:
        """Go on after :meth:`pause`."""
        self._bench.may_go_on.set()

    def extend(self, seconds: float) -> None:
        """Give the session this much more time."""
        self._bench.budget.extended_s += seconds
        if (known := self._trials.known) is not None:
            self._trials.post_progress(known)

    def finish(self) -> None:
        """End the running trial and the search, and report as at the end of any session."""
        if self._trials.known is None:
            self.cancel()
            return
        self._bench.ending = True
        self.go_on()
        self._runner.skip()

    def decide(self, recipe_id: str, decision: Decision | None, value: Value | None = None) -> None:
        """Record the person's decision on a recipe (None undoes it); a running session follows it at its next step.

        With a ``value``, only that value of the recipe is accepted. A running ``rework`` does not know of the decision,
        so it is ended: call it again.
        """
        decisions, values = self._reporter.decisions()
        if (decisions.get(recipe_id), values.get(recipe_id)) == (decision, value):
            return
        self._reporter.emit(events.Decided(recipe_id, decision, value))
        with self._lock:
            if self._running_afterwards == _REWORK:
                self._runner.cancel()

    def rework(self) -> None:
        """Find the stack again under the present decisions; does nothing if it follows them already."""
        if self._trials.known is None:
            return
        consent = self._trials.known.plan.consent
        if not (self._follows_decisions and consent == self._reporter.consented(consent)):
            self._run_afterwards(_REWORK, lambda: self._go_on(None, follow=True))

    def retry(self, name: str) -> None:
        """Run a candidate's trial again."""
        if self._trials.known is not None and name in self._reporter.state.trials:
            self._run_afterwards(name, lambda: self._retry(name))

    def verify(self, exported: Exported, stack: StackRecord) -> None:
        """Time the target's loop with an exported file and without it."""
        self._run_afterwards(
            "verify", lambda: self._reporter.emit(events.ExportVerified(verify(self._bench, exported, stack)))
        )

    def try_more(self, seconds: float | None = None) -> None:
        """Continue the search after the session, for this long or as long as it had before."""
        if self._trials.known is not None:
            self._run_afterwards("more", lambda: self._go_on(seconds))

    # --- the stages --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._announce()
        if self._closed:
            raise SessionCancelledError
        hardware = inspect_hardware()
        self._reporter.emit(events.HardwareFound(hardware))
        check_energy(self.request, hardware)
        gpus = gpus_in_use(self.request, hardware)  # too few GPUs are an error before anything is measured
        if self._in_ranks and gpus > 1:
            self._bench.world = World(gpus, script=True)
        self._read_source()
        self._trials.enter("baseline")
        facts, result = first_run(self._bench, hardware)
        if self._bench.world is not None and not (facts.workload.own_step and facts.workload.spread_already):
            how = "by a library's loop" if facts.workload.spread_already else "apart: no process group joins them"
            raise TargetError(
                f"the ranks of {self.request.target.target} train {how}.",
                "Leave --gpus out; or have its own loop train on several GPUs, with its arguments after --.",
            )
        self._read_source(*(place.file for place in facts.workload.places), *[*facts.sources][:_MOST_READ])
        facts = replace(facts, findings=relevant(self._reporter.state.findings, facts))
        if self.request.evaluate:
            result = replace(result, score=baseline_score(self._bench))
        self._reporter.sources = dict(facts.sources)
        self._begin(facts, result)
        tries_several = self.request.wants_several and self._bench.world is None  # a script spreads itself over GPUs
        if tries_several and (reason := why_not_several(facts) if gpus > 1 else "there is only one"):
            self._reporter.warn(f"several GPUs are not measured: {reason}")
            self._bench.budget.extended_s += self._several_s
            tries_several = False
        known = self._trials.publish(self._current)
        if not tries_several and not known.plan.candidates:
            self._reporter.warn(caveats.of_nothing_to_try(known.plan))
        self._search(known)
        if tries_several:
            self._search_on_several(gpus, self._current)
        self._conclude(self._current)

    def _search_on_several(self, gpus: int, known: Known) -> None:
        """Carry the stack over to several GPUs, and search there with the time that is left."""
        self._bench.budget.extended_s += self._several_s
        self._trials.enter(SEVERAL)
        self._bench.end_compiling_beside()
        self._runner.forget_build()  # ranks build the model themselves and need its memory
        before = knowledge_before(known, gpus)
        scaling = RankSearch(self._bench, before, known.found, self._reporter.consented).run()
        if not (one := scaling.judge.baseline).measured:
            self._reporter.warn(f"several GPUs are not measured: {one.reason.rstrip('.')}. {one.hint}")

    def _announce(self) -> None:
        for problem in self.catalog.problems:
            self._reporter.warn(f"a recipe could not be loaded: {problem}")
        if self._past_session is not None and self._past_session.damage:
            self._reporter.post(events.Said(self._past_session.damage, "warning"))  # not saved: the journal shows it
        decisions, values = self._reporter.decisions()
        for recipe, decision in decisions.items():
            self._reporter.post(events.Decided(recipe, decision, values.get(recipe)))  # the journal has it already
        self._reporter.emit(events.GoalSet(self.request.goal, self._journal.session_id))
        for recipe, value in self.request.accept:
            self.decide(recipe, Decision.ACCEPTED, value)

    def _read_source(self, *files: str) -> None:
        """Read the named scripts and ``files`` for the user's habits. The trials then measure what the habits cost."""
        target = self.request.target
        readings = read_sources(target.target, target.directory, (*self.request.scripts, *files))
        read = tuple(reading.file for reading in readings)
        if read != self._reporter.state.source_files:
            findings = tuple(finding for reading in readings for finding in reading.findings)
            problems = tuple(reading.problem for reading in readings if reading.problem)
            self._reporter.emit(events.SourceRead(read, findings, problems))

    def _begin(self, facts: Facts, result: TrialResult) -> None:
        """Set up the knowledge after the baseline. A continued session also takes over its earlier measurements."""
        budget = self._bench.budget
        budget.guessed_compile_s = expected_compile_s(facts)
        if facts.workload.current.get(COMPILE_MODE, "none") != "none":  # the user's own step compiles as much
            budget.guessed_compile_s = min(budget.guessed_compile_s, result.warmup_s or math.inf)
        by_score = bool(self.request.evaluate)
        consent = self._reporter.consented(
            Consent(self.catalog, facts.workload.mode, self.request.allow, by_score=by_score)
        )
        judge = Judge(
            self.catalog,
            facts.workload.mode,
            result,
            goal=self.request.goal,
            own_rounding=own_rounding(self.catalog, facts.workload),
            prior=prior_spread(facts),
            crowded=facts.hardware.host.is_crowded,
        )
        hints = hints_for(workload_name(self.request.target, facts))
        plan = Plan(self.catalog, self.request, facts, consent, hints=hints)
        known = Known.begin(plan.with_facts(facts), judge)
        if self._past_session is not None and self._past.facts is not None and self._past.baseline is not None:
            check_same_machine(self._past.facts, facts)
            known = take_over(known, self._past, self._past_session.events)
            self._reporter.emit(events.RunMeasured({}, result))  # a repeat of the past session's baseline
        self._trials.known = known
        self._reporter.emit(events.FactsFound(known.plan.facts))
        self._reporter.warn(caveats.of_other_programs(judge, facts), "company")
        if not finite(result):
            self._reporter.warn(
                "the baseline's own losses or outputs are not finite, so no numerics can be compared: check the data, "
                "the loss and the learning rate"
            )

    def _search(self, known: Known, *, wanted: Callable[[Move], bool] = lambda move: True) -> None:
        """Search from a state under the person's decisions."""
        self._follows_decisions = False
        self._trials.wanted = wanted
        search(known, self._trials, moves)
        self._follows_decisions = True

    def _conclude(self, known: Known) -> None:
        """Post warnings and the reasons for settings that were left out, and save hints for the next session."""
        self._reporter.report_stack(known, at_end=True)
        self._report_left_out(known)
        budget = self._bench.budget
        if known.found and not (self.request.only or self.request.skip):  # a session with few recipes says too little
            save_hints(workload_name(self.request.target, known.plan.facts), known.found)
        too_short = caveats.of_the_budget(known, budget.spent_s, budget.total_s + budget.extended_s)
        for warning in (caveats.unfinished(self._bench), too_short, *caveats.of_the_limits(known)):
            self._reporter.warn(warning)
        self._reporter.warn(caveats.of_noise(known), "noise")
        self._trials.enter("done")
        self._trials.post_progress(known)

    def _report_left_out(self, known: Known) -> None:
        """Say why candidates were left out and whether each accepted recipe is in the stack, with the reason if not."""
        for candidate, reason in caveats.left_out(known, self._bench):
            record = TrialRecord(candidate, candidate.settings, TrialResult(Outcome.SKIPPED, reason))
            self._reporter.emit_new(events.TrialMeasured(record), candidate.name)
        for recipe, refusal in caveats.refusals(known, self._bench):
            about = f"accepted {recipe}"
            self._reporter.warn(refusal, about)
            if not refusal:
                self._reporter.withdraw(about, f"{recipe} is in the combination now")

    # --- after the session -------------------------------------------------------------------------------------

    def _retry(self, name: str) -> None:
        known = self._current
        record = self._reporter.state.trials[name]
        settings = Settings(record.candidate.settings)
        self._bench.restart()
        kind = Kind.TURNS if known.judge.took_turns(settings) else Kind.ALONE  # report the figure of the turns
        move = Move(kind, settings, 1.0, name, candidate=record.candidate)
        if record.candidate.recipe == CONTROL:
            move = Move(Kind.CONTROL, Settings(), 1.0, name)
        evidence = self._trials.measure(move, known)
        self._trials.known = known.after(move, evidence)
        self._reporter.report(self._current)

    def _go_on(self, seconds: float | None, *, follow: bool = False) -> None:
        """Continue the search, for this long or as long as before; ``follow``: only as far as decisions require."""
        self._bench.restart(seconds)
        before = self._trials.publish(self._current)
        self._search(before, wanted=(lambda move: _follows_decisions(move, before)) if follow else lambda move: True)
        if self._current.judge.runs == before.judge.runs and not follow:
            self._reporter.emit(events.Said("nothing is left to try that fits into that time"))
        self._report_left_out(self._current)
        self._trials.enter("done")

    def _run_afterwards(self, name: str, work: Callable[[], None]) -> None:
        """Run work after the session. If it is stopped, the session stays as it was and can do more."""
        with self._lock:
            if self._closed:
                return
            self._runner.resume()
            self._running_afterwards = name
        try:
            self._guarded(work, finishes=False)
        finally:
            with self._lock:
                self._running_afterwards = ""

    # --- how it ends, and what it tells ------------------------------------------------------------------------

    @property
    def _current(self) -> Known:
        assert self._trials.known is not None, "the baseline was measured"
        return self._trials.known

    def _guarded(self, work: Callable[[], None], *, finishes: bool) -> None:
        """Run work; whatever it raises becomes an event."""
        cancelled = False
        try:
            work()
        except SessionCancelledError:
            cancelled = finishes
            if not finishes:  # no trial runs any more, so the budget's time must not go on
                self._reporter.emit(events.Paused(False))
                self._reporter.emit(events.ProgressMade(1.0, 0.0))
        except AdvisorError as error:
            self._reporter.fail(error)
        except Exception as error:  # a bug of perf-advisor: the person sees it, and what was measured is kept
            bug = AdvisorError(
                f"perf-advisor has a bug: {type(error).__name__}: {error}",
                "Please report it with the details; what was measured is kept.",
                "".join(traceback.format_exception(error)),
            )
            self._reporter.fail(refusal_of(error) or bug)
        self._bench.end_compiling_beside()
        if finishes:
            budget = self._bench.budget
            spent = TimeSpent(self._bench.measuring_s, self._bench.warming_up_s, budget.spent_s)
            self._reporter.emit(events.SessionFinished(cancelled, budget.spent_s, spent))


def _follows_decisions(move: Move, known: Known) -> bool:
    """Whether a move is needed to follow a decision, rather than to explore further."""
    if move.kind in (Kind.STACK, Kind.TURNS):
        return True
    if move.candidate is None:
        return False
    return known.plan.consent.accepts(move.candidate.recipe, move.candidate.value) or (
        move.kind is Kind.ADD and known.plan.is_usual(move.candidate)
    )
