"""A runner that answers from a landscape in milliseconds, on a clock of its own.

It has the interface of :class:`advisor.runner.trials.Runner` as far as sessions use it. Nothing is started: each trial
moves the clock by what it would take, and is timed with the noise that was recorded.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Activity,
    Block,
    BlockDone,
    Bottleneck,
    Finished,
    Inspected,
    Outcome,
    Profile,
    Profiled,
    Ready,
    TargetSpec,
    TrialKind,
    TrialMessage,
    TrialResult,
    TrialSpec,
)
from landscapes.landscape import Landscape, compile_key
from landscapes.predict import Answer, Predictor

# As in advisor.trial.measurement.clock, which needs torch: blocks of a trial, the fewest of an interval, and how
# narrow it has to be for a trial to end early.
_BLOCKS_PER_TRIAL = 24
_FEWEST_BLOCKS = 5
_FEWEST_FOR_EARLY_END = 10
_PRECISION = 0.0025
# Half the width of a median's 95 % interval, in standard deviations of one block over the root of their number.
_MEDIAN_WIDTH = 2.45
# Timing the phases of a step, seconds (advisor.trial.main).
_PHASES_S = 0.6
# A forked trial's start in seconds, where none was recorded.
_FORK_S = 0.05

Listener = Callable[[TrialMessage], None]


class Clock:
    """Simulated seconds. Only trials move it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def until(self, moment_s: float) -> None:
        """Let time pass until a moment, which may lie in the past already."""
        self.now_s = max(self.now_s, moment_s)


class Replay:
    """The runner. The same ``seed`` and the same questions give the same answers."""

    def __init__(self, landscape: Landscape, *, seed: int = 0, catalog: Catalog | None = None) -> None:
        self.landscape = landscape
        self.predictor = Predictor(landscape, catalog or load_catalog())
        self.clock = Clock()
        self.cancelled = False
        self.asked: list[Answer] = []
        self.overhead = _Overhead.of(landscape, self.predictor.catalog)
        self._seed = seed
        self._trials = 0
        self._imported = False
        self._built = False
        self._compiled: set[Settings] = set()
        self._beside: _Beside | None = None

    @staticmethod
    def prepare() -> None:
        """There is no fork server to start."""

    def build_once(
        self,
        target: TargetSpec,
        seed: int,
        log_path: str,
        timeout_s: float,
        within_s: float = 0.0,
        *,
        imports_slowly: Callable[[], None] = lambda: None,
    ) -> str:
        """Build the target for later trials; why that cannot be done, as it was recorded."""
        needed_s = self.landscape.times.build_once_s
        self.clock.until(self.clock() + min(needed_s, timeout_s))
        if needed_s > timeout_s:
            return "building the model takes too long"
        self._built = not self.landscape.builds_anew
        return self.landscape.builds_anew

    def forget_build(self) -> bool:
        """Have each trial build the target again; whether it was built once."""
        built, self._built = self._built, False
        return built

    def run(self, spec: TrialSpec, listen: Listener) -> TrialResult:
        """The result of a trial, after the time that it takes."""
        with self.open(spec, listen) as trial:
            return trial.result()

    def compile_beside(self, spec: TrialSpec) -> None:
        """Compile for a later trial while others start and compile."""
        answer = self.predictor.answer(spec.settings)
        prepared_s = self.overhead.fork_s + self.build_s(spec) + (answer.result.prepare_s or 0.0)
        needed_s = answer.fails_after_s if answer.fails else self.warm_up_s(answer)
        wall_s = prepared_s + needed_s
        self._beside = _Beside(answer, needed_s, wall_s, self.clock() + wall_s)

    def compiled_beside(self, within_s: float = 0.0) -> TrialResult | None:
        """Its result, where it has compiled within so long."""
        beside = self._beside
        if beside is None:
            return None
        self.clock.until(max(self.clock(), min(self.clock() + within_s, beside.ends_at_s)))
        if self.clock() < beside.ends_at_s:
            return None
        self.has_compiled(beside.answer)
        self._beside = None
        if beside.answer.fails:
            return beside.answer.result
        return TrialResult(Outcome.MEASURED, warmup_s=beside.warmup_s, wall_s=beside.wall_s)

    def end_beside(self) -> None:
        """Nothing compiles beside the trials any more."""
        self._beside = None

    @contextlib.contextmanager
    def open(self, spec: TrialSpec, listen: Listener) -> Iterator[ReplayTrial]:
        """A live trial."""
        self._trials += 1
        answer = self.predictor.answer(spec.settings)
        if spec.kind is not TrialKind.REFERENCE:
            self.asked.append(answer)
        # By what is asked and how often, not by a common stream: one more question leaves other answers as they are.
        count = sum(asked.settings == answer.settings for asked in self.asked)
        draw = random.Random(f"{self._seed} {answer.settings} {count} {spec.kind}")
        yield ReplayTrial(self, spec, listen, answer=answer, draw=draw)

    def startup_s(self, spec: TrialSpec) -> float:
        """Seconds until a trial's first instruction."""
        first, self._imported = not self._imported, True
        if spec.environment:
            return max(_FORK_S, self.landscape.times.interpreter_s)
        return self.landscape.times.import_s if first else self.overhead.fork_s

    def build_s(self, spec: TrialSpec) -> float:
        """Seconds until a trial has its model on the device."""
        if self._built and not spec.environment and spec.kind is not TrialKind.TURNS:
            return min(self.landscape.times.build_s, self.overhead.forked_build_s)
        return self.landscape.times.build_s

    def warm_up_s(self, answer: Answer) -> float:
        """Seconds of a trial's warm-up, with what of its code is in the cache."""
        code = compile_key(answer.settings)
        return answer.cached_s if code is None or code in self._compiled else answer.cold_s

    def has_compiled(self, answer: Answer) -> None:
        """A trial has compiled its code, which is in the cache from now on."""
        code = compile_key(answer.settings)
        if code is not None and not answer.fails:
            self._compiled.add(code)

    def cancel(self) -> None:
        """Have every trial end at once."""
        self.cancelled = True

    def resume(self) -> None:
        """Allow trials again."""
        self.cancelled = False


