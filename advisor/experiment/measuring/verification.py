"""Times a loop with an exported file and without it, in turns of fresh processes.

``verify`` does so after a session. ``check`` does so later, and shows whether the settings are still worth it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from advisor.errors import TargetError
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_percent
from advisor.figures.stats import Interval, process_spread, ratio_interval
from advisor.files.folders import scratch_folder
from advisor.judging.numerics import LOSSES, OUTPUTS, differences
from advisor.judging.runs import rates
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Block,
    Exported,
    Numerics,
    NumericsResult,
    Outcome,
    StackRecord,
    TargetSpec,
    TrialKind,
    TrialResult,
    TrialSpec,
    Verification,
)

if TYPE_CHECKING:
    from advisor.experiment.measuring.bench import Bench
    from advisor.runner.trials import Runner  # the app imports this module before it starts a trial

# Spread (standard deviation) between processes of one program before any repeat: loops on shared CPUs. Unitless.
_UNKNOWN_PROGRAM = 0.04
_LIKE_BEFORE = 1.2  # time that must be left for another pair, as a multiple of the longest pair so far; unitless
# Time reserved to end a process that overruns, and the shortest time for a process. Seconds.
_ENDING_S, _LEAST_S = 0.5, 1.0

# The results of the plain loop and of the tuned one.
Pair = tuple[TrialResult, TrialResult]


def loop_spec(name: str, target: TargetSpec, *, limit_s: float, measure_s: float = 0.0, steps: int = 0) -> TrialSpec:
    """A process that times the target's plain loop for ``measure_s`` seconds, or for this number of ``steps``."""
    return TrialSpec(
        trial_id=name,
        target=target,
        settings={},
        measure_s=measure_s,
        warmup_limit_s=limit_s,
        timeout_s=limit_s,
        log_path=str(scratch_folder() / f"{name.replace(' ', '-')}.log"),
        kind=TrialKind.VERIFY,
        steps=steps,
    )


def with_file(plain: TrialSpec, path: str, catalog: Catalog) -> TrialSpec:
    """The same spec with an exported file applied to the loop. Raises UsageError for settings that no recipe has."""
    settings = catalog.without_removed(Settings.from_file(path))
    catalog.check(settings)
    return replace(
        plain,
        trial_id="with the settings",
        settings=dict(settings),
        log_path=str(scratch_folder() / "with-the-settings.log"),
        environment=catalog.environment(settings),
        export_path=str(Path(path).resolve()),
    )


def time_in_pairs(
    runner: Runner, plain: TrialSpec, tuned: TrialSpec, say: Callable[[str], None], *, until: float, most: int
) -> list[Pair]:
    """Time the plain and the tuned loop in at most ``most`` pairs of processes, A B B A.

    ``until`` is a time of ``time.monotonic()``: a pair that would end later is dropped. The second run of a spec is
    ``rounded``. Raises TargetError if a loop fails or if no pair ends in time.
    """
    pairs: list[Pair] = []
    longest_s = 0.0
    while len(pairs) < most:
        begun = time.monotonic()
        if pairs and until - begun < _LIKE_BEFORE * longest_s:
            break
        results: dict[str, TrialResult] = {}
        for spec in (plain, tuned) if len(pairs) % 2 == 0 else (tuned, plain):
            say(f"pair {len(pairs) + 1}: {spec.trial_id}")
            left_s = until - time.monotonic() - _ENDING_S
            this = replace(spec, timeout_s=max(_LEAST_S, left_s), rounded=spec.rounded and bool(pairs))
            result = runner.run(this, lambda message: None)
            if pairs and (result.outcome is Outcome.TIMED_OUT or (this.rounded and not result.measured)):
                return pairs
            if not result.measured:
                late = result.outcome is Outcome.TIMED_OUT
                hint = "Give it more time with --budget." if late else result.hint or "Fix what the lines below show."
                which = "with" if spec.export_path else "without"
                raise TargetError(f"the loop {which} the file: {result.reason}", hint, result.details)
            results[spec.trial_id] = result
        pairs.append((results[plain.trial_id], results[tuned.trial_id]))
        longest_s = max(longest_s, time.monotonic() - begun)
    return pairs


