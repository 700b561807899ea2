"""Settings measured again: the target's loop with a settings file and without it, in turn, each in fresh processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from advisor.errors import TargetError
from advisor.experiment.judging.judge import rates
from advisor.experiment.request import Request
from advisor.figures.stats import process_spread, runs_ratio_interval
from advisor.files.scratch import SCRATCH
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Outcome, TrialKind, TrialResult, TrialSpec
from advisor.runner.trials import Runner

# Longest timing of a process in seconds, and its largest share of the budget.
_MEASURE_S = 3.0
_MEASURE_SHARE = 0.04
# Pairs of processes at most; beyond these an interval hardly narrows. A count.
_MOST_PAIRS = 4
# Time to have left for another pair, as a multiple of the longest so far. Unitless.
_LIKE_BEFORE = 1.2
# Kept of the budget for ending a process that overruns it, and the least that a process gets. Seconds.
_ENDING_S, _LEAST_S = 0.5, 1.0
# Standard deviation between processes of the same program before any was repeated: of loops on shared CPUs. Unitless.
_PRIOR_SPREAD = 0.04


# The results of the plain loop (False) and of the tuned one (True).
_Pair = dict[bool, TrialResult]


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: the ratio of samples per second with its 95 % interval, and ms per step of both loops."""

    speedup: float
    ci_low: float
    ci_high: float
    plain_step_ms: float
    tuned_step_ms: float
    pairs: int
    seconds: float

    def reaches(self, least: float) -> bool:
        """Whether the speed-up may be ``least`` or more: only a whole interval below it says no."""
        return self.ci_high >= least


def check(
    runner: Runner,
    request: Request,
    path: str,
    catalog: Catalog,
    say: Callable[[str], None],
    *,
    started: float | None = None,
) -> Checked:
    """Measure pairs of processes, plain and tuned, while the budget holds another; it began when the clock ``started``.

    A pair for which there is too little time after all is left out. Raises TargetError where a process fails, or where
    not even one pair fits into the budget.
    """
    started = time.monotonic() if started is None else started
    settings = Settings.from_file(path)
    catalog.check(settings)
    specs = {tuned: _spec(request, settings, path, catalog, tuned=tuned) for tuned in (False, True)}
    until = started + request.budget_s
    pairs: list[_Pair] = []
    longest_s = 0.0
    while len(pairs) < _MOST_PAIRS:
        begun = time.monotonic()
        if pairs and until - begun < _LIKE_BEFORE * longest_s:
            break
        pair = _pair(runner, specs, len(pairs), say, until)
        if pair is None:
            break
        pairs.append(pair)
        longest_s = max(longest_s, time.monotonic() - begun)
    return _judged(pairs, time.monotonic() - started)


def _pair(
    runner: Runner, specs: dict[bool, TrialSpec], number: int, say: Callable[[str], None], until: float
) -> _Pair | None:
    """A process of each, plain first in every other pair; None where a further pair ran out of time."""
    pair: _Pair = {}
    for tuned in (False, True) if number % 2 == 0 else (True, False):
        say(f"pair {number + 1}: {specs[tuned].trial_id}")
        left_s = until - time.monotonic() - _ENDING_S
        result = runner.run(replace(specs[tuned], timeout_s=max(_LEAST_S, left_s)), lambda message: None)
        if number and result.outcome is Outcome.TIMED_OUT:
            return None
        pair[tuned] = _checked(result, specs[tuned])
    return pair


def _spec(request: Request, settings: Settings, path: str, catalog: Catalog, *, tuned: bool) -> TrialSpec:
    """A process that times the plain loop, with the file applied where it is ``tuned``."""
    name = "with the settings" if tuned else "without the settings"
    return TrialSpec(
        trial_id=name,
        target=request.target,
        settings=dict(settings) if tuned else {},
        measure_s=min(_MEASURE_S, _MEASURE_SHARE * request.budget_s),
        warmup_limit_s=request.budget_s,
        timeout_s=request.budget_s,
        log_path=str(SCRATCH.folder() / f"{name.replace(' ', '-')}.log"),
        kind=TrialKind.VERIFY,
        environment=catalog.environment(settings) if tuned else {},
        export_path=str(Path(path).resolve()) if tuned else "",
    )


def _checked(result: TrialResult, spec: TrialSpec) -> TrialResult:
    """Return the result. Raises TargetError if it was not measured."""
    if result.measured:
        return result
    late = result.outcome is Outcome.TIMED_OUT
    raise TargetError(
        f"the loop {spec.trial_id}: {result.reason}",
        "Give it more time with --budget." if late else result.hint or "Fix what the lines below show.",
        result.details,
    )


def _judged(pairs: list[_Pair], seconds: float) -> Checked:
    runs = {tuned: [pair[tuned] for pair in pairs] for tuned in (False, True)}
    plain, tuned = ([rates(result.blocks) for result in runs[which]] for which in (False, True))
    groups = [[median(run) for run in side] for side in (plain, tuned)]
    spread = process_spread(groups, prior=_PRIOR_SPREAD)
    estimate, low, high = runs_ratio_interval(tuned, plain, spread)
    step_ms = [median(block.step_ms for result in runs[which] for block in result.blocks) for which in (False, True)]
    assert math.isfinite(estimate), "blocks have steps and take time"
    return Checked(estimate, low, high, step_ms[0], step_ms[1], len(tuned), seconds)
