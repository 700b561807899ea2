import math
import random
from statistics import NormalDist, fmean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.figures.samples import break_even_steps, largest_difference, percentile, relative_half_width

quick = settings(max_examples=25, deadline=None)


def noisy(center, count, spread=0.02, seed=0):
    draw = random.Random(seed)
    return [center * draw.uniform(1 - spread, 1 + spread) for _ in range(count)]


# --- percentiles and precision --------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_a_percentile_is_within_the_values(values, share):
    found = percentile(values, share)
    assert min(values) <= found or found == pytest.approx(min(values))
    assert found <= max(values) or found == pytest.approx(max(values))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_percentiles_end_at_the_extremes_and_meet_the_median(values):
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)
    assert percentile(values, 0.5) == pytest.approx(median(values))


def test_a_percentile_is_interpolated():
    assert percentile([40, 10, 30, 20], 0.25) == pytest.approx(17.5)


def test_precision_is_unknown_below_five_values_and_perfect_without_spread():
    assert relative_half_width([1.0, 2.0, 3.0, 4.0]) == math.inf
    assert relative_half_width([7.0] * 5) == 0


@quick
@given(st.lists(st.floats(1.0, 2.0), min_size=5, max_size=20), st.sampled_from([1e-3, 1e3]))
def test_precision_does_not_depend_on_the_unit(values, scale):
    assert relative_half_width([scale * value for value in values]) == pytest.approx(relative_half_width(values))


def test_precision_is_that_of_a_median_of_normal_values():
    shares = []
    for count in range(101, 1001, 50):
        values = [100 + NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
        expected = NormalDist().inv_cdf(0.975) * math.sqrt(math.pi / 2 / count) / 100
        shares.append(relative_half_width(values) / expected)
    assert fmean(shares) == pytest.approx(1.0, abs=0.06)


def test_more_values_of_the_same_spread_are_more_precise():
    assert relative_half_width(noisy(1.0, 200)) < relative_half_width(noisy(1.0, 8))


# --- break-even -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra_s", "old_s", "new_s", "steps"),
    [
        (10.0, 0.2, 0.1, 100),
        (10.05, 0.2, 0.1, 101),
        (0.0, 0.2, 0.1, 0),
        (-3.0, 0.2, 0.1, 0),
        (10.0, 0.1, 0.1, None),
        (10.0, 0.1, 0.2, None),
        (-3.0, 0.1, 0.2, None),
    ],
)
def test_break_even(extra_s, old_s, new_s, steps):
    assert break_even_steps(extra_s, old_s, new_s) == steps


@given(st.floats(0.001, 1000), st.floats(0.001, 1.0), st.floats(0.001, 0.999))
def test_after_break_even_the_slower_start_has_paid_back(extra_s, old_s, share):
    new_s = share * old_s
    steps = break_even_steps(extra_s, old_s, new_s)
    assert steps is not None
    assert extra_s + steps * new_s <= steps * old_s * (1 + 1e-9)
    assert extra_s + (steps - 1) * new_s > (steps - 1) * old_s * (1 - 1e-9)


def test_the_largest_difference_is_the_same_for_faster_and_slower():
    assert largest_difference([1.0, 1.02, 0.9]) == pytest.approx(1 / 0.9 - 1)
    assert largest_difference([]) == 0.0