def middle_block(runs: Sequence[TrialResult]) -> Block:
    """The block of median speed of these runs: a single block, so that its figures are consistent."""
    blocks = sorted((block for run in runs for block in run.blocks), key=lambda block: block.samples_per_s)
    return blocks[len(blocks) // 2]


# --- after a session ------------------------------------------------------------------------------------------

# Time limit of verifying, at least twice the start-up of the stack. Seconds.
LIMIT_S = 60.0
_STARTS = 2.0
# Measuring time of each process. Seconds.
_VERIFY_S = 1.5
_MOST_VERIFIED = 2  # each loop runs a second time if there is time; a count
# If outputs or losses differ by more than this and by this multiple of the difference that the session saw, they come
# from another model. Settings that keep results exact have a lower limit. A half is always too much. Unitless.
_MOST_DIFFERENT, _MOST_OF_EXACT = 0.05, 0.01
_MARGIN, _SAYS_NOTHING = 2.0, 0.5
_ONE_BY_ONE = 5  # number of first losses that are compared one by one; beyond that, the mean loss counts
_SAME_BATCH = 1e-3  # first batches that differ by more have other samples, or other random draws of a transform


def limit_s(stack: StackRecord) -> float:
    """The time limit of verifying, in seconds."""
    result = stack.result
    start_s = (result.build_s or 0.0) + (result.prepare_s or 0.0) + (result.warmup_s or 0.0)
    return max(LIMIT_S, _STARTS * start_s)


def may_be_verified(state: SessionState) -> bool:
    """Whether there is something to verify: a completed session with a confirmed stack."""
    ended = state.finished is not None and not state.finished.cancelled and state.failure is None
    stack = state.stack
    return ended and stack is not None and stack.confirmed and bool(stack.settings) and not stack.pending


def verify(bench: Bench, exported: Exported, stack: StackRecord) -> Verification:
    """Time the loop without the file and with it, within the time limit."""
    started = time.monotonic()
    plain = bench.spec("baseline, beside the export", {}, kind=TrialKind.VERIFY)
    tuned = bench.spec("export, verified", stack.settings, kind=TrialKind.VERIFY)
    config = tuned.target.config if exported.config is None else exported.config
    as_it_is = {file: file for file in exported.read_as}  # both run the lines of the user's own files
    seen = stack.numerics or NumericsResult(Numerics.CLOSE, Numerics.CLOSE, None, "")
    rounds = seen.decisive is not Numerics.EXACT
    plain = replace(plain, measure_s=_VERIFY_S, rounded=rounds, target=replace(plain.target, read_as=as_it_is))
    target = replace(tuned.target, config=config, read_as=exported.read_as)
    tuned = replace(tuned, measure_s=_VERIFY_S, target=target, export_path=exported.path)
    try:
        until = started + limit_s(stack)
        pairs = time_in_pairs(bench.runner, plain, tuned, lambda text: None, until=until, most=_MOST_VERIFIED)
    except TargetError as error:
        return Verification(exported.path, seconds=time.monotonic() - started, problem=error.message)
    difference = _difference(pairs[0][1], pairs[0][0])
    # Results of the plain loop may differ between starts (a script that draws in threads). Rounding alone changes
    # losses that leave a plateau by 5 % (ResNet-50, an H200), so the second run of the plain loop is rounded.
    between_starts = _difference(pairs[-1][0], pairs[0][0]) or 0.0
    most = max(_MOST_DIFFERENT if rounds else _MOST_OF_EXACT, seen.another_draw)
    seconds, compared = time.monotonic() - started, "losses" if pairs[0][1].losses else "outputs"
    found = Verification(exported.path, seconds=seconds, difference=difference, compared=compared)
    explained = min(_SAYS_NOTHING, _MARGIN * max(seen.difference or 0.0, between_starts))
    if difference is not None and not difference <= max(most, explained):
        shown = format_percent(difference, digits=1)
        return replace(found, problem=f"its {compared} differ by {shown} from the loop without the file")
    without, with_file = (middle_block(runs) for runs in zip(*pairs, strict=True))
    return replace(
        found,
        speedup=with_file.samples_per_s / without.samples_per_s,
        plain_step_ms=without.step_ms,
        tuned_step_ms=with_file.step_ms,
        session_speedup=stack.comparison.speedup if stack.comparison else None,
        whole_rounds=bool(exported.read_as),
    )


def _difference(new: TrialResult, old: TrialResult) -> float | None:
    """The relative difference of the outputs or first losses of two runs; None if they cannot be compared.

    For a training, the outputs are its first batch.
    """
    found = differences(OUTPUTS, new, old)
    others = bool(new.losses) is not bool(old.losses) or (new.losses and any(one > _SAME_BATCH for one in found))
    if new.batch_size != old.batch_size or others:
        return None
    losses = differences(LOSSES, new, old)
    return max((*losses[:_ONE_BY_ONE], fmean(losses))) if losses else max(found, default=None)


def ratio_of_processes(new: Sequence[Sequence[float]], old: Sequence[Sequence[float]]) -> Interval:
    """The ratio of the rates of two programs. Only these processes determine the spread."""
    spread = process_spread([[median(run) for run in side] for side in (old, new)], prior=_UNKNOWN_PROGRAM)
    return ratio_interval(new, old, spread)


# --- later ----------------------------------------------------------------------------------------------------

# Longest measuring time of a process in seconds, and its largest share of the budget.
_CHECK_S = 3.0
_CHECK_SHARE = 0.04
# Largest number of pairs of processes; more hardly narrow the interval. A count.
_MOST_CHECKED = 4


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


def check(
    runner: Runner, request: Request, path: str, catalog: Catalog, say: Callable[[str], None], *, started: float
) -> Checked:
    """Time the plain loop and the tuned one in pairs of processes, as many as the budget allows.

    The budget began at ``started``, a time of ``time.monotonic()``. Raises TargetError if a process fails, or if not
    even one pair fits into the budget.
    """
    measure_s = min(_CHECK_S, _CHECK_SHARE * request.budget_s)
    plain = loop_spec("without the settings", request.target, limit_s=request.budget_s, measure_s=measure_s)
    tuned = with_file(plain, path, catalog)
    pairs = time_in_pairs(runner, plain, tuned, say, until=started + request.budget_s, most=_MOST_CHECKED)
    without, with_settings = zip(*pairs, strict=True)
    new, old = ([rates(run.blocks) for run in side] for side in (with_settings, without))
    return Checked(
        *ratio_of_processes(new, old),
        plain_step_ms=middle_block(without).step_ms,
        tuned_step_ms=middle_block(with_settings).step_ms,
        pairs=len(pairs),
        seconds=time.monotonic() - started,
    )
