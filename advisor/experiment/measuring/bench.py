"""The bench: makes trial specs, runs trials within the budget, and posts what they are doing."""

import itertools
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median

from advisor.errors import TargetError
from advisor.experiment import events
from advisor.experiment.control import ENDED, SKIPPED
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.judging.runs import speed
from advisor.process.logs import last_stack
from advisor.recipe.settings import Settings
from advisor.records import (
    COMPILING,
    FIRST_STEPS,
    Activity,
    Block,
    Inspected,
    Objective,
    Outcome,
    Profile,
    TrialKind,
    TrialMessage,
    TrialResult,
    TrialSpec,
    Value,
    World,
)
from advisor.runner.builder import NOT_IMPORTED, TOO_LONG
from advisor.runner.trial_process import advice
from advisor.runner.trials import Runner

ENERGY_S = 1.05  # the energy counter needs a second, so blocks that are compared by joules take this long
_WARMUP_FACTOR = 1.5  # longest warm-up of a trial after its first steps, as a multiple of its measuring time
# Time that a library takes to choose kernels in the first steps. Seconds; 0 to 13 on an H200, by model.
_TIMING_KERNELS_S = 8.0
# Limit for building once: this share of the budget, and at least this many seconds. After that each trial builds for
# itself, though a model that takes longer leaves no time to try anything.
_BUILD_SHARE = 0.4
_BUDGET_PER_BUILD = 8
_LEAST_BUILD_S = 10.0
_REPEAT_SHARE = 0.15  # a disturbed trial that takes a larger share of the budget is not repeated
_BUDGET_PER_IMPORT = 4  # smallest budget, as a multiple of the time that importing PyTorch takes; unitless
# Interval between checks of the compilation beside trials and of the person's requests. Seconds.
_LOOKS_AGAIN_S = 0.2


class SessionCancelledError(Exception):
    """The person ended the session; what was measured is in the journal."""


