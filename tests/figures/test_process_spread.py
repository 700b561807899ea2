"""Statistics of processes that run the same program: their spread, the noise floor, and intervals that hold both."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.figures.stats import (
    LARGEST_NOISE_FLOOR,
    SMALLEST_NOISE_FLOOR,
    ProcessSpread,
    fastest_over_slowest,
    largest_difference,
    noise_floor,
    process_spread,
    runs_ratio_interval,
    student_factor,
)
from advisor.records import Comparison, Verdict

rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)
quick = settings(max_examples=25, deadline=None)


def noisy(center, count, spread=0.02, seed=0):
    draw = random.Random(seed)
    return [center * draw.uniform(1 - spread, 1 + spread) for _ in range(count)]


SESSIONS = 1000


def processes(draw, sigma, count, rate=100.0):
    """The rates of processes of one program, whose logarithms have this standard deviation."""
    return [rate * math.exp(draw.gauss(0.0, sigma)) for _ in range(count)]


def single_blocks(rates):
    """Runs of one block each, as ``runs_ratio_interval`` takes them."""
    return [[rate] for rate in rates]


@pytest.mark.parametrize(
    ("degrees", "factor", "error"),
    [(3, 3.182446, 1.3e-3), (5, 2.570582, 1.1e-4), (10, 2.228139, 4e-6), (30, 2.042272, 3e-7)],
)
def test_students_factor(degrees, factor, error):
    assert student_factor(degrees) == pytest.approx(factor, rel=error)


@pytest.mark.parametrize(("degrees", "factor"), [(3, 5.841), (5, 4.032), (10, 3.169), (30, 2.750)])
def test_students_factor_for_99_per_cent(degrees, factor):
    assert student_factor(degrees, 2.575829) == pytest.approx(factor, rel=0.01)


@given(st.floats(2.0, 1e6))
def test_students_factor_falls_to_the_normal_one(degrees):
    assert student_factor(2 * degrees) < student_factor(degrees)
    assert student_factor(degrees) > 1.9599


def test_without_repeats_the_spread_is_what_is_known_of_other_machines():
    assert process_spread([[100.0], []], prior=0.02, prior_degrees=4.0) == ProcessSpread(0.02, 4.0)


def test_runs_that_agree_with_the_prior_add_to_what_is_known():
    few = process_spread([[100.0, 101.0]], prior=0.01)
    many = process_spread([[100.0, 101.0, 99.0, 100.0]] * 3, prior=0.01)
    assert few.degrees < many.degrees
    assert many.sigma == pytest.approx(0.01, rel=0.3)
    assert many.widened < few.widened


@pytest.mark.parametrize("other", [100.0, 100.1])
def test_what_is_known_counts_no_more_where_runs_differ_less(other):
    """Four observations, and one degree of freedom less one for looking for a disturbed run."""
    assert process_spread([[100.0, other]], prior=0.01, prior_degrees=4.0).degrees == 4.0


def test_runs_that_contradict_the_prior_are_believed():
    noisy_machine = process_spread([processes(random.Random(0), 0.2, 8)], prior=0.01)
    assert noisy_machine.sigma > 0.1
    assert noisy_machine.degrees == pytest.approx(6.0, abs=0.2)  # seven, less one for looking for a disturbed run


def test_a_disturbed_run_is_left_out_and_costs_no_second_degree_of_freedom():
    quiet = [100.0, 101.0, 99.0, 100.0]
    found, without = (process_spread([runs], prior=0.01) for runs in ([*quiet, 100.0 / 8], quiet))
    assert (found.sigma, found.degrees) == (without.sigma, without.degrees + 1)


@pytest.mark.parametrize(("rate", "is_left_out"), [(82.4, True), (82.9, False)])
def test_a_run_is_disturbed_when_it_is_twenty_times_the_spread_below_the_mean_of_the_others(rate, is_left_out):
    rates = [rate, 100.0, 101.0, 102.0]
    spread = process_spread([rates], prior=0.01)
    assert (spread.sigma < 0.02) is is_left_out
    assert (fastest_over_slowest(rates, spread) < 0.03) is is_left_out


@quick
@given(st.lists(st.lists(st.floats(1.0, 2.0), max_size=5), max_size=4), st.sampled_from([1e-3, 1e3]))
def test_the_spread_does_not_depend_on_the_unit(groups, scale):
    spread = process_spread(groups, prior=0.02)
    scaled = process_spread([[scale * rate for rate in group] for group in groups], prior=0.02)
    assert (scaled.sigma, scaled.degrees) == pytest.approx((spread.sigma, spread.degrees), rel=1e-6)


@pytest.mark.parametrize(("sigma", "prior"), [(0.002, 0.01), (0.01, 0.01), (0.02, 0.03), (0.02, 0.05)])
@pytest.mark.parametrize("seed", range(5))
def test_one_disturbed_run_of_four_does_not_decide_the_floor(sigma, prior, seed):
    quiet = processes(random.Random(seed), sigma, 3)
    for place in range(4):
        runs = [*quiet[:place], 100.0 / 8, *quiet[place:]]
        assert noise_floor(process_spread([runs], prior=prior)) < 0.1
    assert noise_floor(process_spread([[*quiet, 50.0, 200.0]], prior=prior)) == LARGEST_NOISE_FLOOR  # more than one


@given(st.lists(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), max_size=5), st.floats(1e-4, 0.1))
def test_the_floor_is_bounded(groups, prior):
    assert SMALLEST_NOISE_FLOOR <= noise_floor(process_spread(groups, prior=prior)) <= LARGEST_NOISE_FLOOR


def test_the_floor_is_what_one_run_against_four_has_to_clear_from_95_to_99_per_cent():
    """Of Student's t with four degrees of freedom: 4.604 less 2.776."""
    floor = noise_floor(ProcessSpread(0.01, 4.0))
    assert floor == pytest.approx((4.604 - 2.776) * math.sqrt(1.25) * 0.01, rel=0.03)


