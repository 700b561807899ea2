"""A loop timed with an exported file and without it, in fresh processes in turn, and what that says of the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.experiment.judging.numerics import distance
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_percent
from advisor.records import Block, Exported, Outcome, StackRecord, TrialKind, TrialResult, TrialSpec, Verification

if TYPE_CHECKING:
    from advisor.experiment.measuring.bench import Bench
    from advisor.runner.trials import Runner  # the app imports this module before it starts a trial


# Time limit of verifying, at least twice the start-up of the stack. Seconds.
LIMIT_S = 60.0
_STARTS = 2.0
# Timing of each process. Seconds.
_MEASURE_S = 1.5
# A second run of each is made where there is time. A count.
_MOST_PAIRS = 2
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
    specs = {False: _spec(bench, None, stack), True: _spec(bench, exported, stack)}
    pairs, failed = pairs_in_turn(bench.runner, specs, started + limit_s(stack), _MOST_PAIRS)
    seconds = time.monotonic() - started
    if failed is not None:
        tuned, result = failed
        return Verification(exported.path, seconds=seconds, problem=_problem_of(result, stack, tuned=tuned))
    difference = _difference(pairs[0])
    usual = max(_MOST_DIFFERENT, _MARGIN * _of_stack(stack), _MARGIN * _between_starts(pairs))
    if difference is not None and not difference <= usual:
        problem = f"its outputs differ by {format_percent(difference, digits=1)} from the loop's without it"
        return Verification(exported.path, seconds=seconds, problem=problem, difference=difference)
    plain, with_file = middle_block(pairs, tuned=False), middle_block(pairs, tuned=True)
    return Verification(
        exported.path,
        speedup=with_file.samples_per_s / plain.samples_per_s,
        plain_step_ms=plain.step_ms,
        tuned_step_ms=with_file.step_ms,
        session_speedup=stack.comparison.speedup if stack.comparison else None,
        seconds=seconds,
        difference=difference,
    )


def _problem_of(result: TrialResult, stack: StackRecord, *, tuned: bool) -> str:
    """The reason why a run gave no figures."""
    late = result.outcome is Outcome.TIMED_OUT
    why = f"it did not end within {limit_s(stack):.0f} s" if late else result.reason
    return f"the loop {'with' if tuned else 'without'} the file: {why}"


def _difference(pair: Pair) -> float | None:
    """The difference of the outputs with the file and without it; None where there are none of the same batch."""
    plain, tuned = pair[False], pair[True]
    same = plain.outputs and len(plain.outputs) == len(tuned.outputs) and plain.batch_size == tuned.batch_size
    return distance(tuned.outputs, plain.outputs) if same else None


def _between_starts(pairs: list[Pair]) -> float:
    """The difference of the plain loop's outputs from one start to the next, as of a script that draws in threads."""
    one, other = pairs[0][False].outputs, pairs[-1][False].outputs
    return distance(one, other) if one and len(one) == len(other) else 0.0


def _of_stack(stack: StackRecord) -> float:
    """The difference that the session measured of the same settings."""
    return stack.numerics.difference or 0.0 if stack.numerics else 0.0


def _spec(bench: Bench, exported: Exported | None, stack: StackRecord) -> TrialSpec:
    """The process that times the loop with the file, or without one."""
    if exported is None:
        spec = bench.spec("baseline, beside the export", {}, kind=TrialKind.VERIFY)
        return replace(spec, measure_s=_MEASURE_S)
    spec = bench.spec("export, verified", stack.settings, kind=TrialKind.VERIFY)
    config = spec.target.config if exported.config is None else exported.config
    target = replace(spec.target, config=config)
    return replace(spec, target=target, export_path=exported.path, measure_s=_MEASURE_S)


# Time to have left for another pair, as a multiple of the longest so far. Unitless.
_LIKE_BEFORE = 1.2
# Kept of the time for ending a process that overruns it, and the least that a process gets. Seconds.
_ENDING_S, _LEAST_S = 0.5, 1.0

# The results of the plain loop (False) and of the tuned one (True).
Pair = dict[bool, TrialResult]


def pairs_in_turn(
    runner: Runner,
    specs: Mapping[bool, TrialSpec],
    until: float,
    most: int,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[Pair], tuple[bool, TrialResult] | None]:
    """The pairs that could be measured ``until`` then, and the process that failed, as which of both and its result.

    A further pair for which there is too little time after all is left out, and no failure.
    """
    pairs: list[Pair] = []
    longest_s = 0.0
    while len(pairs) < most:
        begun = time.monotonic()
        if pairs and until - begun < _LIKE_BEFORE * longest_s:
            break
        pair: Pair = {}
        for tuned in (False, True) if len(pairs) % 2 == 0 else (True, False):
            say(f"pair {len(pairs) + 1}: {specs[tuned].trial_id}")
            left_s = until - time.monotonic() - _ENDING_S
            result = runner.run(replace(specs[tuned], timeout_s=max(_LEAST_S, left_s)), lambda message: None)
            if not result.measured:
                return pairs, None if pairs and result.outcome is Outcome.TIMED_OUT else (tuned, result)
            pair[tuned] = result
        pairs.append(pair)
        longest_s = max(longest_s, time.monotonic() - begun)
    return pairs, None


def middle_block(pairs: Sequence[Pair], *, tuned: bool) -> Block:
    """The block of median speed of the plain or the tuned loop: one block, so that its figures agree."""
    blocks = [block for pair in pairs for block in pair[tuned].blocks]
    return sorted(blocks, key=lambda block: block.samples_per_s)[len(blocks) // 2]
