"""Records what combinations of settings take on one workload, with real trial processes.

    python tests/landscapes/record.py tests/gpu/workloads/mlp12.py:build --name mlp12 --out mlp12.json.gz --within 240

The baseline comes first, then the usual stack, without compiling and compiled, then each of the two without one of its
settings and with one more, then each candidate alone; at last the fastest combinations are repeated. The file is whole
after each combination, so the program can be ended at any time. To record several workloads at once, start it for each
with another CUDA_VISIBLE_DEVICES and other ``--cores``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from advisor.experiment.consent import Consent
from advisor.experiment.plan import Plan
from advisor.experiment.request import Request
from advisor.machine.hardware import inspect_hardware
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Activity,
    Hardware,
    Inspected,
    Mode,
    Numerics,
    Outcome,
    Profiled,
    TargetSpec,
    TrialKind,
    TrialMessage,
    TrialResult,
    TrialSpec,
)
from advisor.runner.trials import Runner
from landscapes.harness import may_stack
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

# Seconds of measuring and of warming up after the first step, as a session of a minute has them.
_MEASURE_S, _WARMUP_LIMIT_S = 0.6, 0.9
# Deadlines of a trial in seconds: an ordinary one, one that compiles anew, and the reference.
_PLAIN_TIMEOUT_S, _COMPILE_TIMEOUT_S, _REFERENCE_TIMEOUT_S = 30.0, 150.0, 15.0
# An ordinary trial, and one that compiles anew, is started while this is left: one that is cut off says nothing.
_LEAST_LEFT_S, _LEAST_LEFT_COLD_S = 4.0, 25.0
# Shares of the time after which combinations that compile nothing make room for others, and those for repeats.
_PLAIN_SHARE, _ALL_SHARE = 0.45, 0.92
# So many of the fastest combinations are measured in so many processes.
_FASTEST, _ENOUGH_RUNS = 3, 5


class Recorder:
    """Runs trials and keeps their results in the file."""

    def __init__(self, target: TargetSpec, name: str, out: Path, within_s: float, logs: Path) -> None:
        self.target, self.name, self.out, self.within_s, self.logs = target, name, out, within_s, logs
        self.started = time.monotonic()
        self.catalog, self.runner = load_catalog(), Runner()
        self.runs: list[Run] = []
        self.conflicts: list[Conflict] = []
        self.landscape: Landscape
        self._heard: dict[type, TrialMessage] = {}
        self._stages: dict[str, float] = {}
        self._in_cache: set[Settings] = set()

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.within_s - (time.monotonic() - self.started)

    def record(self, hardware: Hardware) -> None:
        """Record until the time is over. Raises RuntimeError when the baseline cannot be measured."""
        self._first_runs(hardware)
        for seed in (1, 2):
            self._measure(Settings(), stream_seed=seed)
        result = self._timed(replace(self._spec(Settings(), _REFERENCE_TIMEOUT_S), kind=TrialKind.REFERENCE))
        self.landscape = replace(self.landscape, reference=slim(result) if result.probed else None)
        facts = self.landscape.facts
        consent = Consent(self.catalog, facts.workload.mode, Numerics.CHANGED)
        plan = Plan.of(self.catalog, Request(self.target), facts, consent)
        plain, compiled = (list(combinations(plan, stack)) for stack in _stacks(plan))
        self._all((*plain[:1], *compiled[:1]), self.within_s)
        self._all(plain, _PLAIN_SHARE * self.within_s)
        self._all((*compiled, *plain, *(Settings(one.settings) for one in plan.candidates)), _ALL_SHARE * self.within_s)
        while (fastest := self._fastest_unsure()) is not None and self.left_s > _LEAST_LEFT_S:
            self._measure(fastest)

    def _first_runs(self, hardware: Hardware) -> None:
        """The baseline with its inspection, from which the facts come, with the instrumented pass, and one build."""
        spec = replace(self._spec(Settings(), _COMPILE_TIMEOUT_S), kind=TrialKind.BASELINE)
        result, again = self._timed(spec), self._timed(replace(spec, kind=TrialKind.PROFILE))
        inspected, profiled = self._heard.get(Inspected), self._heard.get(Profiled)
        if not result.measured or not isinstance(inspected, Inspected):
            raise RuntimeError(f"the baseline failed: {result.reason}\n{result.hint}\n{result.details}")
        profile_s = time.monotonic() - self._stages.get("profiling", time.monotonic())
        self.runs += [Run({}, slim(one)) for one in (result, again) if one.measured]
        startup_s, build_s = result.startup_s or 0.0, result.build_s or 0.0
        inspect_s = self._stages.get("first steps", 0.0) - self._stages.get("applying the settings", 0.0)
        began = time.monotonic()
        problem = self.runner.build_once(self.target, 0, str(self.logs / "build.log"), 10 * build_s + 30)
        times = Times(startup_s, startup_s, build_s, time.monotonic() - began, max(0.0, inspect_s), profile_s)
        self.landscape = Landscape(
            SCHEMA,
            self.name,
            self.target.target,
            self.target.batch_size,
            self.target.mode,
            hardware,
            inspected.workload,
            inspected.versions,
            slim_profile(profiled.profile) if isinstance(profiled, Profiled) else None,
            times,
            builds_anew=problem,
        )

    def _all(self, wanted: Iterable[Settings], until_s: float) -> None:
        """Record combinations in turn, once each, until so many seconds of all have passed."""
        for settings in wanted:
            kept, left_s = self._canonical(settings), self.left_s - (self.within_s - until_s)
            known = {self._canonical(Settings(one.settings)) for one in (*self.runs, *self.conflicts)}
            if kept in known or left_s < (_LEAST_LEFT_COLD_S if self._is_cold(kept) else _LEAST_LEFT_S):
                continue
            if reason := self.catalog.conflict(settings):
                self.conflicts.append(Conflict(dict(settings), reason))
            else:
                self._measure(settings)

    def _fastest_unsure(self) -> Settings | None:
        """The least measured of the fastest that could be a stack: the best known should not be a lucky draw."""
        found: dict[Settings, list[float]] = {}
        for run in self.runs:
            if run.result.measured and may_stack(self.catalog, self.landscape.facts, run.settings):
                found.setdefault(Settings(run.settings), []).append(sample_seconds(run.result))
        fastest = sorted(found, key=lambda settings: median(found[settings]))[:_FASTEST]
        unsure = [settings for settings in fastest if len(found[settings]) < _ENOUGH_RUNS]
        return min(unsure, key=lambda settings: len(found[settings]), default=None)

    # --- one trial ------------------------------------------------------------------------------------------------

    def _measure(self, settings: Settings, *, stream_seed: int = 0) -> None:
        kept = self._canonical(settings)
        cold, code = self._is_cold(kept), compile_key(kept)
        timeout_s = _COMPILE_TIMEOUT_S if cold else _PLAIN_TIMEOUT_S
        spec = self._spec(settings, max(_LEAST_LEFT_S, min(timeout_s, self.left_s)))
        result = self._timed(replace(spec, stream_seed=stream_seed))
        if code is not None and result.measured:
            self._in_cache.add(code)
        if result.outcome is not Outcome.TIMED_OUT or spec.timeout_s == timeout_s:  # else it says what was left
            self.runs.append(Run(dict(settings), slim(result), cold, stream_seed))
            parts = {"runs": tuple(self.runs), "conflicts": tuple(self.conflicts)}
            self.landscape = replace(self.landscape, **parts)
            save(self.landscape, self.out)
        took = f"{1e3 * sample_seconds(result) * (result.batch_size or 1):.3f} ms" if result.measured else result.reason
        print(f"{self.name}: {self.left_s:.0f} s left, {settings}: {result.outcome} {took[:120]}", flush=True)

    def _timed(self, spec: TrialSpec) -> TrialResult:
        """A trial's result, with its wall time as a session sees it."""
        began = time.monotonic()
        result = self.runner.run(spec, self._hear)
        if result.outcome is Outcome.CANCELLED:
            raise KeyboardInterrupt
        return replace(result, wall_s=time.monotonic() - began)

    def _hear(self, message: TrialMessage) -> None:
        self._heard[type(message)] = message
        if isinstance(message, Activity):
            self._stages.setdefault(message.text, time.monotonic())

    def _spec(self, settings: Settings, timeout_s: float) -> TrialSpec:
        return TrialSpec(
            trial_id=f"{len(self.runs):03d}",
            target=self.target,
            settings=dict(settings),
            measure_s=_MEASURE_S,
            warmup_limit_s=_WARMUP_LIMIT_S,
            timeout_s=timeout_s,
            log_path=str(self.logs / f"{len(self.runs):03d}.log"),
            environment=self.catalog.environment(settings),
            times_phases=any(key.startswith("data.") for key in settings) and not self.catalog.compiles(settings),
        )

    def _canonical(self, settings: Settings) -> Settings:
        return canonical(self.catalog, self.landscape.workload, settings)

    def _is_cold(self, kept: Settings) -> bool:
        code = compile_key(kept)
        return code is not None and code not in self._in_cache


