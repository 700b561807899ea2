"""A runner that answers from a landscape in milliseconds, on a clock of its own.

It has the interface of :class:`advisor.runner.trials.Runner` as far as sessions use it. Nothing is started: each trial
moves the clock by what it would take, and is timed with the noise that was recorded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

from stopped_clock import Clock

from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.settings import Settings
from advisor.records import TrialMessage
from advisor.records.kinds import Bottleneck, Outcome, TrialKind
from advisor.records.messages import Activity, Inspected
from advisor.records.trials import Block, TrialResult, TrialSpec
from advisor.records.workload import Profile
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
_PHASES_S = 0.6  # timing the phases of a step, seconds (advisor.trial.main)
_FORK_S = 0.05  # a forked trial's start in seconds, where none was recorded

Listener = Callable[[TrialMessage], None]


class Replay:
    """The runner. The same ``seed`` and the same questions give the same answers."""

    def __init__(self, landscape: Landscape, *, seed: int = 0, catalog: Catalog | None = None) -> None:
        self.landscape = landscape
        self.predictor = Predictor(landscape, catalog or load_catalog())
        self.clock = Clock()  # only trials move it
        self.cancelled = False
        self.asked: list[Answer] = []
        self.overhead = _Overhead.of(landscape, self.predictor.catalog)
        self._seed = seed
        self._imported = False
        self._compiled: set[Settings] = set()
        self._beside: _Beside | None = None

    def build_once(self, *_: object, **__: object) -> str:
        """Build the target for later trials."""
        self.clock.until(self.clock() + self.landscape.times.build_once_s)
        return ""

    def run(self, spec: TrialSpec, listen: Listener) -> TrialResult:
        """The result of a trial, after the time that it takes."""
        answer = self.predictor.answer(spec.settings)
        if spec.kind is not TrialKind.REFERENCE:
            self.asked.append(answer)
        # By what is asked and how often, not by a common stream: one more question leaves other answers as they are.
        count = sum(asked.settings == answer.settings for asked in self.asked)
        draw = random.Random(f"{self._seed} {answer.settings} {count} {spec.kind}")
        return _Trial(self, spec, listen, answer=answer, draw=draw).run()

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

    @contextmanager
    def beside_stopped(self) -> Iterator[None]:
        """Stop the background compilation inside this context."""
        began = self.clock()
        yield
        if self._beside is not None:
            self._beside = replace(self._beside, ends_at_s=self._beside.ends_at_s + self.clock() - began)

    def end_beside(self) -> None:
        """Nothing compiles beside the trials any more."""
        self._beside = None

    def startup_s(self, spec: TrialSpec) -> float:
        """Seconds until a trial's first instruction."""
        first, self._imported = not self._imported, True
        if spec.environment:
            return max(_FORK_S, self.landscape.times.interpreter_s)
        return self.landscape.times.import_s if first else self.overhead.fork_s

    def build_s(self, spec: TrialSpec) -> float:
        """Seconds until a trial has its model on the device."""
        anew_s = self.landscape.times.build_s
        return anew_s if spec.environment else min(anew_s, self.overhead.forked_build_s)

    def warm_up_s(self, answer: Answer) -> float:
        """Seconds of a trial's warm-up, with what of its code is in the cache."""
        code = compile_key(answer.settings)
        return answer.cached_s if code is None or code in self._compiled else answer.cold_s

    def has_compiled(self, answer: Answer) -> None:
        """A trial has compiled its code, which is in the cache from now on."""
        code = compile_key(answer.settings)
        if code is not None and not answer.fails:
            self._compiled.add(code)


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
class _Beside:
    """A compilation beside the trials: the seconds of its warm-up and of the whole trial, and the moment of its end."""

    answer: Answer
    warmup_s: float
    wall_s: float
    ends_at_s: float


class _LateError(Exception):
    """The trial's time is over."""


class _Trial:
    """One trial that is replayed: it lets the clock go on to where the real one would have been."""

    def __init__(
        self, runner: Replay, spec: TrialSpec, listen: Listener, *, answer: Answer, draw: random.Random
    ) -> None:
        self.spec = spec
        self._runner, self._answer, self._listen, self._draw = runner, answer, listen, draw
        self._clock = runner.clock
        self._started_s = self._clock()
        self._blocks: list[Block] = []
        # Two processes of the same program differ by more than the blocks of either.
        self._factor = math.exp(draw.gauss(0.0, answer.process_spread))
        self._startup_s, self._build_s = runner.startup_s(spec), runner.build_s(spec)
        self._prepare_s, self._warmup_s = answer.result.prepare_s or 0.0, runner.warm_up_s(answer)

    def run(self) -> TrialResult:
        """Let the trial run to its end."""
        try:
            result = self._reference() if self.spec.kind is TrialKind.REFERENCE else self._timed()
        except _LateError:
            result = TrialResult(Outcome.TIMED_OUT, f"timed out after {self.spec.timeout_s:.0f} s")
        self._clock.until(self._clock() + self._runner.overhead.end_s)
        result = replace(result, wall_s=self._clock() - self._started_s)
        self._listen(result)
        return result

    def _pass(self, seconds: float) -> None:
        """Let time pass. Raises _LateError when the trial's time is over before."""
        late_s = self._started_s + self.spec.timeout_s
        moment_s = self._clock() + seconds
        self._clock.until(min(moment_s, late_s))
        if moment_s > late_s:
            raise _LateError

    def _reference(self) -> TrialResult:
        """The recorded reference; where there is none, it failed."""
        recorded = self._runner.landscape.reference
        result = recorded or TrialResult(Outcome.FAILED, "no run in a higher precision was recorded")
        self._pass(self._startup_s + (result.wall_s or 0.0))
        return result

    def _timed(self) -> TrialResult:
        """Prepare, warm up, time blocks and profile as a trial does."""
        answer, landscape = self._answer, self._runner.landscape
        self._pass(self._startup_s)
        self._listen(Activity("loading the model"))
        self._pass(self._build_s)
        self._listen(Activity("applying the settings"))
        self._pass(self._prepare_s + (landscape.times.inspect_s if self.spec.kind.inspects else 0.0))
        if self.spec.kind.inspects:
            self._listen(Inspected(landscape.workload, landscape.versions))
        self._listen(Activity("compiling" if compile_key(answer.settings) is not None else "first steps"))
        if answer.fails:
            self._pass(answer.fails_after_s)
            return answer.result
        self._pass(self._warmup_s)
        self._runner.has_compiled(answer)
        self._listen(Activity("measuring"))
        spent_s = 0.0
        while not self._enough(spent_s):
            block = self._block(self.spec.measure_s / _BLOCKS_PER_TRIAL)
            spent_s += block.seconds
            self._pass(block.seconds)
            self._blocks.append(block)
        self._pass(self._runner.overhead.looking_s)
        self._profile()
        return self._measured()

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
            self._pass(needed_s)
            self._listen(profile)

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
        template = self._with_stream(self._answer.result)
        measuring_s = sum(block.seconds for block in self._blocks) + self._runner.overhead.looking_s
        return replace(
            template,
            blocks=tuple(self._blocks),
            startup_s=self._startup_s,
            build_s=self._build_s,
            prepare_s=self._prepare_s,
            warmup_s=self._warmup_s,
            measuring_s=measuring_s,
            log_path=self.spec.log_path,
        )

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
