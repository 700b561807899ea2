"""Confirmation: baseline and stack timed alternately, A B B A, so that drift of the machine falls on both alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from advisor.records import Block, BlockDone, Outcome, TrialResult, Value
from advisor.runner import Trial
from advisor.session.bench import Bench, SessionCancelledError

MOST_PAIRS = 12
FEWEST_PAIRS = 5
_MEMORY_MARGIN = 0.9
_TIMEOUT_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Blocks of both, ``new[i]`` timed beside ``old[i]``; ``result`` is the stack's trial, with its peaks."""

    new: tuple[Block, ...]
    old: tuple[Block, ...]
    result: TrialResult


def fits_together(old: TrialResult, new: TrialResult, available_bytes: int) -> bool:
    """Whether two live processes fit in memory side by side."""
    needed = (old.peak_reserved_bytes or 0) + (new.peak_reserved_bytes or 0)
    return needed < _MEMORY_MARGIN * available_bytes


def confirm(bench: Bench, settings: Mapping[str, Value]) -> Confirmation | TrialResult:
    """Measure the stack against the baseline with both processes alive, each waiting for its turn.

    Returns the failed trial's result when one of them fails.
    """
    # Both start at once, and what they confirm has been found: they may overrun the budget rather than be lost.
    timeout_s = _TIMEOUT_FACTOR * (bench.budget.expected_s() + bench.budget.expected_s(cost=1.0))
    old_spec = replace(bench.spec("baseline, side by side", {}), interactive=True, timeout_s=timeout_s)
    new_spec = replace(bench.spec("stack, side by side", settings), interactive=True, timeout_s=timeout_s)
    bench.announce(new_spec)
    started = bench.budget.spent_s
    with (
        bench.runner.open(old_spec, bench.listener(old_spec)) as old,
        bench.runner.open(new_spec, bench.listener(new_spec)) as new,
    ):
        ended = old.wait_ready() or new.wait_ready()
        if ended is not None:
            return _checked(ended)
        outcome = _alternate(bench, old, new)
        if isinstance(outcome, TrialResult):
            return _checked(outcome)
        old_blocks, new_blocks = outcome
        result = replace(_checked(new.finish()), wall_s=bench.budget.spent_s - started)
        return Confirmation(tuple(new_blocks), tuple(old_blocks), result)


def _alternate(bench: Bench, old: Trial, new: Trial) -> tuple[list[Block], list[Block]] | TrialResult:
    old_blocks: list[Block] = []
    new_blocks: list[Block] = []
    seconds = bench.budget.measure_s / 5
    for pair in range(MOST_PAIRS):
        order = ((old, old_blocks), (new, new_blocks))
        for trial, blocks in order if pair % 2 == 0 else reversed(order):
            done = trial.measure_block(seconds)
            if not isinstance(done, BlockDone):
                return done
            blocks.append(done.block)
        enough = len(new_blocks) >= FEWEST_PAIRS
        if enough and bench.budget.left_s < 2 * seconds:
            break
    return old_blocks, new_blocks


def _checked(result: TrialResult) -> TrialResult:
    if result.outcome is Outcome.CANCELLED:
        raise SessionCancelledError
    return result
