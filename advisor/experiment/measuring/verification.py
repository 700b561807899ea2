"""An exported file verified: the user's loop is timed with it and without it, each in a fresh process, in turn."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from advisor.experiment.judging.numerics import distance
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_percent
from advisor.records import Block, Exported, Outcome, StackRecord, TrialKind, TrialResult, Verification

if TYPE_CHECKING:
    from advisor.experiment.measuring.bench import Bench

# Time limit of verifying, at least twice the start-up of the stack. Seconds.
LIMIT_S = 60.0
_STARTS = 2.0
# Timing of each process. Seconds.
_MEASURE_S = 1.5
# A second run of each is made where this multiple of what the first took is left. Unitless.
_AGAIN = 1.3
# Outputs that differ by more than this, and by this multiple of what the session saw of the same settings, are another
# model's. Both unitless.
_MOST_DIFFERENT = 0.05
_MARGIN = 2.0

# The runs without the file (False) and with it (True).
_Runs = dict[bool, list[TrialResult]]


def limit_s(stack: StackRecord) -> float:
    """The time limit of verifying, in seconds."""
    result = stack.result
    start_s = (result.build_s or 0.0) + (result.prepare_s or 0.0) + (result.warmup_s or 0.0)
    return max(LIMIT_S, _STARTS * start_s)


def may_be_verified(state: SessionState) -> bool:
    """Whether there is something to verify: a session that ran to its end, and a stack that was confirmed."""
    ended = state.finished is not None and not state.finished.cancelled and state.failure is None
    stack = state.stack
    return ended and stack is not None and stack.confirmed and bool(stack.settings) and not stack.pending


def verify(bench: Bench, exported: Exported, stack: StackRecord) -> Verification:
    """Time the loop without the file and with it, A B B A as far as the limit allows."""
    started = time.monotonic()
    runs, problem = _runs_in_turn(bench, exported, stack, until=started + limit_s(stack))
    seconds = time.monotonic() - started
    if problem:
        return Verification(exported.path, seconds=seconds, problem=problem)
    difference = _difference(runs)
    if difference is not None and not difference <= max(_MOST_DIFFERENT, _MARGIN * _of_stack(stack)):
        problem = f"its outputs differ by {format_percent(difference, digits=1)} from the loop's without it"
        return Verification(exported.path, seconds=seconds, problem=problem, difference=difference)
    plain, tuned = _blocks(runs[False]), _blocks(runs[True])
    return Verification(
        exported.path,
        speedup=_rate(tuned) / _rate(plain),
        plain_step_ms=median(block.step_ms for block in plain),
        tuned_step_ms=median(block.step_ms for block in tuned),
        session_speedup=stack.comparison.speedup if stack.comparison else None,
        seconds=seconds,
        difference=difference,
    )


def _runs_in_turn(bench: Bench, exported: Exported, stack: StackRecord, *, until: float) -> tuple[_Runs, str]:
    """The runs without and with the file, A B B A as far as there is time, and the problem of one that failed."""
    runs: _Runs = {False: [], True: []}
    first_s = {False: 0.0, True: 0.0}
    for tuned in (False, True, True, False):
        started = time.monotonic()
        if runs[tuned] and until - started < _AGAIN * first_s[tuned]:
            break
        result = _run(bench, exported if tuned else None, stack, until - started)
        if not result.measured:
            return runs, _problem_of(result, stack, tuned=tuned)
        first_s[tuned] = first_s[tuned] or time.monotonic() - started
        runs[tuned].append(result)
    return runs, ""


def _problem_of(result: TrialResult, stack: StackRecord, *, tuned: bool) -> str:
    """The reason why a run gave no figures."""
    late = result.outcome is Outcome.TIMED_OUT
    why = f"it did not end within {limit_s(stack):.0f} s" if late else result.reason
    return f"the loop {'with' if tuned else 'without'} the file: {why}"


def _difference(runs: _Runs) -> float | None:
    """The difference of the outputs with the file and without it; None where there are none of the same batch."""
    plain, tuned = runs[False][0], runs[True][0]
    same = plain.outputs and len(plain.outputs) == len(tuned.outputs) and plain.batch_size == tuned.batch_size
    return distance(tuned.outputs, plain.outputs) if same else None


def _of_stack(stack: StackRecord) -> float:
    """The difference that the session measured of the same settings."""
    return stack.numerics.difference or 0.0 if stack.numerics else 0.0


def _run(bench: Bench, exported: Exported | None, stack: StackRecord, left_s: float) -> TrialResult:
    spec = bench.spec(
        "export, verified" if exported else "baseline, beside the export",
        stack.settings if exported else {},
        kind=TrialKind.VERIFY,
    )
    target = spec.target
    if exported and exported.config is not None:
        target = replace(target, config=exported.config)
    path = exported.path if exported else ""
    spec = replace(spec, target=target, export_path=path, measure_s=_MEASURE_S, timeout_s=max(left_s, 1.0))
    return bench.runner.run(spec, lambda message: None)


def _blocks(results: list[TrialResult]) -> list[Block]:
    return [block for result in results for block in result.blocks]


def _rate(blocks: list[Block]) -> float:
    return median(block.samples_per_s for block in blocks)
