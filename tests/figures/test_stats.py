"""The statistics: how often intervals contain the truth, and how often equal settings are called different."""

import math
import random
from statistics import fmean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.figures.stats import (
    REPORT,
    SELECTION,
    ProcessSpread,
    break_even_steps,
    largest_difference,
    mean_rate,
    median_error,
    paired_interval,
    process_spread,
    ratio_interval,
    side_variance,
    student_quantile,
)
from advisor.records import Comparison, Verdict

rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)
sides = st.lists(rates, min_size=1, max_size=4)
quick = settings(max_examples=25, deadline=None)
# The priors of the kinds of steps, as ``judging/runs.py`` has them.
CAPTURED, DEVICE_BOUND, ON_CPU, HOST_BOUND, FED = 0.01, 0.01, 0.03, 0.04, 0.05


def processes(draw, sigma, count, *, rate=100.0, blocks=12, within=0.01):
    """Processes of one program: lists of rates, whose logarithms differ by process and by block."""
    found = []
    for _ in range(count):
        own = rate * math.exp(draw.gauss(0.0, sigma))
        found.append([own * math.exp(draw.gauss(0.0, within)) for _ in range(blocks)])
    return found


def medians(side):
    return [median(run) for run in side]


@pytest.mark.parametrize(
    ("degrees", "confidence", "quantile", "error"),
    [(4, 0.95, 2.776445, 3.2e-4), (10, 0.95, 2.228139, 4e-6), (30, 0.95, 2.042272, 1e-6), (4, 0.99, 4.604095, 2.3e-3)],
)
def test_students_quantile(degrees, confidence, quantile, error):
    assert student_quantile(degrees, confidence) == pytest.approx(quantile, rel=error)


def test_without_repeats_the_spread_is_the_prior_of_four_degrees():
    assert process_spread([[100.0], []], prior=0.02) == ProcessSpread(0.02, 4.0)


def test_repeats_are_pooled_with_the_prior():
    """Two groups: 1 and 2 degrees of freedom beside the prior's four."""
    squares = 2 * 0.005**2 + 2 * 0.01**2
    spread = process_spread([[math.exp(-0.005), math.exp(0.005)], [math.exp(-0.01), 1.0, math.exp(0.01)]], prior=0.02)
    assert spread.degrees == 7.0
    assert spread.sigma == pytest.approx(math.sqrt((4 * 0.02**2 + squares) / 7))


def test_one_repeat_leaves_the_prior_its_four_degrees():
    spread = process_spread([[1.0, math.exp(0.2)]], prior=0.01)
    assert (spread.sigma, spread.degrees) == (pytest.approx(math.sqrt((4e-4 + 0.02) / 5)), 5.0)


def test_most_processes_outweigh_the_prior_and_one_does_not():
    """Three gaps of 20 % leave the prior no weight, and one among eight of half a per cent all of its four degrees."""
    wide, narrow = [1.0, math.exp(0.2)], [1.0, math.exp(0.005)]
    most, one = process_spread([wide] * 3, prior=0.01), process_spread([wide, *[narrow] * 8], prior=0.01)
    assert (most.sigma, most.degrees) == (pytest.approx(0.2 / math.sqrt(2), rel=0.01), 4.0)
    assert (one.sigma, one.degrees) == (pytest.approx(math.sqrt((4e-4 + 0.02 + 1e-4) / 13)), 13.0)


@quick
@given(sides, sides, st.floats(0.001, 0.3))
def test_an_interval_holds_its_estimate_in_the_middle_of_the_logarithm(new, old, sigma):
    spread = ProcessSpread(sigma, 5.0)
    estimate, low, high = ratio_interval(new, old, spread)
    assert 0 < low < estimate < high
    assert low * high == pytest.approx(estimate**2)
    assert ratio_interval(old, new, spread) == pytest.approx((1 / estimate, 1 / high, 1 / low))


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_the_variance_is_that_of_either_sides_mean(count):
    estimate, low, high = ratio_interval([[130.0]] * count, [[100.0]], ProcessSpread(0.01, 1e6))
    assert estimate == pytest.approx(1.3)
    half = 1.96 * 0.01 * math.sqrt(1 + 1 / count)
    assert (math.log(high / estimate), math.log(estimate / low)) == pytest.approx((half, half), rel=1e-4)


