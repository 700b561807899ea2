"""Records what combinations of settings take on one workload, with real trial processes.

    python tests/landscapes/record.py tests/gpu/workloads/mlp12.py:build --name mlp12 --out mlp12.json.gz --within 240

The file is whole after each combination, so the program can be ended at any time. To record several workloads at once,
start it for each with another CUDA_VISIBLE_DEVICES and other ``--cores``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from advisor.machine.hardware import inspect_hardware
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Activity,
    Hardware,
    Inspected,
    Mode,
    Outcome,
    Profiled,
    TargetSpec,
    TrialKind,
    TrialMessage,
    TrialResult,
    TrialSpec,
)
from advisor.runner.trials import Runner
from landscapes.landscape import (
    SCHEMA,
    Conflict,
    Landscape,
    Run,
    Times,
    canonical,
    compile_key,
    sample_seconds,
    save,
    slim,
    slim_profile,
)
from landscapes.plan import Plan, Wish, fastest_unsure, may_stack, plan, random_wishes

# Seconds of measuring and of warming up after the first step, as a session of a minute has them.
_MEASURE_S = 0.6
_WARMUP_LIMIT_S = 0.9
# Deadlines of a trial in seconds: an ordinary one, one that compiles, one that tunes kernels, and the first.
_PLAIN_TIMEOUT_S = 30.0
_COMPILE_TIMEOUT_S = 100.0
_TUNING_TIMEOUT_S = 150.0
_FIRST_TIMEOUT_S = 120.0
_REFERENCE_TIMEOUT_S = 15.0
# A combination is started while this is left, seconds: a trial that is cut off says nothing.
_LEAST_LEFT_S = 4.0
_LEAST_LEFT_COLD_S = 25.0
_LEAST_LEFT_TUNING_S = 90.0
_BASELINE_RUNS = 3
# Shares of the time after which combinations that compile nothing make room for those that do, compiling for later ones
# ends, what is left goes to combinations that take a second each, and at last to repeats of the fastest.
_PLAIN_SHARE = 0.45
_AHEAD_SHARE = 0.75
_COMPILED_SHARE = 0.85
_REST_SHARE = 0.92
_FEWEST_COMBINATIONS = 45
# A combination whose code is in the cache is started while so many times what the last such one took is left.
_CACHED_MARGIN = 1.3
_MOST_AHEAD = 12
_MOST_AT_ONCE = 8
_MOST_RANDOM = 300


@dataclass
class Heard:
    """What a trial said of itself, and when."""

    clock: Callable[[], float]
    inspected: Inspected | None = None
    profiled: Profiled | None = None
    stages: dict[str, float] = field(default_factory=dict)

    def __call__(self, message: TrialMessage) -> None:
        if isinstance(message, Inspected):
            self.inspected = message
        elif isinstance(message, Profiled):
            self.profiled = message
        elif isinstance(message, Activity):
            self.stages.setdefault(message.text, self.clock())


class Recorder:
    """Runs trials and keeps their results in the file. ``runner`` and ``clock`` are injectable for tests.

    ``aside`` runs what compiles ahead: it holds no built target, which serves one trial after another.
    """

    def __init__(
        self,
        target: TargetSpec,
        name: str,
        out: Path,
        within_s: float,
        logs: Path,
        *,
        runner: Runner | None = None,
        aside: Runner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target, self.name, self.out, self.logs = target, name, out, logs
        self.within_s = within_s
        self.clock = clock
        self.started = clock()
        self.catalog = load_catalog()
        self.runner, self._aside = runner or Runner(), aside or Runner()
        self.runs: list[Run] = []
        self.conflicts: list[Conflict] = []
        self.landscape: Landscape | None = None
        self._in_cache: set[Settings] = set()
        self._done: set[Settings] = set()
        self._numbers = 0

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.within_s - (self.clock() - self.started)

    # --- the stages -----------------------------------------------------------------------------------------------

    def record(self, hardware: Hardware) -> None:
        """Record until the time is over. Raises RuntimeError when the baseline cannot be measured."""
        first, heard = self._first_run(hardware)
        self._build_once(first)
        for seed in range(1, _BASELINE_RUNS + 1):
            self._measure(Settings({}), stream_seed=seed if seed < _BASELINE_RUNS else 0)
        self._reference()
        assert self.landscape is not None
        made = plan(self.catalog, self.landscape.facts)
        say(f"{self.name}: {heard.profiled.profile.bottleneck if heard.profiled else None}; stack {made.stack}")
        self._all(made.first)
        self._all(made.plain, until_share=_PLAIN_SHARE)
        patient = [wish for wish in made.compiled if not self._tunes(wish.settings)]
        self._compile_ahead(patient)
        self._all(sorted(patient, key=self._is_cold), until_share=_COMPILED_SHARE)
        self._all(made.plain)
        rest = (*made.rest, *self._random(made))
        self._all(rest, until_share=0.0, at_least=_FEWEST_COMBINATIONS)
        self._all(wish for wish in made.compiled if self._tunes(wish.settings))
        self._all(rest, until_share=_REST_SHARE)
        self._repeat_fastest()

    def _first_run(self, hardware: Hardware) -> tuple[TrialResult, Heard]:
        """The baseline with its inspection, from which the facts come, and once more with the instrumented pass."""
        heard = Heard(self.clock)
        spec = self._spec(Settings({}), _FIRST_TIMEOUT_S)
        result = self._timed(replace(spec, kind=TrialKind.BASELINE), heard)
        if not result.measured or heard.inspected is None:
            raise RuntimeError(f"the baseline failed: {result.reason}\n{result.hint}\n{result.details}")
        again = self._timed(replace(spec, kind=TrialKind.PROFILE), heard)
        profile_s = self.clock() - heard.stages.get("profiling", self.clock())
        self.runs += [Run({}, slim(one)) for one in (result, again) if one.measured]
        self._done.add(Settings({}))
        startup_s, build_s = result.startup_s or 0.0, result.build_s or 0.0
        self.landscape = Landscape(
            SCHEMA,
            self.name,
            self.target.target,
            self.target.batch_size,
            self.target.mode,
            hardware,
            heard.inspected.workload,
            heard.inspected.versions,
            slim_profile(heard.profiled.profile) if heard.profiled else None,
            Times(startup_s, startup_s, build_s, build_s, _inspect_s(heard, result), profile_s),
        )
        self._save()
        return result, heard

    def _build_once(self, first: TrialResult) -> None:
        """Build the target for all that comes, where that can be done."""
        began = self.clock()
        log_path = str(self.logs / "build.log")
        problem = self.runner.build_once(self.target, 0, log_path, 10 * (first.build_s or 0.0) + 30)
        assert self.landscape is not None
        times = replace(self.landscape.times, build_once_s=self.clock() - began)
        self.landscape = replace(self.landscape, times=times, builds_anew=problem)
        say(f"{self.name}: built in {times.build_once_s:.1f} s {problem}")

    def _reference(self) -> None:
        """The first steps in a higher precision, where they end soon."""
        if self.left_s < _REFERENCE_TIMEOUT_S:
            return
        assert self.landscape is not None
        spec = replace(self._spec(Settings({}), _REFERENCE_TIMEOUT_S), kind=TrialKind.REFERENCE)
        result = self._timed(spec, Heard(self.clock))
        self.landscape = replace(self.landscape, reference=slim(result) if result.probed else None)
        say(f"{self.name}: reference {result.outcome} {result.reason[:100]}")
        self._save()

    def _all(self, wishes: Iterable[Wish], *, until_share: float = 1.0, at_least: int = 0) -> None:
        """Record combinations in turn, once each, while there is time for them.

        ``until_share`` of the time ends them, once ``at_least`` so many are recorded.
        """
        for wish in wishes:
            enough = len({self._canonical(Settings(run.settings)) for run in self.runs}) >= at_least
            left_s = self.left_s - (1 - until_share) * self.within_s * enough
            if left_s < _LEAST_LEFT_S:
                return
            kept = self._canonical(wish.settings)
            if kept in self._done or left_s < self._least_left_s(kept):
                continue
            self._done.add(kept)
            reason = self.catalog.conflict(wish.settings)
            if reason:
                self.conflicts.append(Conflict(dict(wish.settings), reason))
                continue
            for _ in range(wish.processes):
                if not self._measure(wish.settings).measured:
                    break

    def _repeat_fastest(self) -> None:
        """Measure the fastest combinations once more, as long as there is time and reason to."""
        while settings := fastest_unsure(self._usable()):
            if self.left_s < self._least_left_s(self._canonical(settings)):
                return
            self._measure(settings)

    def _usable(self) -> dict[Settings, list[float]]:
        """The seconds per sample of all processes of what could be a stack."""
        assert self.landscape is not None
        facts = self.landscape.facts
        found: dict[Settings, list[float]] = {}
        for run in self.runs:
            if run.result.measured and may_stack(self.catalog, facts, run.settings):
                found.setdefault(Settings(run.settings), []).append(sample_seconds(run.result))
        return found

    def _random(self, made: Plan) -> list[Wish]:
        """Random combinations, without those that would compile anew."""
        wishes = itertools.islice(random_wishes(self.catalog, made, seed=0), _MOST_RANDOM)
        return [wish for wish in wishes if not self._is_cold(wish)]

    # --- compiling ahead ------------------------------------------------------------------------------------------

    def _compile_ahead(self, wishes: Iterable[Wish]) -> None:
        """Compile what later combinations need, several at once, while nothing is timed."""
        codes: dict[Settings, Settings] = {}
        for wish in wishes:
            kept = self._canonical(wish.settings)
            code = compile_key(kept)
            if code is not None and code not in self._in_cache and not self.catalog.conflict(wish.settings):
                codes.setdefault(code, wish.settings)
        asked = list(codes.items())[:_MOST_AHEAD]
        at_once = self._at_once()
        say(f"{self.name}: {self.left_s:.0f} s left; compiling {len(asked)} ahead, {at_once} at once")
        with ThreadPoolExecutor(at_once) as pool:
            done = list(pool.map(lambda pair: self._ahead(*pair), asked))
        self._in_cache |= {code for code, compiled in zip(codes, done, strict=False) if compiled}

    def _ahead(self, code: Settings, settings: Settings) -> bool:
        """Compile one; whether its code is in the cache now."""
        left_s = self.left_s - (1 - _AHEAD_SHARE) * self.within_s
        if left_s < _LEAST_LEFT_COLD_S:
            return False
        fed = Settings({key: value for key, value in settings.items() if not _feeds(key)})
        spec = replace(self._spec(fed, min(_COMPILE_TIMEOUT_S, left_s)), kind=TrialKind.COMPILE)
        began = self.clock()
        result = self._aside.run(spec, Heard(self.clock))
        say(f"{self.name}: ahead {self.clock() - began:5.1f} s {result.outcome} {code} {result.reason[:100]}")
        return result.outcome is Outcome.MEASURED

    def _at_once(self) -> int:
        """How many may compile beside one another: by the cores, and by the memory that the baseline took."""
        assert self.landscape is not None
        facts = self.landscape.facts
        needed = 2 * (facts.peak_reserved_bytes or 0) + 2**30
        fitting = int(0.8 * (facts.workload.device_memory_bytes or needed) / needed)
        return max(1, min(_MOST_AT_ONCE, facts.hardware.host.usable_cores // 2, fitting))

    # --- one trial ------------------------------------------------------------------------------------------------

    def _measure(self, settings: Settings, *, stream_seed: int = 0) -> TrialResult:
        kept = self._canonical(settings)
        code = compile_key(kept)
        cold = code is not None and code not in self._in_cache
        timeout_s = _PLAIN_TIMEOUT_S
        if code is not None:
            timeout_s = _TUNING_TIMEOUT_S if self._tunes(settings) else _COMPILE_TIMEOUT_S
        spec = self._spec(settings, max(_LEAST_LEFT_S, min(timeout_s + self._slowness_s, self.left_s)))
        result = self._timed(replace(spec, stream_seed=stream_seed), Heard(self.clock))
        if code is not None and result.measured:
            self._in_cache.add(code)
        cut_off = result.outcome is Outcome.TIMED_OUT and spec.timeout_s < timeout_s
        if not cut_off:  # it says what was left, not what it takes
            self.runs.append(Run(dict(settings), slim(result), cold, stream_seed))
            self._save()
        self._tell(settings, result, cold)
        return result

    @property
    def _slowness_s(self) -> float:
        """What a trial needs beside: a few times what the baseline took to build and warm up."""
        if not self.runs:
            return 0.0
        first = self.runs[0].result
        return 4 * ((first.build_s or 0.0) + (first.warmup_s or 0.0))

    def _timed(self, spec: TrialSpec, heard: Callable[[TrialMessage], None]) -> TrialResult:
        """A trial's result, with its wall time as a session sees it."""
        began = self.clock()
        result = self.runner.run(spec, heard)
        if result.outcome is Outcome.CANCELLED:
            raise KeyboardInterrupt
        return replace(result, wall_s=self.clock() - began)

    def _spec(self, settings: Settings, timeout_s: float) -> TrialSpec:
        self._numbers += 1
        return TrialSpec(
            trial_id=f"{self._numbers:03d}",
            target=self.target,
            settings=dict(settings),
            measure_s=_MEASURE_S,
            warmup_limit_s=_WARMUP_LIMIT_S,
            timeout_s=timeout_s,
            log_path=str(self.logs / f"{self._numbers:03d}.log"),
            environment=self.catalog.environment(settings),
            times_phases=any(map(_feeds, settings)) and not self.catalog.compiles(settings),
        )

    def _tell(self, settings: Settings, result: TrialResult, cold: bool) -> None:
        took = f"{1e3 * sample_seconds(result) * (result.batch_size or 1):9.3f} ms" if result.measured else ""
        how = f"{result.outcome} {took} wall {result.wall_s or 0:5.1f} s{' cold' if cold else ''}"
        say(f"{self.name}: {self.left_s:5.0f} left, {how:42} {settings} {result.reason[:120]}")

    def _save(self) -> None:
        assert self.landscape is not None
        fresh = [r.result.startup_s for r in self.runs if r.result.startup_s and self.catalog.environment(r.settings)]
        times = replace(self.landscape.times, interpreter_s=max(fresh, default=self.landscape.times.interpreter_s))
        parts = {"runs": tuple(self.runs), "conflicts": tuple(self.conflicts), "times": times}
        self.landscape = replace(self.landscape, **parts)
        save(self.landscape, self.out)

    def _canonical(self, settings: Settings) -> Settings:
        assert self.landscape is not None
        return canonical(self.catalog, self.landscape.workload, settings)

    def _tunes(self, settings: Settings) -> bool:
        return self.catalog.cost(settings) > 1

    def _is_cold(self, wish: Wish) -> bool:
        code = compile_key(self._canonical(wish.settings))
        return code is not None and code not in self._in_cache

    def _least_left_s(self, kept: Settings) -> float:
        code = compile_key(kept)
        if code is None:
            return _LEAST_LEFT_S
        if code in self._in_cache:
            walls = [run.result.wall_s or 0.0 for run in self.runs if not run.cold and compile_key(run.settings)]
            return max([_LEAST_LEFT_S, *(_CACHED_MARGIN * wall_s for wall_s in walls[-1:])])
        return _LEAST_LEFT_TUNING_S if self._tunes(kept) else _LEAST_LEFT_COLD_S


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def _feeds(key: str) -> bool:
    return key.startswith("data.") and key != "data.batch_size"


