from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.stats import (
    PROCESSES_DIFFER,
    SMALLEST_NOISE_FLOOR,
    alternate_noise_floor,
    break_even_steps,
    neighbours_ratio_interval,
    noise_floor,
    paired_ratio_interval,
    percentile,
    ratio_interval,
    relative_half_width,
    resampled_median,
    two_modes,
)

rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)
ratios = st.lists(st.floats(0.1, 10.0), max_size=10)
quick = settings(max_examples=25, deadline=None)


def noisy(center, count, spread=0.02, seed=0):
    draw = random.Random(seed)
    return [center * draw.uniform(1 - spread, 1 + spread) for _ in range(count)]


# --- intervals ------------------------------------------------------------------------------------------------


@quick
@given(rates, rates)
def test_an_interval_contains_its_estimate_the_ratio_of_medians(new, old):
    estimate, low, high = ratio_interval(new, old)
    assert estimate == median(new) / median(old)
    assert 0 < low <= estimate <= high


@quick
@given(st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=20))
def test_a_paired_interval_contains_its_estimate(pairs):
    new, old = zip(*pairs, strict=True)
    estimate, low, high = paired_ratio_interval(new, old)
    assert estimate == median(new) / median(old)
    assert 0 < low <= estimate <= high


@quick
@given(rates, rates, st.sampled_from([0.001, 0.5, 3.0, 1000.0]))
def test_an_interval_does_not_depend_on_the_unit(new, old, scale):
    scaled = ratio_interval([scale * value for value in new], [scale * value for value in old])
    assert scaled == pytest.approx(ratio_interval(new, old))


@quick
@given(rates, st.sampled_from([0.25, 2.0, 7.0]))
def test_scaling_the_new_side_scales_the_whole_interval(values, scale):
    plain = ratio_interval(values, values)
    scaled = ratio_interval([scale * value for value in values], values)
    assert scaled == pytest.approx([scale * bound for bound in plain])


def test_intervals_are_the_same_each_time():
    new, old = noisy(200, 15, seed=1), noisy(100, 15, seed=2)
    assert ratio_interval(new, old) == ratio_interval(new, old)
    assert paired_ratio_interval(new, old) == paired_ratio_interval(new, old)


def test_an_interval_of_a_clear_difference_excludes_one_and_covers_the_truth():
    estimate, low, high = ratio_interval(noisy(130, 15, seed=1), noisy(100, 15, seed=2))
    assert 1 < low <= 1.3 <= high
    assert high - low < 0.1
    assert estimate == pytest.approx(1.3, rel=0.02)


def test_pairing_cancels_a_drift_that_both_sides_share():
    drift = [1 - 0.04 * block for block in range(12)]  # the machine slows to about half
    old = [100 * factor for factor in drift]
    new = [105 * factor for factor in drift]
    estimate, low, high = paired_ratio_interval(new, old)
    assert (estimate, low, high) == pytest.approx((1.05, 1.05, 1.05))
    _, unpaired_low, unpaired_high = ratio_interval(new, old)
    assert unpaired_low < 1 < unpaired_high


def test_pairs_must_match():
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio_interval([1.0, 2.0], [1.0])


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


def test_more_values_of_the_same_spread_are_more_precise():
    assert relative_half_width(noisy(1.0, 200)) < relative_half_width(noisy(1.0, 8))


# --- the noise floor ------------------------------------------------------------------------------------------


def test_the_noise_floor_is_never_below_its_minimum():
    assert noise_floor([]) == SMALLEST_NOISE_FLOOR
    assert noise_floor([1.0, 1.0001]) == SMALLEST_NOISE_FLOOR


@given(ratios, st.floats(0.1, 10.0))
def test_a_further_repeat_never_lowers_the_noise_floor(ratios, further):
    assert noise_floor([*ratios, further]) >= noise_floor(ratios)


@given(st.floats(1.0, 10.0))
def test_the_noise_floor_is_the_same_for_faster_and_slower(ratio):
    assert noise_floor([ratio]) == pytest.approx(noise_floor([1 / ratio]))


@given(st.floats(1.01, 10.0))
def test_the_noise_floor_is_wider_than_the_difference_seen(ratio):
    assert noise_floor([ratio]) > ratio - 1


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


@pytest.mark.parametrize("count", [1, 2, 5, 8, 15])
def test_a_resampled_median_has_the_distribution_of_the_median_of_a_resample(count):
    ordered = sorted(noisy(10.0, count, spread=0.3))
    quickly, draw = random.Random(1), random.Random(2)
    quick = [resampled_median(ordered, quickly) for _ in range(4000)]
    plain = [median(draw.choices(ordered, k=count)) for _ in range(4000)]
    assert set(quick) <= {(a + b) / 2 for a in ordered for b in ordered}
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        near = 0.02 * (ordered[-1] - ordered[0]) + 1e-9
        below = sum(value <= percentile(plain, share) + near for value in quick) / len(quick)
        assert share - 0.05 <= below


@pytest.mark.parametrize(("new", "low", "high"), [([2.0, 3.0], 2.0, 3.0), ([2.5, 2.5], 2.5, 2.5)])
def test_runs_in_turn_span_the_pairs(new, low, high):
    runs = [[rate] * 5 for rate in new]
    estimate, lower, upper = neighbours_ratio_interval(runs, [[1.0] * 5] * 2)
    assert (lower, upper) == (low, high)
    assert estimate == pytest.approx(math.sqrt(new[0] * new[1]))


# --- two kinds of steps ---------------------------------------------------------------------------------------


def test_steps_of_two_kinds_are_told_apart():
    modes = two_modes([3.0, 3.1, 2.9, 9.0] * 10)
    assert (modes.low, modes.high, modes.high_share) == (3.0, 9.0, 0.25)


@pytest.mark.parametrize(
    "values",
    [
        [3.0, 9.0] * 4,  # too few to tell
        [3.0] * 50,
        [3.0 + 0.01 * index for index in range(50)],  # a slope, not two kinds
        [3.0] * 49 + [30.0],  # one outlier
    ],
)
def test_steps_of_one_kind_are_not_split(values):
    assert two_modes(values) is None


@given(st.lists(st.floats(0.01, 1e4), min_size=20, max_size=60))
def test_two_modes_lie_among_the_values(values):
    modes = two_modes(values)
    if modes is not None:
        assert min(values) <= modes.low < modes.high <= max(values)
        assert 0 < modes.high_share < 1


def test_drift_that_both_processes_meet_is_no_noise_between_them():
    drift = [1 + index / 10 for index in range(12)]
    assert alternate_noise_floor(drift, [2 * rate for rate in drift]) < noise_floor([drift[-1] / drift[0]]) / 2
    assert alternate_noise_floor([1.0] * 12, [2.0] * 12) == PROCESSES_DIFFER


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=20))
def test_blocks_that_differ_widen_the_floor_of_what_takes_turns(side):
    assert alternate_noise_floor(side, [1.0, 1.0]) >= noise_floor([median(side[::2]) / median(side[1::2])])
