"""Confirmation: baseline and stack timed alternately, A B B A, so that drift of the machine falls on both alike.

On the CPU two live processes take turns, block by block. On CUDA the processes take turns whole: a second process that
merely holds a context changes what the first one measures (on an H200 a launch-bound step of 2.8 ms took 3.1 to 4.0 ms
beside an idle process, and a replayed graph 0.34 instead of 0.37 ms), and fresh processes show how much two of them
differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from advisor.experiment.bench import Bench, SessionCancelledError
from advisor.records import Block, BlockDone, Facts, Outcome, TrialResult, TrialSpec, Value
from advisor.runner import Trial

MOST_PAIRS = 12
MOST_PAIRS_IN_TURN = 3
FEWEST_PAIRS = 5
# A single recommendation is checked, not proven to the last per cent: A B B A once.
PAIRS_PER_CANDIDATE = 2
BLOCKS_PER_CANDIDATE = 8
_MEMORY_MARGIN = 0.9
_TIMEOUT_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Blocks of both, ``new[i]`` timed beside ``old[i]``; ``result`` is the stack's trial, with its peaks."""

    new: tuple[Block, ...]
    old: tuple[Block, ...]
    result: TrialResult


def may_be_side_by_side(facts: Facts, old: TrialResult, new: TrialResult) -> bool:
    """Whether two live processes may take turns: both fit into memory, and neither is on CUDA, as said above."""
    if facts.on_cuda:
        return False
    available_bytes = facts.workload.device_memory_bytes or facts.hardware.host.memory_available_bytes
    needed_bytes = (old.peak_reserved_bytes or 0) + (new.peak_reserved_bytes or 0)
    return needed_bytes < _MEMORY_MARGIN * available_bytes


@dataclass(frozen=True, slots=True)
class Runs:
    """Whole trials of both, run in turn, A B B A."""

    new: tuple[TrialResult, ...]
    old: tuple[TrialResult, ...]


def confirm_in_turn(
    bench: Bench, settings: Mapping[str, Value], cost: float, *, name: str = "stack", pairs: int = MOST_PAIRS_IN_TURN
) -> Runs | TrialResult:
    """Trials of the baseline and the settings in turn, A B B A, as many as the budget allows, one of each at least.

    Returns the failed trial's result when one of them fails.
    """
    old: list[TrialResult] = []
    new: list[TrialResult] = []
    for pair in range(pairs):
        started = bench.budget.spent_s
        order = (old, new) if pair % 2 == 0 else (new, old)
        for runs in order:
            trial, values = (f"{name}, confirmed", settings) if runs is new else (f"baseline, beside {name}", {})
            result = bench.run(_patient(bench, trial, values), cost=cost if runs is new else 0.0)
            if not result.measured:
                return result
            runs.append(result)
        if not bench.budget.allows(bench.budget.spent_s - started):
            break
    return Runs(tuple(new), tuple(old))


def confirm_side_by_side(
    bench: Bench, settings: Mapping[str, Value], *, name: str = "stack", pairs: int = MOST_PAIRS
) -> Confirmation | TrialResult:
    """Measure settings against the baseline with both processes alive, each waiting for its turn.

    Returns the failed trial's result when one of them fails.
    """
    old_spec = replace(_patient(bench, f"baseline, beside {name}", {}), interactive=True)
    new_spec = replace(_patient(bench, f"{name}, confirmed", settings), interactive=True)
    bench.announce(new_spec)
    started = bench.budget.spent_s
    with (
        bench.runner.open(old_spec, bench.listener(old_spec)) as old,
        bench.runner.open(new_spec, bench.listener(new_spec)) as new,
    ):
        ended = old.wait_ready() or new.wait_ready()
        if ended is not None:
            return _checked(ended)
        ready = bench.budget.spent_s
        bench.warming_up_s += ready - started
        outcome = _alternate(bench, old, new, pairs)
        bench.measuring_s += bench.budget.spent_s - ready
        if isinstance(outcome, TrialResult):
            return _checked(outcome)
        old_blocks, new_blocks = outcome
        result = replace(_checked(new.finish()), wall_s=bench.budget.spent_s - started)
        return Confirmation(tuple(new_blocks), tuple(old_blocks), result)


def _patient(bench: Bench, name: str, settings: Mapping[str, Value]) -> TrialSpec:
    """A spec whose trial may overrun the budget: what it confirms has been found, and must not be lost to the clock."""
    timeout_s = _TIMEOUT_FACTOR * (bench.budget.expected_s() + bench.budget.expected_s(cost=1.0))
    return replace(bench.spec(name, settings), timeout_s=timeout_s)


def _alternate(bench: Bench, old: Trial, new: Trial, pairs: int) -> tuple[list[Block], list[Block]] | TrialResult:
    old_blocks: list[Block] = []
    new_blocks: list[Block] = []
    seconds = bench.budget.measure_s / 5
    for pair in range(pairs):
        started = bench.budget.spent_s
        order = ((old, old_blocks), (new, new_blocks))
        for trial, blocks in order if pair % 2 == 0 else reversed(order):
            done = trial.measure_block(seconds)
            if not isinstance(done, BlockDone):
                return done
            blocks.append(done.block)
        enough = len(new_blocks) >= FEWEST_PAIRS
        # Blocks that hold whole epochs of a loader take longer than they were asked to.
        if enough and bench.budget.left_s < bench.budget.spent_s - started:
            break
    return old_blocks, new_blocks


def _checked(result: TrialResult) -> TrialResult:
    if result.outcome is Outcome.CANCELLED:
        raise SessionCancelledError
    return result