@dataclass(frozen=True, slots=True)
class _Overhead:
    """Seconds of a trial beside its steps: its start, its model on the device, looking at results, its end."""

    fork_s: float
    forked_build_s: float
    looking_s: float
    end_s: float

    @classmethod
    def of(cls, landscape: Landscape, catalog: Catalog) -> _Overhead:
        """The medians of the recorded trials that were forked."""
        forked = [
            run.result for run in landscape.runs[1:] if run.result.measured and not catalog.environment(run.settings)
        ]
        looking = [result.measuring_s - sum(block.seconds for block in result.blocks) for result in forked]
        return cls(
            median([result.startup_s or 0.0 for result in forked] or [_FORK_S]),
            median([result.build_s or 0.0 for result in forked] or [landscape.times.build_s]),
            max(0.0, median(looking or [0.0])),
            max(0.0, median([_unaccounted_s(result) for result in forked] or [0.0])),
        )


def _phases_alone(profile: Profile) -> Profile:
    """What timing the phases alone shows of a profile: the bottleneck only where it is the input or the copy."""
    told = profile.bottleneck in (Bottleneck.INPUT, Bottleneck.COPY)
    alone = Profile(profile.step_ms, profile.phases)
    return replace(alone, bottleneck=profile.bottleneck, evidence=profile.evidence) if told else alone


def _unaccounted_s(result: TrialResult) -> float:
    """Seconds of a trial's wall time that none of its stages took."""
    stages = (result.startup_s, result.build_s, result.prepare_s, result.warmup_s, result.measuring_s)
    return (result.wall_s or 0.0) - sum(seconds or 0.0 for seconds in stages)


@dataclass(frozen=True, slots=True)
class _Stages:
    """Seconds of a trial's stages before it measures."""

    startup_s: float
    build_s: float
    prepare_s: float
    inspect_s: float
    warmup_s: float


@dataclass(frozen=True, slots=True)
class _Beside:
    """A compilation beside the trials: the seconds of its warm-up and of the whole trial, and the moment of its end."""

    answer: Answer
    warmup_s: float
    wall_s: float
    ends_at_s: float


