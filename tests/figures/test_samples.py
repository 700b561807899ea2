from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.figures.samples import break_even_steps, largest_difference, percentile

# --- percentiles ---------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_percentiles_end_at_the_extremes_and_meet_the_median(values):
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)
    assert percentile(values, 0.5) == pytest.approx(median(values))


def test_a_percentile_is_interpolated():
    assert percentile([40, 10, 30, 20], 0.25) == pytest.approx(17.5)


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