def share_called_faster(gain, new_sigma):
    """The share of sessions that tell a speed-up of ``gain`` where processes of the old program differ by 15 %."""
    draw, called = random.Random(3), 0
    for _ in range(SESSIONS):
        old = processes(draw, 0.15, 4)
        new = processes(draw, new_sigma, 2, 100.0 * gain)
        spread = process_spread([old], prior=0.04)
        interval = runs_ratio_interval(single_blocks(new), single_blocks(old), ProcessSpread(new_sigma, 4.0), spread)
        called += Comparison(*interval, noise_floor(spread)).verdict is Verdict.FASTER
    return called / SESSIONS


def test_a_doubled_speed_is_told_also_where_processes_differ_much():
    assert share_called_faster(2.0, 0.01) > 0.9


def test_the_same_program_is_hardly_ever_called_faster_where_processes_differ_much():
    assert share_called_faster(1.0, 0.15) < 0.02


def test_the_floor_of_a_quiet_machine_is_the_smallest_there_is():
    assert noise_floor(ProcessSpread(0.001, 10.0)) == SMALLEST_NOISE_FLOOR


@given(st.floats(0.001, 0.1), st.floats(0.001, 0.1), st.floats(2.0, 50.0))
def test_the_floor_rises_with_the_spread_and_falls_with_what_is_known(one, other, degrees):
    low, high = sorted((one, other))
    assert noise_floor(ProcessSpread(low, degrees)) <= noise_floor(ProcessSpread(high, degrees))
    assert noise_floor(ProcessSpread(low, 2 * degrees)) <= noise_floor(ProcessSpread(low, degrees))


def test_the_largest_difference_is_the_same_for_faster_and_slower():
    assert largest_difference([1.0, 1.02, 0.9]) == pytest.approx(1 / 0.9 - 1)
    assert largest_difference([]) == 0.0


@quick
@given(st.lists(rates, min_size=1, max_size=4), st.lists(rates, min_size=1, max_size=4), st.floats(0.001, 0.3))
def test_an_interval_of_runs_is_even_in_the_logarithm(new, old, sigma):
    spread = ProcessSpread(sigma, 5.0)
    estimate, low, high = runs_ratio_interval(new, old, spread)
    assert 0 < low < estimate < high
    assert low * high == pytest.approx(estimate**2)
    assert runs_ratio_interval(old, new, spread) == pytest.approx((1 / estimate, 1 / high, 1 / low))


@pytest.mark.parametrize(("processes", "variance"), [(1, 2.0), (2, 1.5), (3, 1 + 1.35 / 3), (6, 1 + 1.35 / 6)])
def test_the_variance_of_an_interval_is_that_of_either_sides_mean_or_median(processes, variance):
    """In variances of one process. A mean has a share of one's; the median of three to six has 1.35 times as much."""
    spread = ProcessSpread(0.01, 1e6)
    estimate, low, high = runs_ratio_interval([[130.0]] * processes, [[100.0]], spread)
    assert estimate == pytest.approx(1.3)
    assert math.log(high / estimate) == pytest.approx(1.96 * 0.01 * math.sqrt(variance), rel=1e-4)
    assert math.log(estimate / low) == pytest.approx(1.96 * 0.01 * math.sqrt(variance), rel=1e-4)


def test_a_process_counts_once_however_many_blocks_it_has():
    runs = [[100.0] * 3, [200.0] * 300]
    assert runs_ratio_interval(runs, [[100.0]], ProcessSpread(0.01, 5.0))[0] == pytest.approx(math.sqrt(2))


