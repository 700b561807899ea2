"""Turns: settings and the baseline timed alternately, A B B A, so that drift of the machine affects both alike.

On the CPU, two live processes take turns, block by block: other programs use the cores for seconds at a time, and then
disturb both processes. With a new process for each turn, simulated sessions under such a load
(``tests/experiment/test_disturbed_trials.py``) exported useless settings in 5 of 20 cases and a useful stack in 12 of
20; with alternating blocks, in none and in 19. On CUDA, each turn is a new process. New processes also show how much
identical runs differ, and neither takes memory that the other needs.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from advisor.experiment.events import TrialStarted
from advisor.experiment.known import Evidence, Known
from advisor.experiment.measuring.bench import Bench
from advisor.judging.judge import BASELINE, Judge
from advisor.judging.runs import Turns
from advisor.recipe.settings import Settings
from advisor.records import Block, Outcome, TrialKind, TrialResult
from advisor.runner.trial_process import Trial

MOST_PAIRS = 12
# Number of pairs of blocks that suffices if steps are long, and the number that suffices if the budget ends.
FEWEST_PAIRS = 5
LEAST_PAIRS = 3
MOST_PAIRS_IN_TURN = 2
# If the spread between processes of the baseline is this multiple of the stack's spread, the baseline runs again: until
# the ratio of the interval's ends is below the second factor, or the baseline has run this often.
_UNEVEN, _NARROW, _MOST_BASELINES = 2.0, 1.2, 6
_MEMORY_MARGIN = 0.9  # largest share of the free memory for two processes together
_LIVE_SHARE = 0.75  # time of live trials, as a share of that of whole trials with the same blocks; estimated
_BLOCK_SHARE = 0.2  # length of a block in turns, as a share of a trial's measuring time; at least one step
_QUEUED_STEPS = 3  # most steps before a block, to use up batches prepared during the other turn


def may_be_side_by_side(known: Known, settings: Settings) -> bool:
    """Whether two live processes may take turns: both fit into memory, and neither uses CUDA or has ranks."""
    facts, old, new = known.plan.facts, known.judge.baseline, known.judge.result(settings)
    if facts.on_cuda or facts.gpus > 1 or new is None:
        return False
    available_bytes = facts.workload.device_memory_bytes or facts.hardware.host.memory_available_bytes
    needed_bytes = (old.peak_reserved_bytes or 0) + (new.peak_reserved_bytes or 0)
    return needed_bytes < _MEMORY_MARGIN * available_bytes


def turns_s(bench: Bench, known: Known, settings: Settings) -> float:
    """The seconds that turns are expected to take: at least two whole trials, or two live ones with few blocks."""
    pair_s = bench.expected_s(settings) + bench.expected_s(BASELINE)
    if not may_be_side_by_side(known, settings):
        return pair_s
    workers = {**known.plan.facts.workload.current, **settings}.get("data.num_workers")
    step_s = known.judge.speed(BASELINE)[0] / 1e3 * (1 + _QUEUED_STEPS if workers else 1)
    return _LIVE_SHARE * (pair_s + 2 * FEWEST_PAIRS * max(step_s, _BLOCK_SHARE * bench.budget.measure_s))


def in_turn(
    judge: Judge, settings: Settings, run: Callable[[Settings, int], TrialResult], has_time: Callable[..., bool]
) -> Evidence:
    """Trials of the settings and the baseline in turn, A B B A, as many as there is time for.

    ``run`` makes one trial of a numbered pair; ``has_time`` tells whether there is time for one trial of each of the
    given settings. Finished trials count even if a later one fails.
    """
    runs: list[tuple[Settings, TrialResult]] = []
    for pair in range(MOST_PAIRS_IN_TURN):
        for values in (settings, BASELINE) if pair % 2 == 0 else (BASELINE, settings):
            runs.append((values, run(values, pair)))
            if not runs[-1][1].measured:
                return Evidence(runs=tuple(runs))
        if not has_time(settings, BASELINE):
            break
    new, old = ([result for values, result in runs if bool(values) is is_new] for is_new in (True, False))
    spread, old_spread = judge.spread_of(settings), judge.spread_of(BASELINE)
    while old_spread.sigma > _UNEVEN * spread.sigma and len(old) < _MOST_BASELINES:
        interval = Turns(tuple(new), tuple(old)).interval(spread, old_spread)
        if interval.high <= _NARROW * interval.low or not has_time(BASELINE):
            break
        result = run(BASELINE, len(old))
        if not result.measured:
            break
        old.append(result)
        runs.append((BASELINE, result))
    return Evidence(runs=tuple(runs), turns=Turns(tuple(new), tuple(old)))


def side_by_side(bench: Bench, settings: Settings) -> Evidence:
    """Time the baseline and the settings in live processes, block by block. A process that ends early has failed."""
    old_spec = bench.spec("baseline, in turns", {}, kind=TrialKind.TURNS)
    new_spec = replace(bench.spec("combination, in turns", settings, kind=TrialKind.TURNS), times_phases=True)
    bench.wait_while_paused()
    expected_s = bench.expected_s(settings) + bench.expected_s(BASELINE)
    bench.emit(TrialStarted(new_spec.trial_id, new_spec.log_path, expected_s))
    budget, started = bench.budget, bench.budget.spent_s
    pairs: list[tuple[Block, Block]] = []
    trials: list[Trial] = []
    with contextlib.ExitStack() as live:
        # They warm up one after the other. If both use every core, they slow each other down greatly: on two cores, a
        # baseline that takes 3 s alone was not ready after 10.
        for spec in (old_spec, new_spec):
            trials.append(live.enter_context(bench.runner.open(spec, partial(bench.listen, spec))))
            if (result := trials[-1].wait_ready()) is not None:
                break
        else:
            ready = budget.spent_s
            bench.warming_up_s += ready - started
            pairs, ended = _alternate(bench, *trials)
            bench.measuring_s += budget.spent_s - ready
            result = ended or trials[-1].finish()
    result = bench.checked(result)
    if pairs and (result.measured or (result.outcome is Outcome.TIMED_OUT and len(pairs) >= LEAST_PAIRS)):
        blocks, wall_s = tuple(block for block, _ in pairs), budget.spent_s - started
        result = replace(result, outcome=Outcome.MEASURED, reason="", details="", blocks=blocks, wall_s=wall_s)
        old = TrialResult(Outcome.MEASURED, blocks=tuple(block for _, block in pairs))
        evidence = Evidence(turns=Turns((result,), (old,), by_block=True))
    else:
        evidence = Evidence(runs=((Settings(spec.settings), result),))
    bench.post_end(new_spec, result, budget.spent_s - started)
    return evidence


def _alternate(bench: Bench, old: Trial, new: Trial) -> tuple[list[tuple[Block, Block]], TrialResult | None]:
    """The new trial's blocks, each paired with the old trial's, and the result of a trial that ended meanwhile."""
    pairs: list[tuple[Block, Block]] = []
    seconds = _BLOCK_SHARE * bench.budget.measure_s
    began = bench.budget.spent_s
    while len(pairs) < MOST_PAIRS:
        started = bench.budget.spent_s
        timed: dict[Trial, Block] = {}
        for trial in (old, new) if len(pairs) % 2 == 0 else (new, old):
            done = trial.measure_block(seconds)
            if not isinstance(done, Block):
                return pairs, done
            timed[trial] = done
        pairs.append((timed[new], timed[old]))
        # Blocks that contain whole epochs of a loader take longer than requested.
        if len(pairs) >= LEAST_PAIRS and bench.budget.left_s < bench.budget.spent_s - started:
            break
        if len(pairs) >= FEWEST_PAIRS and bench.budget.spent_s - began > 2 * MOST_PAIRS * seconds:
            break
    return pairs, None
