from __future__ import annotations

import pytest

from advisor.experiment.budget import Budget


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_time_is_spent_and_never_left_negative(clock):
    budget = Budget(60.0, clock)
    clock.now += 25
    assert (budget.spent_s, budget.left_s) == (25, 35)
    clock.now += 50
    assert budget.left_s == 0


def test_a_trial_measures_for_a_share_within_bounds(clock):
    shares = [Budget(total_s, clock).measure_s for total_s in (1, 15, 100, 10_000)]
    assert shares == sorted(shares)
    assert shares[0] == shares[1] == 0.5
    assert shares[-1] == 3.0


def test_before_anything_was_seen_a_trial_is_expected_to_take_a_while(clock):
    budget = Budget(100.0, clock)
    assert budget.expected_s() > budget.measure_s
    assert budget.expected_s(cost=1) > budget.expected_s()


def test_the_expectation_is_the_median_of_the_last_trials(clock):
    budget = Budget(100.0, clock)
    for wall_s in (50.0, 2.0, 3.0, 4.0, 3.0, 90.0):
        budget.saw(wall_s, cost=0)
    assert budget.expected_s() == 3.0


def test_compilation_is_learned_apart_and_by_its_cost(clock):
    budget = Budget(300.0, clock)
    budget.saw(2.0, cost=0)
    before = budget.expected_s()
    budget.saw(40.0, cost=4)
    assert budget.expected_s(cost=1) == pytest.approx(10.0)
    assert budget.expected_s(cost=4) == pytest.approx(40.0)
    assert budget.expected_s() == before


def test_what_does_not_fit_is_not_allowed(clock):
    budget = Budget(60.0, clock)
    assert budget.allows(60.0)
    assert not budget.allows(60.1)
    assert not budget.allows(40.0, reserve_s=30.0)
    clock.now += 60
    assert not budget.allows(0.1)


def test_a_trial_times_out_when_it_takes_far_longer_than_expected(clock):
    budget = Budget(100.0, clock)
    assert budget.timeout_s() >= 100
    budget.saw(2.0, cost=0)
    assert 2.0 < budget.timeout_s() <= 100.0
    assert budget.timeout_s(40.0) <= budget.timeout_s()
    clock.now += 99
    assert budget.timeout_s() >= 4.0


def test_a_first_compilation_is_guessed_by_the_number_of_parameter_tensors():
    small, large = Budget(300.0), Budget(300.0)
    small.parameter_tensors, large.parameter_tensors = 48, 161
    assert 10 < small.first_compile_s < 15
    assert 25 < large.first_compile_s < 35
    large.saw(12.0, cost=1.0)
    assert large.expected_s(cost=1.0) == pytest.approx(12.0)


def test_a_renewed_budget_begins_now_and_knows_what_trials_take(clock):
    budget = Budget(60.0, clock)
    budget.saw(4.0, cost=0)
    budget.saw(20.0, cost=1)
    budget.repeated_s = 5.0
    clock.now += 70
    fresh = budget.renewed()
    assert (fresh.left_s, fresh.repeated_s) == (60, 0)
    assert (fresh.expected_s(), fresh.expected_s(cost=1)) == (budget.expected_s(), budget.expected_s(cost=1))
    fresh.saw(9.0, cost=0)
    assert fresh.expected_s() != budget.expected_s()


def test_the_first_trial_gets_the_whole_of_a_short_budget_but_a_minute_at_least(clock):
    assert [Budget(total_s, clock).timeout_s() for total_s in (1.0, 60.0, 90.0, 200.0, 600.0)] == [60, 60, 90, 120, 300]


def test_once_the_baseline_is_known_the_next_trial_is_expected_to_take_as_long(clock):
    budget = Budget(30.0, clock)
    clock.now += 20
    budget.baseline_s = 8.0
    assert budget.expected_s() == 8.0
    assert budget.timeout_s() == 40.0
    clock.now += 5
    budget.saw(2.0, cost=0)
    assert (budget.expected_s(), budget.timeout_s()) == (2.0, 5.0)


def test_an_ordinary_trial_hangs_when_it_takes_many_times_as_long_as_usual(clock):
    budget = Budget(600.0, clock)
    assert budget.patience_s > budget.timeout_s()
    budget.saw(2.0, cost=0)
    assert 20.0 < budget.patience_s < 60.0 < budget.timeout_s()
    budget.saw(2000.0, cost=1)
    assert budget.patience_s < 60.0