@pytest.mark.parametrize("count", [5, 8, 15, 100])
def test_the_error_of_a_median_is_what_repeating_it_shows(count):
    draw, found, told = random.Random(count), [], []
    for _ in range(1500):
        blocks = [math.exp(draw.gauss(0.0, 0.05)) for _ in range(count)]
        found.append(math.log(median(blocks)))
        told.append(median_error(blocks))
    seen = math.sqrt(fmean(log**2 for log in found))
    assert fmean(told) == pytest.approx(seen, rel=0.25)


@pytest.mark.parametrize(
    ("logs", "error"),
    [
        ([0.5], 0.0),
        ([0.0, 0.05, 0.3, 0.1], 0.1),
        ([0.01 * i for i in range(5)], 0.04 / 3.92),
        ([0.01 * i for i in range(15)], 0.08 / 3.92),
        ([0.01 * i for i in range(100)], 0.19 / 3.92),
    ],
)
def test_the_error_of_a_median_is_half_the_distance_of_two_blocks(logs, error):
    assert median_error([math.exp(log) for log in logs]) == pytest.approx(error, rel=1e-3)


def test_the_variance_of_a_side_is_that_of_its_processes_and_of_their_blocks():
    one, other = [1.0, math.exp(0.02)], [1.0, math.exp(0.04)]
    assert side_variance([one, other], ProcessSpread(0.03)) == pytest.approx((9e-4 + (4e-4 + 16e-4) / 2) / 2)


def test_one_odd_process_counts_as_28_per_cent_off_at_most():
    assert mean_rate([100.0, 121.0]) == pytest.approx(110.0)
    assert mean_rate([100.0, 100.0, 1e4]) == pytest.approx(100 * 1.28 ** (1 / 3))
    assert mean_rate([100.0, 100.0, 1e-4]) == pytest.approx(100 / 1.28 ** (1 / 3))


TRUTH = 1.3


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("sigma", "prior"),
    [(0.003, DEVICE_BOUND), (0.01, DEVICE_BOUND), (0.03, ON_CPU), (0.04, HOST_BOUND), (0.05, HOST_BOUND), (0.05, FED)],
)
def test_95_per_cent_intervals_hold_the_truth(sigma, prior, count):
    """As many processes a side; the baseline was run twice more, as the control and by the instrumented pass."""
    draw, cases, held = random.Random(1), 400, 0
    for _ in range(cases):
        old = processes(draw, sigma, count)
        new = processes(draw, sigma, count, rate=100.0 * TRUTH)
        spread = process_spread([medians(old) + medians(processes(draw, sigma, 2)), medians(new)], prior=prior)
        _, low, high = ratio_interval(new, old, spread)
        held += low <= TRUTH <= high
    assert held >= 0.94 * cases


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("odd", [0.125, 0.73, 1.3])
@pytest.mark.parametrize(("sigma", "prior"), [(0.01, DEVICE_BOUND), (0.04, HOST_BOUND)])
def test_95_per_cent_intervals_hold_the_truth_beside_an_odd_run_of_the_baseline(sigma, prior, odd, count):
    draw, cases, held = random.Random(2), 300, 0
    for _ in range(cases):
        old = [*processes(draw, sigma, count - 1), *processes(draw, sigma, 1, rate=100.0 * odd)]
        new = processes(draw, sigma, 2, rate=100.0 * TRUTH)
        _, low, high = ratio_interval(new, old, process_spread([medians(old), medians(new)], prior=prior))
        held += low <= TRUTH <= high
    assert held >= 0.95 * cases