def test_more_processes_and_more_blocks_narrow_the_interval():
    spread = ProcessSpread(0.02, 6.0)

    def width(processes, blocks):
        estimate, low, high = runs_ratio_interval([noisy(100.0, blocks)] * processes, [noisy(100.0, blocks)], spread)
        return (high - low) / estimate

    assert width(2, 10) < width(1, 10)
    assert width(4, 10) < width(2, 10)
    assert width(1, 100) < width(1, 10)


@pytest.mark.parametrize(("sigma", "prior"), [(0.01, 0.01), (0.05, 0.05), (0.2, 0.03)])
def test_of_programs_that_are_the_same_at_most_one_in_a_hundred_is_called_different(sigma, prior):
    """Sessions of four runs of the baseline and 100 candidates that change nothing, of one run each.

    Four runs that happen to agree make one session wrong more often: it is the share over many that holds. The priors
    are those of a GPU, of a loader, and of a CPU that something else keeps busy.
    """
    sessions, candidates = 40, 100
    wrong = 0
    for seed in range(sessions):
        draw = random.Random(seed)
        baseline = processes(draw, sigma, 4)
        spread = process_spread([baseline], prior=prior)
        floor = noise_floor(spread)
        for run in single_blocks(processes(draw, sigma, candidates)):
            comparison = Comparison(*runs_ratio_interval([run], single_blocks(baseline), spread), floor)
            wrong += comparison.verdict is not Verdict.NO_DIFFERENCE
    assert wrong <= sessions * candidates / 100


@pytest.mark.parametrize("sigma", [0.005, 0.01, 0.02, 0.05, 0.1])
def test_intervals_of_two_runs_a_side_hold_the_true_ratio(sigma):
    """Three pairs of runs of the same settings are all that is known of the spread; the prior is a GPU's."""
    draw, cases, truth, held = random.Random(1), 500, 1.3, 0
    for _ in range(cases):
        null = [processes(draw, sigma, 2) for _ in range(3)]
        new = processes(draw, sigma, 2, rate=100.0 * truth)
        spread = process_spread(null, prior=0.01)
        _, low, high = runs_ratio_interval(single_blocks(new), single_blocks(null[0]), spread)
        held += low <= truth <= high
    assert held >= 0.92 * cases


@pytest.mark.parametrize(("sigma", "prior"), [(0.001, 0.01), (0.01, 0.01), (0.06, 0.025), (0.12, 0.04), (0.2, 0.025)])
def test_the_interval_of_later_runs_holds_what_two_more_of_each_show(sigma, prior):
    """A session of five runs of the baseline and three of a stack; then the median of two plain loops of either."""
    draw = random.Random(0)
    held = 0
    for _ in range(300):
        sides = [[math.exp(draw.gauss(0.0, sigma)) for _ in range(count)] for count in (3, 5)]
        later = [fmean(math.exp(draw.gauss(0.0, sigma)) for _ in range(2)) for _ in range(2)]
        spread = process_spread(sides, prior=prior)
        _, low, high = runs_ratio_interval(*map(single_blocks, sides), spread, of_later_runs=True)
        held += low <= later[0] / later[1] <= high
    assert held >= 0.93 * 300


def test_the_interval_of_later_runs_is_hardly_wider_where_runs_repeat_well():
    spread = process_spread([[1.0, 1.001, 0.999], [0.5, 0.5005, 0.4995, 0.5]], prior=0.01)
    runs = [[[2.0] * 3, [2.002] * 3], [[1.0] * 3, [1.001] * 3, [0.999] * 3]]
    widths = [
        math.log(high / low)
        for _, low, high in (runs_ratio_interval(*runs, spread, of_later_runs=later) for later in (False, True))
    ]
    assert widths[0] < widths[1] < 1.1 * widths[0]


def test_blocks_that_scatter_are_part_of_the_interval():
    """Processes that do not differ, with blocks that do: the interval holds the truth by the blocks alone."""
    draw, cases, held = random.Random(3), 300, 0
    for _ in range(cases):
        new, old = ([100.0 * math.exp(draw.gauss(0.0, 0.1)) for _ in range(12)] for _ in range(2))
        _, low, high = runs_ratio_interval([new], [old], ProcessSpread(1e-4, 30.0))
        held += low <= 1.0 <= high
    assert 0.9 * cases <= held < cases


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_on_which_runs_differ_by_a_fifth_does_not_deny_a_stack_that_is_nearly_twice_as_fast(seed):
    """The demo's case: 1.79x (1.62-2.02), measured in turn, was "not measurably faster" by a floor of 884 %."""
    floor = noise_floor(process_spread([processes(random.Random(seed), 0.2, 3)], prior=0.03))
    assert Comparison(1.79, 1.62, 2.02, floor, paired=True).verdict is Verdict.FASTER
