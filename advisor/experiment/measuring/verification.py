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
# What each process times, in seconds.
_MEASURE_S = 1.5
# A second run of each is made where this multiple of what the first took is left. Unitless.
_AGAIN = 1.3
# Outputs that differ by more than this, and by this multiple of what the session saw of the same settings, are another
# model's. Both unitless.
_MOST_DIFFERENT = 0.05
_MARGIN = 2.0


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
    until = started + limit_s(stack)
    runs: dict[bool, list[tuple[TrialResult, float]]] = {False: [], True: []}
    for tuned in (False, True, True, False):
        now = time.monotonic()
        if runs[tuned] and until - now < _AGAIN * runs[tuned][0][1]:
            break
        result = _run(bench, exported if tuned else None, stack, until - now)
        if not result.measured:
            what = "with the file" if tuned else "without the file"
            late = result.outcome is Outcome.TIMED_OUT
            why = f"it did not end within {limit_s(stack):.0f} s" if late else result.reason
            return Verification(exported.path, seconds=now - started, problem=f"the loop {what}: {why}")
        runs[tuned].append((result, time.monotonic() - now))
    difference = _difference(runs)
    if difference is not None and not difference <= max(_MOST_DIFFERENT, _MARGIN * _of_stack(stack)):
        problem = f"its outputs differ by {format_percent(difference, digits=1)} from the loop's without it"
        return Verification(exported.path, seconds=time.monotonic() - started, problem=problem, difference=difference)
    plain, tuned_blocks = (_blocks([result for result, _ in runs[which]]) for which in (False, True))
    return Verification(
        exported.path,
        speedup=_rate(tuned_blocks) / _rate(plain),
        plain_step_ms=median(block.step_ms for block in plain),
        tuned_step_ms=median(block.step_ms for block in tuned_blocks),
        session_speedup=stack.comparison.speedup if stack.comparison else None,
        seconds=time.monotonic() - started,
        difference=difference,
    )


def _difference(runs: dict[bool, list[tuple[TrialResult, float]]]) -> float | None:
    """The difference of the outputs with the file and without it; None where there are none of the same batch."""
    plain, tuned = runs[False][0][0], runs[True][0][0]
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