def _stacks(plan: Plan) -> tuple[Settings, Settings]:
    """The usual stack without compiling, and compiled."""
    usual = plan.usual_stack()
    return usual, plan.compiled(usual)


def combinations(plan: Plan, stack: Settings) -> Iterator[Settings]:
    """A stack, the same without each of its settings, and with each other candidate added or in its place."""
    yield stack
    yield from (stack.without(key) for key in stack)
    for candidate in (*plan.candidates, *plan.partnered(stack)):
        yield stack.merged(candidate.settings)


def _cores(text: str) -> set[int]:
    first, _, last = text.partition("-")
    return set(range(int(first), int(last or first) + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--within", type=float, default=240.0, help="seconds in all")
    parser.add_argument("--mode", type=Mode)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cores", type=_cores, help="the cores to stay on, such as 0-15")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    target = TargetSpec(options.target, str(Path.cwd()), options.mode, options.device, options.batch_size)
    with tempfile.TemporaryDirectory(prefix="landscape-", ignore_cleanup_errors=True) as folder:
        os.environ["PERF_ADVISOR_STATE"] = folder
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))
        recorder = Recorder(target, options.name, options.out.absolute(), options.within, Path(folder, "logs"))
        recorder.runner.prepare()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                recorder.record(inspect_hardware())
        finally:
            recorder.runner.cancel()
            recorder.runner.forget_build()
    return 0


if __name__ == "__main__":
    sys.exit(main())