class Bench:
    """Runs trials and learns how long they take.

    ``why_not_built_once``: the reason that each trial builds the target for itself; empty if one build serves all
    trials or was not tried. ``repeats_help``: repeating a disturbed trial may help. ``inspected`` and ``profiled`` are
    the latest messages with a workload's facts and its profile. ``compiling`` are the settings that a process compiles
    beside the trials, since ``compiling_since_s``; ``compiled_beside`` has the settings whose compilation has ended.
    ``world``: the ranks of a script for torchrun, which all its trials use. Any thread may make the person's requests:
    no trial starts before ``may_go_on`` is set, and none starts once the session is ``ending``.
    """

    def __init__(
        self,
        request: Request,
        runner: Runner,
        budget: Budget,
        journal: Journal,
        *,
        emit: Callable[[events.Event], None],
    ) -> None:
        self.request = request
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.ending = False
        self.runner = runner
        self.budget = budget
        self.catalog = budget.catalog
        self._journal = journal
        self.emit = emit
        self._numbers = itertools.count()
        self.measuring_s = 0.0
        self.warming_up_s = 0.0
        self.why_not_built_once = ""
        self.repeats_help = True
        self.compiling: Settings | None = None
        self.compiling_since_s = 0.0
        self.compiled_beside: dict[Settings, TrialResult] = {}
        self._stepping_since: float | None = None
        self.inspected: Inspected | None = None
        self.world: World | None = None
        self.profiled: Profile | None = None

    def spec(
        self,
        name: str,
        settings: Mapping[str, Value],
        *,
        kind: TrialKind = TrialKind.CANDIDATE,
        at_least_s: float = 0.0,
    ) -> TrialSpec:
        """A trial's spec, with limits from the budget."""
        return TrialSpec(
            trial_id=name,
            target=self.request.target,
            settings=dict(settings),
            measure_s=self.budget.measure_s,
            warmup_limit_s=_WARMUP_FACTOR * self.budget.measure_s,
            timeout_s=self.budget.timeout_s,
            at_least_s=max(at_least_s, ENERGY_S if self.request.objective is Objective.ENERGY else 0.0),
            log_path=self._journal.log_path(f"{next(self._numbers):03d}-{name}"),
            recipe_folders=self.request.recipe_folders,
            seed=self.request.seed,
            stream_seed=self.request.seed,
            kind=kind,
            environment=self.catalog.environment(settings),
            loss_form=self.inspected.workload.loss_form if self.inspected else "",
            world=self.world,
        )

    def expected_s(self, settings: Mapping[str, Value]) -> float:
        """The expected duration of a trial of these settings, in seconds."""
        expected_s = self.budget.expected_s(Settings(settings))
        if any(recipe.times_kernels and value for recipe, value in self.catalog.in_order(settings)):
            expected_s += _TIMING_KERNELS_S
        return expected_s + (self.budget.interpreter_s if self.catalog.environment(settings) else 0.0)

    def build_once(self) -> None:
        """Build the target once for all trials. If that fails, each trial builds it anew.

        A target that cannot be built at all fails here too, and its first trial shows the reason. Raises TargetError if
        building took so long that the budget leaves no time for another attempt, and SessionCancelledError.
        """
        request, started = self.request, self.budget.spent_s
        if self.world is not None:
            self.why_not_built_once = f"{self.world.ranks} ranks run {request.target.target}, started by torchrun"
            return
        self.emit(events.TrialActivity("baseline", events.BUILDING))
        log_path = self._journal.log_path(f"{next(self._numbers):03d}-build")
        build_limit_s = max(_LEAST_BUILD_S, _BUILD_SHARE * self.budget.total_s)
        within_s = max(_LEAST_BUILD_S, self.budget.left_s)  # includes the import of PyTorch
        self.why_not_built_once = self.runner.build_once(
            request.target, request.seed, log_path, build_limit_s, within_s
        )
        self.budget.build_s = self.budget.spent_s - started
        if self.runner.cancelled:
            raise SessionCancelledError
        if self.why_not_built_once == NOT_IMPORTED:
            minutes = math.ceil(_BUDGET_PER_IMPORT * self.budget.build_s / 60)
            raise TargetError(
                f"importing PyTorch takes more than {self.budget.build_s:.0f} s, as from a slow network disk.",
                f"Give it more time with --budget {minutes}m, or install it on a faster disk.",
            )
        if self.why_not_built_once == TOO_LONG and self.budget.left_s < build_limit_s:
            minutes = math.ceil(_BUDGET_PER_BUILD * build_limit_s / 60)
            waited_s = min(build_limit_s, within_s)
            raise TargetError(
                f"building the model takes more than {waited_s:.0f} s, and the budget leaves no time to try again.",
                *advice(last_stack(log_path), f"Give it time with --budget {minutes}m, or have it build less."),
            )

    # --- compiling beside the trials ------------------------------------------------------------------------------

    def compile_beside(self, settings: Settings) -> None:
        """Compile these settings in a process beside the trials, so that a later trial finds the code in the cache."""
        self.compiling, self.compiling_since_s = settings, self.budget.spent_s
        self.runner.compile_beside(self.spec("compiling beside", settings, kind=TrialKind.COMPILE))

    def has_compiled_beside(self, within_s: float = 0.0) -> bool:
        """Whether nothing compiles beside the trials any more, after waiting at most this many seconds."""
        if self.compiling is not None and (result := self.runner.compiled_beside(within_s)) is not None:
            settings, self.compiling = self.compiling, None
            self.compiled_beside[settings] = result
            if result.outcome is Outcome.MEASURED:
                self.budget.learn(settings, result.wall_s or 0.0)
        return self.compiling is None

    def compiles_beside(self, settings: Mapping[str, Value]) -> bool:
        """Whether the code of these settings is being compiled beside the trials."""
        if self.has_compiled_beside() or self.compiling is None:
            return False
        return self.catalog.compiled_code(self.compiling) == self.catalog.compiled_code(settings)

    def wait_until_compiled(self, name: str, within_s: float) -> bool:
        """Wait at most this long for the compilation beside the trials, and return whether it has ended."""
        self.emit(events.TrialActivity(name, COMPILING))
        started = self.budget.spent_s
        while not (ended := self.has_compiled_beside(_LOOKS_AGAIN_S)) and self.budget.spent_s - started < within_s:
            if self.ending or self.runner.cancelled:
                break
            self.wait_while_paused()
        self.warming_up_s += self.budget.spent_s - started
        return ended

    def end_compiling_beside(self) -> None:
        """End the compilation beside the trials, for example if a trial lacks the memory that it takes."""
        self.runner.end_beside()
        self.compiling = None

    # --- running trials -------------------------------------------------------------------------------------------

    def run(self, spec: TrialSpec) -> TrialResult:
        """Run one trial to its end. Raises SessionCancelledError if the session is cancelled meanwhile.

        A trial that was disturbed from outside is repeated once; if both were disturbed, the faster one counts. In that
        case the disturbance lasts, so no later trial is repeated.
        """
        result = self._run_once(spec)
        expected_s = max(self.expected_s(spec.settings), result.wall_s or 0.0)
        # There has to be time for the next trial as well.
        affordable = expected_s <= _REPEAT_SHARE * self.budget.total_s and self.budget.allows(2 * expected_s)
        if not (result.disturbed and self.repeats_help and affordable):
            return result
        self.emit(events.Said(f"{spec.trial_id} is measured again: {result.disturbed}"))
        again = self._run_once(replace(spec, timeout_s=min(self.budget.timeout_s, spec.timeout_s, 2 * expected_s)))
        self.repeats_help = again.measured and not again.disturbed
        if not again.measured:
            return result
        return min(result, again, key=lambda run: (bool(run.disturbed), -speed(run)[1]))

    def _run_once(self, spec: TrialSpec) -> TrialResult:
        budget, self._stepping_since = self.budget, None
        self.wait_while_paused()
        first = spec.kind.inspects and budget.baseline_s is None
        expected_s = None if first else self.expected_s(spec.settings)
        self.emit(events.TrialStarted(spec.trial_id, spec.log_path, expected_s))
        takes_longer = spec.kind in (TrialKind.BASELINE, TrialKind.PROFILE, TrialKind.SCORE)
        if not (self.catalog.compiles(spec.settings) or takes_longer or spec.world != self.world):
            # A trial that takes much longer than usual hangs, and the other trials need that time.
            spec = replace(spec, timeout_s=min(spec.timeout_s, budget.hangs_after_s))
        started = budget.spent_s
        if self.compiles_beside(spec.settings):
            self.wait_until_compiled(spec.trial_id, spec.timeout_s)
            spec = replace(spec, timeout_s=max(1.0, spec.timeout_s - (budget.spent_s - started)))
        # A compilation that failed beside the trials counts as failed. It is tried again alone if it lacked memory or
        # time, or if each trial builds the target: two builds at a time may take the same port or file.
        beside = self.compiled_beside.get(Settings(spec.settings), TrialResult(Outcome.SKIPPED))
        failed = beside.outcome is Outcome.FAILED and not self.why_not_built_once
        listen = partial(self.listen, spec)
        result = self.compiled_beside.pop(Settings(spec.settings)) if failed else self.runner.run(spec, listen)
        collides = result.outcome is Outcome.FAILED and bool(self.why_not_built_once)
        if (result.outcome is Outcome.OUT_OF_MEMORY or collides) and not self.has_compiled_beside():
            self.end_compiling_beside()
            self.warming_up_s += budget.spent_s - started
            started = budget.spent_s
            result = self.runner.run(spec, listen)
        result = self.checked(result)
        wall_s = budget.spent_s - started
        self.post_end(spec, result, wall_s)
        self._account(spec, result, wall_s)
        # Report the warm-up with compiling included, as the person will see it.
        warmup_s = None if result.warmup_s is None else max(beside.warmup_s or 0.0, result.warmup_s)
        return replace(result, wall_s=wall_s, warmup_s=warmup_s)

    def _account(self, spec: TrialSpec, result: TrialResult, wall_s: float) -> None:
        """Add up the time by use, and tell the budget the duration of such a trial.

        If a trial failed, all time since its first step counts as warm-up. If it compiled, the preparation before the
        first step counts as warm-up too, since that loaded the compiler.
        """
        budget, settings = self.budget, Settings(spec.settings)
        compiles = self.catalog.compiles(settings)
        self.measuring_s += result.measuring_s
        if not result.measured:
            if result.outcome is Outcome.TIMED_OUT and compiles and not budget.has_to_compile(settings):
                budget.learn(settings, wall_s)  # longer than expected: the next such trial gets more time
            if self._stepping_since is not None:
                self.warming_up_s += budget.spent_s - self._stepping_since
            return
        self.warming_up_s += (result.warmup_s or 0.0) + ((result.prepare_s or 0.0) if compiles else 0.0)
        # Three kinds of trials take longer and do not help to plan others: trials over several GPUs, the first trial
        # (it starts the fork server), and trials in a fresh interpreter.
        if spec.world != self.world:
            return
        if spec.kind is TrialKind.CANDIDATE and not spec.environment:
            budget.learn(settings, wall_s)
        elif spec.kind.inspects and budget.baseline_s is None:
            # The shortest that such a trial can take: without inspecting, profiling or compiling.
            step_s = median(block.seconds / block.steps for block in result.blocks)
            prepared_s = (result.build_s or 0.0) + (result.prepare_s or 0.0)
            ordinary_s = prepared_s + result.warmup_steps * step_s + sum(block.seconds for block in result.blocks)
            budget.baseline_s = wall_s if self.world else min(wall_s, ordinary_s)
            # The build time includes the fork server's import of torch, which a fresh interpreter needs too.
            budget.interpreter_s = budget.build_s + (result.startup_s or 0.0)

    def post_progress(self, wanted_s: float) -> None:
        """Post the share of the time that has passed and the seconds left, at most ``wanted_s``."""
        spent_s, left_s = self.budget.spent_s, 0.0 if self.ending else min(self.budget.left_s, wanted_s)
        self.emit(events.ProgressMade(spent_s / (spent_s + left_s) if left_s else 1.0, left_s))

    def restart(self, total_s: float | None = None) -> None:
        """Forget earlier requests, since the person asked for more time: this long, or as long as before."""
        self.budget.restart(total_s)
        self.ending = False
        self.may_go_on.set()

    def wait_while_paused(self) -> None:
        """Wait while the person has paused the session. The budget does not count that time."""
        if not self.may_go_on.is_set():
            self.emit(events.Paused(True))
            with self.budget.stopped():
                self.may_go_on.wait()
            self.emit(events.Paused(False))

    def checked(self, result: TrialResult) -> TrialResult:
        """A trial's result; skipped if the person ended it. Raises SessionCancelledError if they ended the session."""
        if result.outcome is not Outcome.CANCELLED:
            return result
        if self.runner.cancelled:
            raise SessionCancelledError
        return replace(result, outcome=Outcome.SKIPPED, reason=ENDED if self.ending else SKIPPED)

    def post_end(self, spec: TrialSpec, result: TrialResult, wall_s: float) -> None:
        """Post how a trial ended."""
        step_ms = median(block.step_ms for block in result.blocks) if result.measured else None
        peak = result.peak_reserved_bytes
        self.emit(events.TrialEnded(spec.trial_id, result.outcome, result.reason, step_ms, peak, wall_s))

    def listen(self, spec: TrialSpec, message: TrialMessage) -> None:
        """Handle a trial's message: pass on activities and blocks, keep the others."""
        match message:
            case Activity():
                self.emit(events.TrialActivity(spec.trial_id, message.text))
                if message.text.startswith((FIRST_STEPS, COMPILING)):
                    self._stepping_since = self.budget.spent_s
            case Block():
                self.emit(events.BlockTimed(spec.trial_id, message.step_ms))
            case Inspected():
                self.inspected = message
            case Profile():
                self.profiled = message
