import math

import pytest
from stopped_clock import Clock

from advisor.experiment.measuring.budget import Budget
from advisor.recipe.settings import Settings

PLAIN, DEFAULT, TUNED = Settings(), Settings({"compile.mode": "default"}), Settings({"compile.mode": "max-autotune"})


@pytest.fixture
def clock():
    return Clock(100.0)


def test_a_trial_measures_for_a_share_within_bounds(clock):
    shares = [Budget(total_s, clock).measure_s for total_s in (1, 15, 100, 10_000)]
    assert shares == sorted(shares)
    assert shares[0] == shares[1] == 0.5
    assert shares[-1] == 3.0


def test_a_trial_is_expected_to_take_as_long_as_those_with_the_closest_settings(clock):
    budget = Budget(90.0, clock)
    stack = Settings({"precision.autocast": "bfloat16", "model.memory_format": "channels_last", "cpu.threads": 1})
    budget.baseline_s = 18.0
    for wall_s in (2.5, 3.5):
        budget.learn(wall_s, stack)
    assert (budget.expected_s(), budget.expected_s(stack)) == (18.0, 3.0)
    budget.learn(16.0, PLAIN)
    assert budget.expected_s() == 16.0
    alone, another = Settings({"data.num_workers": 2}), stack.merged({"data.num_workers": 2})
    assert (budget.expected_s(alone), budget.expected_s(another)) == (16.0, 3.0)
    assert budget.expected_s(stack.merged({"cpu.threads": 2})) == 3.0  # another value is one change


def test_what_only_the_first_trial_of_a_stack_takes_is_not_expected_of_all_its_neighbours(clock):
    budget = Budget(90.0, clock)
    stack = Settings({"precision.autocast": "bfloat16", "cpu.threads": 1, "step.cuda_graph": True})
    budget.baseline_s = 4.0
    budget.learn(20.0, stack)
    for name in ("planted.first", "planted.second"):
        budget.learn(5.0, stack.merged({name: True}))
    assert budget.expected_s(stack.merged({"planted.third": True})) == 5.0


def test_code_that_was_compiled_before_is_expected_from_the_cache(clock):
    budget = Budget(300.0, clock)
    budget.learn(2.0, PLAIN)
    budget.learn(30.0, DEFAULT, cost=1)
    assert budget.has_compiled(DEFAULT)
    assert not budget.has_compiled(TUNED)
    assert 2.0 < budget.expected_s(DEFAULT, cost=1) < 0.5 * budget.expected_s(TUNED, cost=1)
    budget.learn(7.0, DEFAULT, cost=1)
    assert budget.expected_s(DEFAULT, cost=1) == 7.0
    assert budget.compile_s == 30.0


def test_the_longest_first_compilation_is_what_the_next_one_is_expected_to_take(clock):
    budget = Budget(300.0, clock)
    assert budget.compile_s is None
    budget.learn(30.0, DEFAULT, cost=1)
    budget.learn(120.0, TUNED, cost=2)
    budget.learn(90.0, DEFAULT, cost=1)
    assert budget.compile_s == 60.0
    other = Settings({"compile.mode": "reduce-overhead"})
    assert budget.expected_s(other, cost=1) == 60.0


def test_the_first_trial_gets_what_is_left_of_a_short_budget_but_a_grace_at_least(clock):
    budgets = [Budget(total_s, clock) for total_s in (1.0, 60.0, 90.0, 200.0, 600.0)]
    assert [budget.first_timeout_s for budget in budgets] == [20, 60.5, 90.5, 120, 120]
    clock.now += 50
    assert [budget.first_timeout_s for budget in budgets] == [8, 10.5, 40.5, 120, 120]


def test_an_ordinary_trial_hangs_when_it_takes_many_times_as_long_as_usual(clock):
    budget = Budget(600.0, clock)
    assert budget.hangs_after_s == math.inf
    budget.learn(2.0, PLAIN)
    assert 20.0 < budget.hangs_after_s < 60.0 < budget.timeout_s
    budget.learn(2000.0, DEFAULT, cost=1)
    assert budget.hangs_after_s < 60.0
