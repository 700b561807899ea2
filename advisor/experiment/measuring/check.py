"""Settings measured again: the target's loop with a settings file and without it, in turn, each in fresh processes."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from advisor.errors import TargetError
from advisor.experiment.judging.runs import rates
from advisor.experiment.measuring.verification import Pair, middle_block, pairs_in_turn
from advisor.experiment.request import Request
from advisor.figures.stats import process_spread, ratio_interval
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
# Standard deviation between processes of the same program before any was repeated: of loops on shared CPUs. Unitless.
_PRIOR_SPREAD = 0.04


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
    """Time the plain loop and the tuned one in pairs of processes, as many as the budget holds.

    The budget began at ``started``, of ``time.monotonic()``; now if that is left out. A pair that time runs out for is
    left out. Raises TargetError where a process fails, or where not even one pair fits into the budget.
    """
    started = time.monotonic() if started is None else started
    settings = catalog.without_removed(Settings.from_file(path))
    catalog.check(settings)
    specs = {tuned: _spec(request, settings, path, catalog, tuned=tuned) for tuned in (False, True)}
    pairs, failed = pairs_in_turn(runner, specs, started + request.budget_s, _MOST_PAIRS, say)
    if failed is not None:
        tuned, result = failed
        raise _not_measured(result, specs[tuned])
    return _judged(pairs, time.monotonic() - started)


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


def _not_measured(result: TrialResult, spec: TrialSpec) -> TargetError:
    late = result.outcome is Outcome.TIMED_OUT
    return TargetError(
        f"the loop {spec.trial_id}: {result.reason}",
        "Give it more time with --budget." if late else result.hint or "Fix what the lines below show.",
        result.details,
    )


def _judged(pairs: list[Pair], seconds: float) -> Checked:
    plain, tuned = ([rates(pair[which].blocks) for pair in pairs] for which in (False, True))
    groups = [[median(run) for run in side] for side in (plain, tuned)]
    spread = process_spread(groups, prior=_PRIOR_SPREAD)
    estimate, low, high = ratio_interval(tuned, plain, spread)
    assert math.isfinite(estimate), "blocks have steps and take time"
    plain_ms, tuned_ms = (middle_block(pairs, tuned=which).step_ms for which in (False, True))
    return Checked(estimate, low, high, plain_ms, tuned_ms, len(pairs), seconds)
