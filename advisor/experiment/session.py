"""The session: baseline, control, trials, stack, confirmation. Runs in a thread of its own and posts events."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import filterfalse

from advisor.catalog import Catalog, load_catalog
from advisor.errors import AdvisorError, ExitCode
from advisor.experiment import events
from advisor.experiment.baseline import BaselineMeasurements, check_energy
from advisor.experiment.bench import Bench, SessionCancelledError
from advisor.experiment.budget import Budget
from advisor.experiment.caveats import warn_of_noise, warn_of_the_budget, warn_of_the_limit
from advisor.experiment.close_calls import CloseCalls
from advisor.experiment.context import SessionContext
from advisor.experiment.control import Decision
from advisor.experiment.decisions import Decisions
from advisor.experiment.following import Following
from advisor.experiment.head_start import start_interpreters
from advisor.experiment.hints import keep_hints, workload_name
from advisor.experiment.journal import Journal, PastSession
from advisor.experiment.planning import Planning
from advisor.experiment.progress import Progress
from advisor.experiment.request import Request
from advisor.experiment.reserves import Reserves
from advisor.experiment.schedule import Schedule
from advisor.experiment.solo import SoloTrials
from advisor.experiment.stack_confirmation import StackConfirmation
from advisor.experiment.stack_trials import StackTrials
from advisor.experiment.state import SessionState
from advisor.hardware import inspect_hardware
from advisor.records import Candidate, Finding
from advisor.runner import Runner
from advisor.source import read_sources

# What is kept back of the budget for candidates that are not usual while those that came in at once are checked.
_REST_SHARE = 0.15
# What is kept back of the budget for close calls while trials run whose recipes cannot be in the stack.
_CLOSE_CALLS_SHARE = 0.1
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
        self._lock = threading.Lock()
        self._closed = False
        self._aside = ""
        self.exit_code = ExitCode.OK
        self._context = context = self._new_context(SessionState.of(past.events) if past else None)
        self._decisions, self._progress = context.decisions, context.progress
        self._planning = planning = Planning(context)
        self._baseline = BaselineMeasurements(context, after_control=planning.pass_over_hopeless)
        self._stack_trials = stack_trials = StackTrials(context, planning)
        self._solo = solo = SoloTrials(context, planning, self._baseline, before_each=stack_trials.drop_rejected)
        self._close_calls = CloseCalls(context)
        self._following = Following(context, planning, solo, stack_trials, StackConfirmation(context))

    def _new_context(self, past: SessionState | None) -> SessionContext:
        request, catalog, budget = self.request, self.catalog, Budget(self.request.budget_s)
        bench = Bench(request, self._runner, budget, self._journal, self._emit, environment=catalog.environment)
        reserves = Reserves(bench)
        progress = Progress(bench, reserves, self._emit)
        return SessionContext(
            request=request,
            catalog=catalog,
            bench=bench,
            decisions=Decisions(past.decisions if past else {}),
            reserves=reserves,
            progress=progress,
            emit=self._emit,
            past=past,
        )

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
        if self._context.known_judge is not None and not self._following.up_to_date:
            self._run_aside(_REWORK, self._rework)

    def retry(self, name: str) -> None:
        """Run a candidate's trial again."""
        if self._context.known_judge is not None and name in self._context.records:
            self._run_aside(name, lambda: self._retry(name))

    # --- the stages --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        context, progress = self._context, self._progress
        self._announce()
        hardware = inspect_hardware()
        self._emit(events.HardwareFound(hardware))
        check_energy(self.request, hardware)
        findings = self._read_source()
        progress.enter("baseline")
        self._baseline.measure(hardware, findings)
        progress.enter("trials")
        planned = self._planning.plan()
        self._find_stack(planned)
        self._following.confirm_found()
        self._keep_hints()
        self._following.follow_in_time()
        progress.enter("others")
        progress.trials_left = len(self._planning.waiting)
        self._solo.run(self._those_that_waited(), reserve_s=_CLOSE_CALLS_SHARE * context.bench.budget.total_s)
        context.rank()
        progress.enter("close calls")
        self._close_calls.settle(list(context.records.values()))
        self._solo.price_expensive(planned.expensive)
        self._baseline.measure_on_the_cpu()
        self._following.follow_in_time()
        warn_of_the_budget(context)
        warn_of_the_limit(context)
        warn_of_noise(context)
        progress.enter("done")

    def _announce(self) -> None:
        for problem in self.catalog.problems:
            self._context.warn(f"a recipe could not be loaded: {problem}")
        for recipe, decision in self.decisions().items():
            self._post(events.Decided(recipe, decision))  # in the journal already
        self._emit(events.GoalSet(self.request.goal))

    def _read_source(self) -> tuple[Finding, ...]:
        """Read the user's files for habits, which the trials then price; nothing in them changes a setting."""
        target = self.request.target
        readings = read_sources(target.target, target.directory, self.request.scripts)
        findings = tuple(finding for reading in readings for finding in reading.findings)
        problems = tuple(reading.problem for reading in readings if reading.problem)
        self._emit(events.SourceRead(tuple(reading.file for reading in readings), findings, problems))
        return findings

    def _find_stack(self, planned: Schedule) -> None:
        """Two rounds: what most workloads gain from, compiled; then the rest, and what compiles for long.

        The first round spends a short budget on what is most likely to help; the second has the time that is left.
        """
        context, planning, trials = self._context, self._planning, self._stack_trials
        records, reserves, search = context.records, context.reserves, trials.search
        self._following.begin()
        quick = [c for c in planned.expensive if planning.is_quick(c)]
        slow = [c for c in planned.expensive if c not in quick]
        reserves.compile_cost = self.catalog.cost(quick[0].settings) if quick else 0.0
        self._solo.run(planned.prime)
        self._baseline.measure_control()
        self._baseline.probe_reference()
        self._close_calls.settle_promising()
        self._progress.enter("stack")
        search.grow(records.values(), planning.untried(planned), compiles_next=lambda: reserves.compile_s() > 0)
        trials.try_on_top(filter(planning.is_usual, planned.company), reserve_s=reserves.stack_s)
        reserves.compile_cost = 0.0
        start_interpreters(context, planned.rest, quick)
        trials.try_on_top(quick)
        search.settle_unproven(reserve_s=reserves.confirmation_s() + _REST_SHARE * context.bench.budget.total_s)
        proposed = trials.proposed()
        company = [*filterfalse(planning.is_usual, planned.company), *proposed]
        trials.try_on_top(filterfalse(planning.is_for_memory_only, company))
        if planned.rest:
            self._progress.enter("trials")
            self._solo.run(planned.rest)
            self._baseline.repeat()
            self._progress.enter("stack")
            search.grow(records.values())
            search.add_leftovers(records.values(), planning.untried(planned))
        trials.try_on_top([*trials.proposed(), *slow, *filter(planning.is_for_memory_only, proposed)])
        self._following.bring_in_line()
        search.leave_one_out()

    def _keep_hints(self) -> None:
        """Leave for the next session of this workload what to try first; a session of a few recipes says too little."""
        stack, request = self._context.stack, self.request
        if stack is not None and stack.settings and not (request.only or request.skip):
            name = workload_name(request.target, self._context.facts)
            keep_hints(name, stack.settings, self._context.bench.budget.compile_s)

    def _those_that_waited(self) -> Iterator[Candidate]:
        """What waited for the stack, which follows the person's decisions before each."""
        waiting = self._planning.waiting
        while waiting:
            self._following.follow_in_time()
            if waiting:
                yield waiting.pop(0)

    # --- after the session -------------------------------------------------------------------------------------

    def _rework(self) -> None:
        self._begin_anew()
        self._following.follow()
        self._progress.enter("done")

    def _retry(self, name: str) -> None:
        context = self._context
        candidate = context.records[name].candidate
        self._begin_anew()
        self._following.forget()
        context.judge.evidence.pop(name, None)
        self._solo.try_alone(candidate)
        context.rank()

    def _begin_anew(self) -> None:
        """Give what is measured after the session as much time as the session had."""
        self._progress.begin_anew()
        self._context.bench.budget = self._context.bench.budget.renewed()

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

    # --- how it ends, and what it tells ------------------------------------------------------------------------

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
            bench = self._context.bench
            bench.runner.interpreters.close()
            self._emit(events.SessionFinished(cancelled, bench.budget.spent_s, bench.time_spent()))

    def _salvage(self) -> None:
        """The best that is known when a session ends early: ranked, and the stack as far as it was measured."""
        if self._context.known_judge is not None and self._context.known_facts is not None:
            self._context.rank()

    def _emit(self, event: events.Event) -> None:
        self._journal.record(event)
        self._post(event)