class ReplayTrial:
    """One trial that is replayed: its methods let the clock go on to where the real one would have been."""

    def __init__(
        self, runner: Replay, spec: TrialSpec, listen: Listener, *, answer: Answer, draw: random.Random
    ) -> None:
        self.spec = spec
        self._runner, self._answer, self._listen, self._draw = runner, answer, listen, draw
        self._clock = runner.clock
        self._started_s = self._clock()
        self._deadline_s = self._started_s + spec.timeout_s
        self._blocks: list[Block] = []
        self._result: TrialResult | None = None
        self._warm = False
        # Two processes of the same program differ by more than the blocks of either.
        self._factor = math.exp(draw.gauss(0.0, answer.process_spread))
        self._stages = self._plan()

    def _plan(self) -> _Stages:
        template, runner = self._answer.result, self._runner
        startup_s = runner.startup_s(self.spec)
        build_s = runner.build_s(self.spec)
        inspect_s = runner.landscape.times.inspect_s if self.spec.kind.inspects else 0.0
        return _Stages(startup_s, build_s, template.prepare_s or 0.0, inspect_s, runner.warm_up_s(self._answer))

    # --- what a parent calls --------------------------------------------------------------------------------------

    def result(self) -> TrialResult:
        """Let the trial run to its end."""
        if self._result is None and self.spec.kind is not TrialKind.TURNS:
            self._run_to_its_end()
        assert self._result is not None, "an interactive trial ends with finish()"
        return self._result

    def wait_ready(self) -> TrialResult | None:
        """Let the trial warm up: None, or its result when it ends before."""
        if self._warms_up():
            self._listen(Ready())
        return self._result

    def measure_block(self, seconds: float) -> BlockDone | TrialResult:
        """Time one block of an interactive trial."""
        if self._result is None and self._warms_up():
            block = self._block(seconds)
            if self._passes(self._clock() + block.seconds):
                self._blocks.append(block)
                self._listen(BlockDone(block))
                return BlockDone(block)
        assert self._result is not None, "a trial that times no block has ended"
        return self._result

    def finish(self) -> TrialResult:
        """End an interactive trial."""
        if self._result is None:
            self._end(self._measured())
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """End the trial at once."""
        self._result = TrialResult(Outcome.CANCELLED, "cancelled")

    def kill(self) -> None:
        """Nothing is left of a replayed trial."""

    # --- its life ---------------------------------------------------------------------------------------------------

    @property
    def _ready_at_s(self) -> float:
        stages = self._stages
        prepared_s = stages.startup_s + stages.build_s + stages.prepare_s + stages.inspect_s
        return self._started_s + prepared_s + stages.warmup_s

    def _run_to_its_end(self) -> None:
        if self.spec.kind is TrialKind.REFERENCE:
            self._run_reference()
        elif self._warms_up() and self._times_blocks():
            self._profile()

    def _run_reference(self) -> None:
        """The recorded reference; where there is none, it failed."""
        recorded = self._runner.landscape.reference
        result = recorded or TrialResult(Outcome.FAILED, "no run in a higher precision was recorded")
        if self._passes(self._started_s + self._stages.startup_s + (result.wall_s or 0.0)):
            self._end(result)

    def _warms_up(self) -> bool:
        """Go on until the trial is warm; False when it ends before."""
        if self._result is None and not self._warm and self._prepares():
            if self._answer.fails:
                if self._passes(self._ready_at_s - self._stages.warmup_s + self._answer.fails_after_s):
                    self._end(self._answer.result)
            elif self._passes(self._ready_at_s):
                self._runner.has_compiled(self._answer)
                self._warm = True
        return self._result is None

    def _prepares(self) -> bool:
        """Go on until the trial's first step; False when it ends before."""
        stages, landscape = self._stages, self._runner.landscape
        moment_s = self._started_s  # another trial may have moved the clock meanwhile
        for seconds, message in (
            (stages.startup_s, Activity("loading the model")),
            (stages.build_s, Activity("applying the settings")),
            (stages.prepare_s + stages.inspect_s, None),
        ):
            moment_s += seconds
            if not self._passes(moment_s):
                return False
            if message is not None:
                self._listen(message)
        if self.spec.kind.inspects:
            self._listen(Inspected(landscape.workload, landscape.versions))
        self._listen(Activity("compiling" if compile_key(self._answer.settings) is not None else "first steps"))
        return True

    def _times_blocks(self) -> bool:
        """Time blocks as a trial of its own does; False when its time is over before."""
        self._listen(Activity("measuring"))
        spent_s = 0.0
        while not self._enough(spent_s):
            block = self._block(self.spec.measure_s / _BLOCKS_PER_TRIAL)
            spent_s += block.seconds
            if not self._passes(self._clock() + block.seconds):
                return False
            self._blocks.append(block)
        return self._passes(self._clock() + self._runner.overhead.looking_s)

    def _profile(self) -> None:
        """Say what the baseline says beside its timing: its phases where a loader feeds it, or the whole profile."""
        landscape, kind = self._runner.landscape, self.spec.kind
        profile = landscape.profile
        needed_s = landscape.times.profile_s
        if kind is TrialKind.BASELINE and profile is not None:
            profile = _phases_alone(profile) if landscape.workload.loader is not None else None
            needed_s = _PHASES_S
        if kind in (TrialKind.BASELINE, TrialKind.PROFILE) and profile is not None:
            self._listen(Activity("profiling"))
            if not self._passes(self._clock() + needed_s):
                return
            self._listen(Profiled(profile))
        self._end(self._measured())

    def _enough(self, spent_s: float) -> bool:
        """As a trial's own clock decides."""
        count = len(self._blocks)
        if count < _FEWEST_BLOCKS:
            return bool(count) and spent_s > 2 * self.spec.measure_s
        if spent_s >= max(self.spec.measure_s, self.spec.at_least_s):
            return True
        width = _MEDIAN_WIDTH * self._answer.block_spread / math.sqrt(count)
        return count >= _FEWEST_FOR_EARLY_END and spent_s >= self.spec.at_least_s and width < _PRECISION

    def _block(self, seconds: float) -> Block:
        samples = self._answer.result.batch_size or self._runner.landscape.baseline.batch_size or 1
        step_s = self._answer.sample_s * samples * self._factor
        steps = max(1, round(seconds / step_s))
        return Block(
            steps, steps * samples, steps * step_s * math.exp(self._draw.gauss(0.0, self._answer.block_spread))
        )

    def _measured(self) -> TrialResult:
        steps_ms = sorted(block.step_ms for block in self._blocks)
        ends = (steps_ms[0], steps_ms[len(steps_ms) // 2], steps_ms[-1]) if steps_ms else None
        stages = self._stages
        template = self._with_stream(self._answer.result)
        measuring_s = sum(block.seconds for block in self._blocks) + self._runner.overhead.looking_s
        return replace(
            template,
            blocks=tuple(self._blocks),
            event_step_ms=ends,
            startup_s=stages.startup_s,
            build_s=stages.build_s,
            prepare_s=stages.prepare_s,
            warmup_s=stages.warmup_s,
            measuring_s=measuring_s,
            phases=self._phases(),
            log_path=self.spec.log_path,
        )

    def _phases(self) -> dict[str, float]:
        if not self.spec.times_phases or not self._blocks:
            return {}
        return self._runner.predictor.phases(self._answer.settings, median(block.step_ms for block in self._blocks))

    def _with_stream(self, template: TrialResult) -> TrialResult:
        """The numerics under another random stream, where such runs of these settings were recorded."""
        other = self.spec.stream_seed - self.spec.seed
        known = self._runner.predictor.known.get(self._answer.settings)
        if not other or known is None:
            return template
        runs = [run.result for run in known.measured if run.stream_seed]
        if not runs:
            return template
        drawn = runs[(other - 1) % len(runs)]
        return replace(template, losses=drawn.losses, outputs=drawn.outputs)

    def _passes(self, moment_s: float) -> bool:
        """Let the clock come to a moment; False when the trial's time is over before, or it was cancelled."""
        if self._runner.cancelled:
            self.cancel()
            return False
        if moment_s > self._deadline_s:
            self._clock.until(self._deadline_s)
            self._end(TrialResult(Outcome.TIMED_OUT, f"timed out after {self.spec.timeout_s:.0f} s"))
            return False
        self._clock.until(moment_s)
        return True

    def _end(self, result: TrialResult) -> None:
        self._clock.until(self._clock() + self._runner.overhead.end_s)
        self._result = replace(result, wall_s=self._clock() - self._started_s)
        self._listen(Finished(self._result))