def _inspect_s(heard: Heard, result: TrialResult) -> float:
    """Between applying the settings and the first steps the workload is inspected."""
    stages = heard.stages
    if "applying the settings" not in stages or "first steps" not in stages:
        return 0.0
    return max(0.0, stages["first steps"] - stages["applying the settings"] - (result.prepare_s or 0.0))


def _cores(text: str) -> set[int]:
    first, _, last = text.partition("-")
    return set(range(int(first), int(last or first) + 1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--within", type=float, default=240.0, help="seconds in all")
    parser.add_argument("--mode", choices=[str(mode) for mode in Mode])
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cores", type=_cores, help="the cores to stay on, such as 0-15")
    return parser.parse_args()


def _ended(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = _options()
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    signal.signal(signal.SIGTERM, _ended)
    mode = Mode(options.mode) if options.mode else None
    target = TargetSpec(options.target, str(Path.cwd()), mode, options.device, options.batch_size)
    with tempfile.TemporaryDirectory(prefix="landscape-", ignore_cleanup_errors=True) as folder:
        os.environ["PERF_ADVISOR_STATE"] = folder
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))
        recorder = Recorder(target, options.name, options.out.absolute(), options.within, Path(folder, "logs"))
        recorder.runner.prepare()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                recorder.record(inspect_hardware())
        except RuntimeError as error:
            say(f"{options.name}: {error}")
            return 1
        finally:
            recorder.runner.cancel()
            recorder.runner.forget_build()
    measured = sum(run.result.measured for run in recorder.runs)
    size_kb = options.out.stat().st_size / 1e3 if options.out.exists() else 0
    say(
        f"{options.name}: {measured} runs of {len(recorder.runs)} measured, {len(recorder.conflicts)} conflicts, "
        f"{size_kb:.0f} kB, {time.monotonic() - recorder.started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
