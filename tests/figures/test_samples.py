import math
from statistics import NormalDist, fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.figures.samples import break_even_steps, largest_difference, percentile, relative_half_width

# --- percentiles and precision --------------------------------------------------------------------------------


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


def test_precision_is_that_of_a_median_of_normal_values():
    shares = []
    for count in range(101, 1001, 50):
        values = [100 + NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
        expected = NormalDist().inv_cdf(0.975) * math.sqrt(math.pi / 2 / count) / 100
        shares.append(relative_half_width(values) / expected)
    assert fmean(shares) == pytest.approx(1.0, abs=0.06)


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


def test_the_largest_difference_is_the_same_for_faster_and_slower():
    assert largest_difference([1.0, 1.02, 0.9]) == pytest.approx(1 / 0.9 - 1)
    assert largest_difference([]) == 0.0
