"""The costs of moves, what fits into the budget, and what is reserved."""

from dataclasses import replace

import pytest
from facts import cpu_facts, gpu_facts
from fake_trials import FakeTrials
from made_up import BF16, COMPILED, CUDNN, FUSED, GRAPH, bench_of, failed, known_of, known_with, reporter_to, result_at
from stopped_clock import Clock

from advisor.experiment import policy
from advisor.experiment.known import Kind, Move
from advisor.experiment.measuring.move_trials import MoveTrials
from advisor.experiment.moves import moves
from advisor.experiment.search import rank
from advisor.judging.judge import BASELINE, CONTROL_SETTINGS
from advisor.judging.runs import Turns
from advisor.recipe.settings import Settings
from advisor.records import Outcome
from advisor.runner.trials import Runner

STACK = Settings({**BF16.settings, **GRAPH.settings})
WHOLE = STACK.merged(COMPILED.settings)


@pytest.fixture
def trials(tmp_path):
    """A trials with a budget of 100 s, whose ordinary trials take 3 s and whose compilations took 20 s."""
    clock = Clock()
    bench = bench_of(Runner(), tmp_path, clock)
    bench.budget.learn(Settings(), 3.0)
    bench.budget.learn(WHOLE, 20.0)
    made = MoveTrials(bench, reporter_to(lambda event: None))
    made.clock = clock
    return made


def with_stack(settings, known=None):
    known = known or known_of(gpu_facts())
    return replace(known, judge=known.judge.with_run(settings, result_at(2.0)), stack=Settings(settings))


def stack_move(settings, gain=1.5):
    return Move(Kind.STACK, settings, gain, "stack")


def test_what_was_compiled_before_costs_less(trials):
    known = known_of(gpu_facts())
    assert trials.cost_s(stack_move(WHOLE), known) < 20.0
    assert trials.cost_s(stack_move(WHOLE.without(BF16.key)), known) == 20.0
    assert trials.cost_s(stack_move(WHOLE.merged(FUSED.settings)), known) == trials.cost_s(stack_move(WHOLE), known)


def test_timing_kernels_and_fresh_interpreters_cost_more(trials):
    known = known_of(gpu_facts())
    trials.bench.budget.interpreter_s = 7.0
    assert trials.cost_s(stack_move(Settings(CUDNN.settings)), known) > 3.0
    assert trials.cost_s(stack_move(Settings({"memory.allocator": "expandable_segments"})), known) == 10.0


def test_the_reserve_is_what_the_turns_need_and_two_fifths_at_most(trials):
    known = with_stack(STACK)
    assert trials.reserve_s(known_of(gpu_facts())) == 0.0
    assert trials.reserve_s(known) == pytest.approx(1.2 * 6.0)
    trials.bench.budget.learn(STACK.merged({"compile.mode": "default"}), 90.0)
    assert trials.reserve_s(with_stack(WHOLE)) <= 40.0
    proven = replace(known, judge=known.judge.with_turns(STACK, Turns((result_at(2.0),), (result_at(1.0),))))
    assert trials.reserve_s(proven) == 0.0


def test_the_turns_of_a_slow_baseline_get_their_reserve_and_begin_with_no_more(trials):
    """On busy cores a trial of the baseline takes 19 s, and one of the stack 3 s."""
    known, turns = with_stack(STACK, known_of(cpu_facts())), Move(Kind.TURNS, STACK, 1.02, "turns")
    for _ in range(5):
        trials.bench.budget.learn(BASELINE, 19.0)
    trials.bench.budget.learn(STACK, 3.0)
    assert 15.0 < trials.cost_s(turns, known) < 22.0
    assert trials.reserve_s(known) == pytest.approx(1.2 * trials.cost_s(turns, known))
    trials.clock.now = 79.0
    assert trials.affords(turns, known)
    assert not trials.affords(Move(Kind.CONTROL, BASELINE, 1.04, "control"), known), "it takes as long as the baseline"
    trials.clock.now = 90.0
    assert not trials.affords(turns, known)


def test_the_reserve_holds_against_all_but_a_stack_with_priority_that_is_ready(trials):
    known = with_stack(STACK)
    trials.clock.now = 92.5
    assert not trials.affords(Move(Kind.ALONE, Settings(FUSED.settings), 1.01, "x"), known)
    assert trials.affords(Move(Kind.TURNS, STACK, 1.02, "turns"), known)
    assert trials.affords(stack_move(Settings(FUSED.settings)), known)
    trials.clock.now = 84.0
    assert not trials.affords(stack_move(WHOLE.without(BF16.key)), known), "it compiles anew"
    assert trials.affords(stack_move(WHOLE.without(BF16.key)), known_of(gpu_facts()))


@pytest.mark.parametrize(
    ("control", "repeats", "again"), [(1.05, 0, False), (1.12, 0, True), (1 / 1.12, 1, True), (2.0, 2, False)]
)
def test_baselines_that_disagree_are_run_again_at_once_up_to_four_times_in_all(trials, control, repeats, again):
    """The odd run may be the control or any other run."""
    known = with_stack(STACK)
    judge = known.judge.with_run(CONTROL_SETTINGS, result_at(control))
    for _ in range(repeats):
        judge = judge.with_run(BASELINE, result_at(1.0))
    known = replace(known, judge=judge, done=frozenset({Kind.CONTROL}))
    first = rank(moves(known), known, trials)[0]
    assert (first.kind is Kind.AGAIN and first.settings == BASELINE) is again


def test_a_repeat_of_the_baseline_leaves_a_stack_with_priority_its_time(trials):
    known = with_stack(STACK)
    known = replace(known, judge=known.judge.with_run(CONTROL_SETTINGS, result_at(1.3)), done=frozenset({Kind.CONTROL}))
    [again] = [move for move in moves(known) if move.kind is Kind.AGAIN and not move.settings]
    assert again.has_priority
    assert trials.affords(again, known)
    for _ in range(5):
        trials.bench.budget.learn(BASELINE, 11.0)
    assert not trials.affords(again, known), "it would take more than a tenth of the budget"


def test_a_repeat_of_the_baseline_that_failed_is_not_made_again():
    known = known_with((CONTROL_SETTINGS, result_at(1.3)), (BASELINE, failed("it crashed")))
    assert not any(move.kind is Kind.AGAIN and not move.settings for move in moves(known))


@pytest.mark.parametrize(("gain", "started"), [(policy.LARGE_GAIN, True), (1.15, False)])
def test_a_compilation_that_may_end_too_late_is_started_only_for_a_stack_with_priority(trials, gain, started):
    trials.clock.now = 88.0
    assert trials.affords(stack_move(WHOLE.without(BF16.key), gain), known_of(gpu_facts())) is started


def test_no_trial_may_run_much_longer_than_the_budget(trials):
    trials.clock.now = 90.0
    assert trials.bench.spec("x", WHOLE).timeout_s <= 12.0
    trials.clock.now = 200.0
    assert trials.bench.spec("x", {}).timeout_s <= 2.0


def test_a_trial_of_compiled_code_that_was_given_up_gets_more_time_the_next_time(tmp_path):
    fake = FakeTrials(lambda settings: failed("no result after 5 s", Outcome.TIMED_OUT), facts=gpu_facts(), trial_s=5.0)
    bench = bench_of(fake, tmp_path, fake)
    bench.budget.learn(Settings(), 2.0)
    bench.budget.learn(WHOLE, 6.0)
    before = bench.expected_s(WHOLE)
    bench.run(bench.spec("stack", WHOLE))
    assert before < 3.0
    assert bench.expected_s(WHOLE) >= 5.0
