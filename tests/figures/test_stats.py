from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean, median, pstdev

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.figures import stats
from advisor.figures.stats import (
    ProcessSpread,
    break_even_steps,
    paired_ratio_interval,
    percentile,
    relative_half_width,
    resampled_median,
    runs_ratio_interval,
    two_modes,
)

rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def few_resamples(monkeypatch):
    """Intervals of few bootstrap samples: as many do for what holds of any."""
    monkeypatch.setattr(stats, "RESAMPLES", 100)


def noisy(center, count, spread=0.02, seed=0):
    draw = random.Random(seed)
    return [center * draw.uniform(1 - spread, 1 + spread) for _ in range(count)]


# --- intervals ------------------------------------------------------------------------------------------------


def ratio_interval(new, old):
    """The interval of one process of each side, where processes do not differ."""
    return runs_ratio_interval([new], [old], ProcessSpread(0.0, 30.0))


@pytest.mark.usefixtures("few_resamples")
@quick
@given(rates, rates)
def test_an_interval_contains_its_estimate_the_ratio_of_medians(new, old):
    estimate, low, high = ratio_interval(new, old)
    assert estimate == pytest.approx(median(new) / median(old))
    assert 0 < low <= estimate <= high


@pytest.mark.usefixtures("few_resamples")
@quick
@given(st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=20))
def test_a_paired_interval_contains_its_estimate(pairs):
    new, old = zip(*pairs, strict=True)
    estimate, low, high = paired_ratio_interval(new, old)
    assert estimate == median(one / other for one, other in pairs)
    assert 0 < low <= estimate <= high


@pytest.mark.usefixtures("few_resamples")
@quick
@given(rates, rates, st.sampled_from([0.001, 0.5, 3.0, 1000.0]))
def test_an_interval_does_not_depend_on_the_unit(new, old, scale):
    scaled = ratio_interval([scale * value for value in new], [scale * value for value in old])
    assert scaled == pytest.approx(ratio_interval(new, old))


@pytest.mark.usefixtures("few_resamples")
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


def test_what_makes_two_processes_differ_widens_a_paired_interval():
    new, old = [105.0] * 8, [100.0] * 8
    _, low, high = paired_ratio_interval(new, old, ProcessSpread(0.02, 30.0))
    assert low < 1.02
    assert high > 1.08
    assert math.log(high / low) == pytest.approx(2 * 2.04 * 0.02 * math.sqrt(2), rel=0.1)


def loads(kind: str, draw: random.Random):
    """How much longer a block takes than on a quiet machine, block after block of 0.6 seconds."""
    now_s = until_s = 0.0
    level = 1.0
    while True:
        if kind == "loaded":  # others want the cores for some seconds, in turn
            while until_s <= now_s:
                level, until_s = draw.choice([1.0, 1.3, 1.8, 2.5]), until_s + draw.uniform(1.0, 8.0)
        elif kind == "bimodal":  # a thread that wakes up late, in some blocks: 32 or 44 ms a step on a virtual machine
            level = draw.choice([1.0, 1.375])
        elif kind == "drifting":
            level += 0.02
        now_s += 0.6
        yield level * draw.lognormvariate(0.0, 0.03)


def alternating(kind: str, pairs: int, ratio: float, seed: int) -> tuple[list[float], list[float]]:
    """The rates of blocks of two processes in the order A B B A, of which the new one is faster by the ratio."""
    noise = loads(kind, random.Random(seed))
    sides: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            sides[side].append((ratio if side else 1.0) / next(noise))
    return sides[1], sides[0]


@pytest.mark.parametrize(
    ("kind", "pairs", "widest"),
    [
        ("quiet", 3, 1.5),
        ("quiet", 8, 1.12),
        ("drifting", 12, 1.12),
        ("loaded", 3, 6.0),
        ("loaded", 12, 1.15),
        ("bimodal", 4, 3.0),
        ("bimodal", 5, 2.0),
        ("bimodal", 12, 1.6),
    ],
)
def test_alternating_blocks_tell_the_ratio_through_noise(kind, pairs, widest):
    spread = ProcessSpread(0.012, 30.0)
    found = [paired_ratio_interval(*alternating(kind, pairs, 1.5, seed), spread, seed=seed) for seed in range(100)]
    covered = sum(low <= 1.5 <= high for _, low, high in found)
    assert covered >= 94
    assert median(high / low for _, low, high in found) < widest


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


def test_precision_is_that_of_a_median_of_normal_values():
    """Two hundred resamples see a twelfth less than the 95 % interval, and 14 % less than that of 97.5 %."""
    shares = []
    for count in range(101, 1001, 50):
        values = [100 + NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
        expected = NormalDist().inv_cdf(0.975) * math.sqrt(math.pi / 2 / count) / 100
        shares.append(relative_half_width(values) / expected)
    assert fmean(shares) == pytest.approx(0.92, abs=0.06)


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


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_a_resampled_median_has_the_distribution_of_the_median_of_a_resample(count):
    ordered = sorted(noisy(10.0, count, spread=0.3))
    quickly, draw = random.Random(1), random.Random(2)
    quick = [resampled_median(ordered, quickly) for _ in range(2000)]
    plain = [median(draw.choices(ordered, k=count)) for _ in range(2000)]
    assert set(quick) <= {(a + b) / 2 for a in ordered for b in ordered}
    assert pstdev(quick) == pytest.approx(pstdev(plain), rel=0.1)
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        near, expected = 0.02 * (ordered[-1] - ordered[0]) + 1e-9, percentile(plain, share)
        below = sum(value <= expected + near for value in quick) / len(quick)
        above = sum(value >= expected - near for value in quick) / len(quick)
        assert share - 0.05 <= below
        assert 1 - share - 0.05 <= above


# --- two kinds of steps ---------------------------------------------------------------------------------------


def test_steps_of_two_kinds_are_told_apart():
    modes = two_modes([3.0, 3.1, 2.9, 9.0] * 10)
    assert (modes.low, modes.high, modes.high_share) == (3.0, 9.0, 0.25)
    assert two_modes([3.0, 9.0] * 10) is not None, "twenty are enough"
    assert two_modes([3.0] * 18 + [9.0] * 2) is not None, "a tenth is enough"
    assert two_modes([10.0] * 10 + [12.0] * 10) is not None, "a fifth apart is enough"


@pytest.mark.parametrize(
    "values",
    [
        [3.0, 9.0] * 9,  # too few to tell
        [3.0] * 50,
        [3.0 + 0.01 * index for index in range(50)],  # a slope, not two kinds
        [3.0] * 49 + [30.0],  # one outlier
    ],
)
def test_steps_of_one_kind_are_not_split(values):
    assert two_modes(values) is None


@given(
    st.lists(st.floats(1.0, 1.4), min_size=10, max_size=90),
    st.lists(st.floats(3.0, 3.4), min_size=10, max_size=90),
)
def test_kinds_that_lie_apart_are_split_between_them(low, high):
    modes = two_modes([*high, *low])
    assert (modes.low, modes.high) == (median(low), median(high))
    assert modes.high_share == len(high) / len(low + high)


@given(st.lists(st.floats(0.01, 1e4), min_size=20, max_size=60))
def test_two_modes_lie_among_the_values(values):
    modes = two_modes(values)
    if modes is not None:
        assert min(values) <= modes.low < modes.high <= max(values)
        assert 0 < modes.high_share < 1
