"""The plan of a search and the knowledge in it, asked directly: bounded gains, usual settings, settings to blame."""

from dataclasses import replace

import pytest
from facts import adamw_facts, cpu_facts, gpu_facts, host, loader_facts, profile_facts
from made_up import BF16, FUSED, GRAPH, LAST, WORKERS, failed, found_by, known_of, known_with, product, result_at

from advisor.experiment.control import Decision
from advisor.experiment.known import Evidence, Kind, Move
from advisor.experiment.moves import changes, drops, is_next_rung, singles, why_not
from advisor.judging.judge import BASELINE
from advisor.judging.objective import Goal
from advisor.recipe.settings import Settings
from advisor.records import Hardware, Mode, Numerics, Objective, Outcome, TrialResult

PAIR = Settings({**BF16.settings, **GRAPH.settings})


@pytest.mark.parametrize(("batches", "live_on"), [(8, True), (1000, False)])
def test_the_workers_of_short_epochs_live_on_in_a_stack(batches, live_on):
    loader = loader_facts(num_workers=0, length=batches)
    stack = known_of(gpu_facts(profile=profile_facts(phases={"data wait": 70.0, "forward": 30.0}), loader=loader)).usual
    assert WORKERS.key in stack
    assert ("data.persistent_workers" in stack) is live_on


def test_batches_that_are_read_at_once_spare_the_workers():
    def usual(loader):
        phases = {"data wait": 8.0, "forward": 2.0}
        return known_of(gpu_facts(profile=profile_facts(step_ms=10.0, phases=phases), loader=loader)).plan.usual_stack()

    assert WORKERS.key in usual(loader_facts())
    at_once = usual(loader_facts(on_device_problem=""))
    assert WORKERS.key not in at_once
    assert at_once["data.on_device"] is True


def test_a_usual_setting_is_in_the_first_stack_where_the_phases_that_it_shortens_take_time():
    def usual(optimizer_ms):
        phases = {"forward": 90.0, "optimizer": optimizer_ms}
        return known_of(gpu_facts(optimizer=adamw_facts(), profile=profile_facts(phases=phases))).plan.usual_stack()

    assert FUSED.key in usual(10.0)
    assert FUSED.key not in usual(0.001)


def test_what_was_passed_over_does_not_come_back_beside_a_stack():
    phases = {"data wait": 0.5, "forward": 99.0, "optimizer": 0.5}
    facts = gpu_facts(optimizer=adamw_facts(), loader=loader_facts(), profile=profile_facts(phases=phases))
    plan = known_of(facts, allow=Numerics.CHANGED).plan
    assert {"grad_accumulation", "gpu_prefetch", "num_workers"} <= plan.passed_over
    assert not plan.passed_over & {candidate.recipe for candidate in plan.partnered(plan.usual_stack())}


def fed(wait_ms, *, on=gpu_facts):
    """Knowledge of a workload whose loader has no workers, with the phases of its first steps of 100 ms."""
    phases = {"data wait": wait_ms, "forward": (100 - wait_ms) / 3, "backward": (100 - wait_ms) * 2 / 3}
    profile = profile_facts(step_ms=100.0, phases=phases, bottleneck=None)
    return known_of(on(profile=profile, loader=loader_facts(num_workers=0)))


@pytest.mark.parametrize(
    ("wait_ms", "on", "has"),
    [(30.0, gpu_facts, True), (17.0, gpu_facts, True), (8.0, gpu_facts, False), (17.0, cpu_facts, False)],
)
def test_a_stack_feeds_the_step_that_it_expects(wait_ms, on, has):
    """A sixth of a step waits for data; this becomes a third if the GPU computes 2.4 times as fast."""
    assert (WORKERS.key in fed(wait_ms, on=on).plan.usual_stack()) is has


@pytest.mark.parametrize(("wait_ms", "workers"), [(17.0, 2), (50.0, 8), (92.0, 16)])
def test_a_stack_has_as_many_workers_as_its_step_needs(wait_ms, workers):
    """Not one worker per core, as workers share memory bandwidth with the step; one rung above the computed number."""
    assert fed(wait_ms).plan.usual_stack()[WORKERS.key] == workers


