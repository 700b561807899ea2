"""Trials without processes: a function says how fast settings are, and a clock of their own moves on.

``FakeTrials`` has the interface of :class:`advisor.runner.trials.Runner` as far as sessions use it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from facts import cpu_facts, profile_facts
from made_up import Speed, failed, result_at
from planted import pauses_removed, plant_removers
from real_session import Run

from advisor.recipe.settings import Settings
from advisor.records import Activity, Block, Facts, Inspected, Outcome, RanksFound, Ready, TrialKind, TrialResult

TRIAL_S = 1.5  # seconds of a trial that starts, applies its settings and measures
CANCELLED = TrialResult(Outcome.CANCELLED, "cancelled")


class FakeTrials:
    """The runner, which is the clock of its sessions too: only trials take time.

    ``facts`` are the workload's; ``build_s`` and ``trial_s`` are what building it and a trial take.
    """

    def __init__(self, speed: Speed, *, facts: Facts | None = None, trial_s=TRIAL_S, build_s=0.5):
        self.speed, self.facts, self.trial_s, self.build_s = speed, facts or cpu_facts(), trial_s, build_s
        self.now_s = 0.0
        self.cancelled = self._skipped = False

    def __call__(self):
        return self.now_s

    def build_once(self, target, seed, log_path, timeout_s, within_s=0.0):
        self.now_s += self.build_s
        return ""

    def forget_build(self):
        return True

    def end_beside(self):
        pass

    beside_stopped = nullcontext

    def cancel(self):
        self.cancelled = True

    def skip(self):
        self._skipped = True

    def resume(self):
        self.cancelled = False

    def run(self, spec, listen):
        with self.open(spec, listen) as trial:
            return trial.result()

    @contextmanager
    def open(self, spec, listen) -> Iterator["FakeTrial"]:
        self._skipped = False
        yield FakeTrial(self, spec, listen)

    @property
    def ended(self) -> bool:
        """Whether the running trial was skipped, or all of them were cancelled."""
        return self.cancelled or self._skipped


def found_by(spec) -> RanksFound:
    """The findings of a trial over ranks that divide a batch of 32."""
    batch = spec.settings.get("data.batch_size", 32)
    return RanksFound(batch, batch // spec.world.ranks, (0,) * spec.world.ranks)


class FakeTrial:
    """One trial: it warms up, and is measured as a whole or block by block."""

    def __init__(self, trials: FakeTrials, spec, listen):
        self._trials, self._spec, self._listen = trials, spec, listen
        self._ends_s = trials.now_s + spec.timeout_s
        speed = trials.speed(Settings(spec.settings))
        if not isinstance(speed, TrialResult):
            speed = failed(speed) if isinstance(speed, str) else result_at(speed)
        self._answer = replace(speed, ranks=found_by(spec)) if spec.world and speed.measured else speed

    def result(self) -> TrialResult:
        return self._warm_up() or self._measure()

    def wait_ready(self) -> TrialResult | None:
        ended = self._warm_up()
        if ended is None:
            self._listen(Ready())
        return ended

    def measure_block(self, seconds):
        if self._trials.ended:
            return CANCELLED
        if self._is_late(seconds):
            return failed("no result in time", Outcome.TIMED_OUT)
        first = self._answer.blocks[0]
        steps = max(1, round(seconds * first.steps / first.seconds))
        done = Block(steps, steps * first.samples // first.steps, steps * first.seconds / first.steps)
        self._listen(done)
        return done

    def finish(self) -> TrialResult:
        return self._answer

    def _warm_up(self) -> TrialResult | None:
        """The trial's messages before it measures; its result if it ends there."""
        facts = self._trials.facts
        if self._spec.kind.inspects:
            self._listen(Inspected(facts.workload, facts.versions))
        if self._spec.kind in (TrialKind.BASELINE, TrialKind.PROFILE) and facts.profile is not None:
            self._listen(facts.profile)
        self._listen(Activity("warming up"))
        late = self._is_late(math.inf if self._answer.outcome is Outcome.TIMED_OUT else self._trials.trial_s)
        if self._trials.ended:
            return CANCELLED
        if late and self._answer.measured:
            return failed("no result in time", Outcome.TIMED_OUT)
        return None if self._answer.measured else replace(self._answer, wall_s=self._trials.trial_s)

    def _is_late(self, seconds: float) -> bool:
        """Let time pass, and return whether the trial is given up before it ends."""
        ends_s = self._trials.now_s + seconds
        self._trials.now_s = min(ends_s, max(self._ends_s, self._trials.now_s))
        return ends_s > self._ends_s

    def _measure(self) -> TrialResult:
        if self._spec.kind is TrialKind.PROFILE:
            self._listen(self._trials.facts.profile or profile_facts())
        self._listen(Activity("measuring"))
        return CANCELLED if self._trials.ended else replace(self._answer, wall_s=self._trials.trial_s)


class FakeRun(Run):
    """A whole session on fake trials, whose speeds the function ``speed`` gives."""

    def __init__(self, folder, speed: Speed, *, past=None, trials=None, **options):
        self.trials = trials or FakeTrials(speed)
        super().__init__(folder, "", past=past, runner=self.trials, clock=self.trials, **options)

    def _machine(self):
        return self.trials.facts.hardware


THREE = ("first", "second", "third")


def three_removers(folder, **options):
    """A session with three planted recipes, each of which takes a pause out of the step."""
    plant_removers(folder / "recipes", usual=True, **dict.fromkeys(THREE, "EXACT"))
    return FakeRun(folder, pauses_removed, only=THREE, **{"budget_s": 60.0, **options})