@pytest.mark.parametrize(
    ("sigma", "prior"),
    [(0.002, CAPTURED), (0.01, DEVICE_BOUND), (0.02, HOST_BOUND), (0.05, HOST_BOUND), (0.05, FED), (0.03, ON_CPU)],
)
def test_of_settings_that_do_nothing_one_in_a_hundred_is_called_different_at_most(sigma, prior):
    """Sessions of four baselines and ten candidates of one run each, twenty times 200 of them."""
    assert share_called_different(sigma, prior) <= 0.01


def share_called_different(sigma, prior):
    candidates, wrong = 0, 0
    for seed in range(20):
        draw = random.Random(seed)
        for _ in range(20):
            old = processes(draw, sigma, 4)
            spread = process_spread([medians(old)], prior=prior)
            for new in processes(draw, sigma, 10):
                told = Comparison(*ratio_interval([new], old, spread, confidence=SELECTION)).verdict
                wrong += told.is_change
                candidates += 1
    return wrong / candidates


@pytest.mark.parametrize("prior", [CAPTURED, ON_CPU, HOST_BOUND, FED])
@pytest.mark.parametrize(("count", "confidence"), [(3, REPORT), (4, SELECTION)])
@quick
@given(odd=st.floats(1e-2, 1e2), gap=st.floats(-0.01, 0.01))
def test_one_odd_run_of_three_or_four_never_erases_a_doubled_speed(odd, gap, count, confidence, prior):
    old = [[100.0], [100.0 * (1 + gap)], [100.0 * odd], [100.0]][:count]
    spread = process_spread([medians(old)], prior=prior)
    for new in ([[200.0]], [[200.0], [200.0]]):
        assert Comparison(*ratio_interval(new, old, spread, confidence=confidence)).verdict is Verdict.FASTER


def test_pairing_cancels_a_drift_that_both_sides_share():
    drift = [1 - 0.04 * block for block in range(12)]  # the machine slows to about half
    old, new = [100 * factor for factor in drift], [105 * factor for factor in drift]
    assert paired_interval(new, old, ProcessSpread(0.0)) == pytest.approx((1.05, 1.05, 1.05))
    _, low, high = ratio_interval([new], [old], ProcessSpread(0.0))
    assert low < 1 < high


def test_what_makes_two_live_processes_differ_widens_a_paired_interval():
    _, low, high = paired_interval([105.0] * 8, [100.0] * 8, ProcessSpread(0.02, 30.0))
    assert math.log(high / low) == pytest.approx(2 * 2.042 * 0.02 * math.sqrt(2), rel=0.01)


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
        ("quiet", 3, 1.25),
        ("quiet", 8, 1.2),
        ("drifting", 12, 1.17),
        ("loaded", 3, 6.0),
        ("loaded", 12, 1.25),
        ("bimodal", 4, 3.0),
        ("bimodal", 5, 3.0),
        ("bimodal", 12, 2.2),
    ],
)
def test_blocks_in_turn_tell_the_ratio_through_noise(kind, pairs, widest):
    spread = ProcessSpread(0.012)
    found = [paired_interval(*alternating(kind, pairs, 1.5, seed), spread) for seed in range(100)]
    assert sum(low <= 1.5 <= high for _, low, high in found) >= 94
    assert median(high / low for _, low, high in found) < widest


@pytest.mark.parametrize(
    ("extra_s", "old_s", "new_s", "steps"),
    [(10.05, 0.2, 0.1, 101), (0.0, 0.2, 0.1, 0), (-3.0, 0.2, 0.1, 0), (10.0, 0.1, 0.1, None), (-3.0, 0.1, 0.2, None)],
)
def test_break_even(extra_s, old_s, new_s, steps):
    assert break_even_steps(extra_s, old_s, new_s) == steps


def test_the_largest_difference_is_the_same_for_faster_and_slower():
    assert largest_difference([1.0, 1.02, 0.9]) == pytest.approx(1 / 0.9 - 1)
    assert largest_difference([]) == 0.0