def test_what_a_faster_step_waits_for_stays_as_long_as_it_was():
    plan = fed(5.0).plan
    worker = replace(WORKERS, value=1)
    assert plan.expected_gain(worker, Settings(), 100.0) == pytest.approx(100 / 95, rel=0.01)
    assert plan.expected_gain(worker, PAIR, 15.0) == pytest.approx(15 / 10, rel=0.01)
    two = replace(WORKERS, value=2)
    assert plan.expected_gain(two, PAIR.merged(worker.settings), 15.0) < 1.1, "one worker has the data ready in time"


@pytest.mark.parametrize(("speedup", "at_once"), [(7.0, True), (1.2, False)])
def test_workers_that_only_a_faster_step_needs_are_tried_on_the_stack_at_once(speedup, at_once):
    known = fed(5.0)
    known = replace(known, judge=known.judge.with_run(PAIR, result_at(speedup)), stack=PAIR)
    added = [move for move in changes(known) if move.settings.get(WORKERS.key)]
    assert bool(added) is at_once
    alone = [move for move in singles(known) if move.settings.get(WORKERS.key)]
    assert alone, "its own figure is wanted too"
    assert all(add.gain > move.gain for add in added for move in alone)


def test_what_does_nothing_without_a_setting_leaves_with_it():
    known = fed(30.0)
    ahead = {"data.prefetch_factor": 4}
    stack = Settings({**BF16.settings, WORKERS.key: 8, **ahead})
    assert known.plan.without(stack, WORKERS.key) == BF16.settings
    assert known.plan.without(stack, BF16.key) == {WORKERS.key: 8, **ahead}
    runs = known.judge.with_run(stack, result_at(2.0)).with_run(Settings(BF16.settings), result_at(1.6))
    known = replace(known, judge=runs, stack=stack)
    assert known.contribution(WORKERS.key, stack).speedup == pytest.approx(2.0 / 1.6, rel=0.05)
    left_out = [move.settings for move in drops(known)]
    assert Settings(BF16.settings | ahead) not in left_out
    assert Settings({**BF16.settings, WORKERS.key: 8}) in left_out


@pytest.mark.parametrize("present", ["no_grad", "inference_mode"])
def test_gradients_that_are_off_stay_off_in_the_stack(present):
    plan = known_of(gpu_facts(mode=Mode.INFER, current={"infer.grad": present}, optimizer=None)).plan
    off = next(candidate for candidate in plan.candidates if candidate.settings == {"infer.grad": "grad"})
    assert not plan.may_stack(off), "it is tried alone, to tell what not recording is worth"
    assert plan.usual_stack().get("infer.grad") is None, "not even by the weaker of the two"


def test_what_ends_a_habit_stays_in_the_combination_that_it_was_measured_in():
    facts = gpu_facts(current={"loop.loss_item": "every_step"})
    known, _ = found_by(product(loss_sync=1.2, autocast=1.5), facts, only=("loss_sync", "autocast"))
    assert known.found == {"loop.loss_item": "never", **BF16.settings}


@pytest.mark.parametrize(("foreign_cores", "threads"), [(30.0, 8), (20.0, 12), (10.0, None)])
def test_the_stack_has_fewer_threads_where_other_programs_want_cores(foreign_cores, threads):
    machine = Hardware(host=host(foreign_cores=foreign_cores))
    facts = cpu_facts(threads=16, hardware=machine, profile=profile_facts(step_ms=10.0))
    assert known_of(facts).plan.usual_stack().get("cpu.threads") == threads


@pytest.mark.parametrize("tried", [True, False])
def test_what_a_profile_rules_out_stays_in_the_plan_only_where_it_was_tried(tried):
    slow, fast = (gpu_facts(profile=profile_facts(phases={"data wait": ms}), loader=loader_facts()) for ms in (5.0, 0))
    known = known_of(slow)
    workers = next(candidate for candidate in known.plan.candidates if candidate.recipe == WORKERS.recipe)
    if tried:
        known = replace(known, judge=known.judge.with_run(Settings(workers.settings), result_at(1.0)))
    known = known.after(Move(Kind.PROFILE, BASELINE, 1.0, "profile"), Evidence(facts=fast))
    assert (workers in known.plan.candidates) is tried


def test_an_accepted_value_takes_the_place_of_another_that_is_as_fast():
    known = known_with((LAST.settings, result_at(1.2)), (GRAPH.settings, result_at(1.0)), stack=Settings(LAST.settings))
    other = replace(LAST, value="contiguous")
    swap = Move(Kind.SWAP, Settings(other.settings), 1.0, other.name, other)
    same = Evidence(runs=((swap.settings, result_at(1.2)),))
    assert known.after(swap, same).stack == LAST.settings
    consent = replace(known.plan.consent, decisions={LAST.recipe: Decision.ACCEPTED}, values={LAST.recipe: other.value})
    known = replace(known, plan=replace(known.plan, consent=consent))
    assert known.after(swap, same).stack == other.settings


def passed_over(workers=0, **phases):
    """The reasons of a plan for steps of 100 ms with these phases."""
    named = {name.replace("_", " "): ms for name, ms in phases.items()}
    facts = gpu_facts(profile=profile_facts(step_ms=100.0, phases=named), loader=loader_facts(num_workers=workers))
    return known_of(facts).plan.skipped


@pytest.mark.parametrize(("wait_ms", "tried"), [(2.5, True), (1.1, True), (0.9, False)])
def test_what_can_gain_one_per_cent_is_tried(wait_ms, tried):
    reasons = passed_over(data_wait=wait_ms, forward=60.0)
    assert (WORKERS.recipe not in reasons) is tried
    assert tried or "data wait takes 0.90 % of the step" in reasons[WORKERS.recipe]


def test_nothing_is_passed_over_without_a_measured_phase():
    assert WORKERS.recipe not in known_of(gpu_facts(loader=loader_facts(num_workers=0))).plan.skipped


@pytest.mark.parametrize(
    ("objective", "word"), [(Objective.MEMORY, "takes more memory"), (Objective.LATENCY, "makes no step shorter")]
)
def test_a_larger_batch_is_not_tried_where_it_cannot_serve_the_objective(objective, word):
    assert word in Goal(objective).words.larger_batch
    assert not Goal(objective).tries_larger_batches
    within = Goal(Objective.LATENCY, latency_limit_ms=20.0)
    assert within.tries_larger_batches, "the largest within the limit is asked for"
    assert all(Goal(other).tries_larger_batches for other in (Objective.THROUGHPUT, Objective.ENERGY))


OUT_OF_MEMORY = TrialResult(Outcome.OUT_OF_MEMORY)


def climbed(*results, down=False):
    """Knowledge of a ladder of workers after trials of its first values, a speed or a result each, and the next one."""
    known = known_of(gpu_facts(loader=loader_facts(num_workers=0)))
    rungs = sorted((c for c in known.plan.candidates if c.recipe == "num_workers"), key=lambda c: c.value, reverse=down)
    known, judge = replace(known, plan=replace(known.plan, candidates=tuple(rungs))), known.judge
    for rung, given in zip(rungs, results, strict=False):
        result = given if isinstance(given, TrialResult) else result_at(given)
        judge = judge.with_run(Settings(rung.settings), result)
    return replace(known, judge=judge), rungs[len(results)], rungs[len(results) - 1].name


@pytest.mark.parametrize(
    ("results", "down", "goes_on"),
    [
        ((1.2,), False, True),
        ((0.9,), False, False),
        ((1.2, 1.3), False, True),
        ((1.2, 1.205), False, False),
        ((1.2, 1.205), True, True),
        ((1.2, 1.1), True, False),
        ((OUT_OF_MEMORY,), False, False),
        ((OUT_OF_MEMORY,), True, True),
        ((failed("it ended"),), True, False),
    ],
)
def test_a_ladder_goes_on_until_a_value_is_no_better_than_those_before(results, down, goes_on):
    known, candidate, _ = climbed(*results, down=down)
    assert is_next_rung(known, candidate) is goes_on


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (OUT_OF_MEMORY, "ran out of memory, so larger values would too"),
        (failed("it ended"), "failed: it ended"),
        (0.9, "was no better than the value before it"),
    ],
)
def test_why_a_ladder_has_ended_is_said(result, reason):
    known, candidate, last = climbed(result)
    assert why_not(known, candidate) == f"{last} {reason}"
