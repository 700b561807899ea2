from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from advisor.records import Numerics, Outcome, TrialResult
from advisor.session.numerics import CLOSE_TOLERANCE, compare_numerics, finite, relative_difference

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10)


def result(losses=(), outputs=(), batch_size=8):
    return TrialResult(Outcome.MEASURED, losses=tuple(losses), outputs=tuple(outputs), batch_size=batch_size)


def compared(new, old, declared=Numerics.CLOSE, spread=0.0):
    return compare_numerics(result(new), result(old), declared, spread=spread)


@given(numbers)
def test_equal_losses_are_exact(losses):
    assert compared(losses, losses).measured is Numerics.EXACT
    assert compared(losses, losses).difference == 0


@given(numbers)
def test_equal_outputs_are_exact(outputs):
    same = compare_numerics(result(outputs=outputs), result(outputs=outputs), Numerics.CLOSE)
    assert (same.measured, same.difference) == (Numerics.EXACT, 0)


@pytest.mark.parametrize(
    ("new", "old", "measured"),
    [
        ((2.3, 2.2001), (2.3, 2.2), Numerics.CLOSE),
        ((2.3, 2.2 * (1 + 0.9 * CLOSE_TOLERANCE)), (2.3, 2.2), Numerics.CLOSE),
        ((2.3, 2.2 * (1 + 1.1 * CLOSE_TOLERANCE)), (2.3, 2.2), Numerics.CHANGED),
        ((2.3,), (2.3, 9.0), Numerics.EXACT),  # only common steps are compared
        ((2.0, 0.010), (2.0, 0.009), Numerics.CLOSE),  # a loss that nearly vanished is seen against the largest
        ((0.0, 0.0), (0.0, 0.0), Numerics.EXACT),
    ],
)
def test_losses_are_classed_by_their_largest_relative_difference(new, old, measured):
    assert compared(new, old).measured is measured


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_changed(bad):
    numerics = compared((2.3, bad), (2.3, 2.2))
    assert (numerics.measured, numerics.difference) == (Numerics.CHANGED, None)
    assert "not finite" in numerics.text
    assert not finite(result((2.3, bad)))
    assert finite(result((2.3,), (1.0,)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_are_changed(bad):
    numerics = compare_numerics(result(outputs=(1.0, bad)), result(outputs=(1.0, 1.0)), Numerics.EXACT)
    assert numerics.measured is Numerics.CHANGED


def test_what_is_within_the_spread_of_two_baselines_has_its_declared_class():
    assert compared((2.0,), (2.2,), Numerics.CLOSE, spread=0.2).measured is Numerics.CLOSE
    assert compared((2.0,), (2.2,), Numerics.EXACT, spread=0.2).measured is Numerics.EXACT
    assert compared((2.0,), (2.2,), Numerics.CHANGED, spread=0.2).measured is Numerics.CLOSE
    assert "two baselines" in compared((2.0,), (2.2,), spread=0.2).text


def test_a_close_setting_that_changes_is_worse_than_declared():
    assert compared((9.0,), (2.2,), Numerics.CLOSE).worse_than_declared
    assert not compared((9.0,), (2.2,), Numerics.CHANGED).worse_than_declared
    assert compared((2.2001,), (2.2,), Numerics.EXACT).worse_than_declared


def test_batches_of_another_size_cannot_be_compared():
    numerics = compare_numerics(result((1.0,), batch_size=16), result((1.0,)), Numerics.CHANGED)
    assert (numerics.measured, numerics.difference) == (Numerics.CHANGED, None)
    assert "16 instead of 8" in numerics.text


def test_nothing_to_compare():
    assert compared((), ()).difference is None
    assert relative_difference(result((1.0,)), result(outputs=(1.0,))) is None
    assert relative_difference(result(outputs=(1.0, 2.0)), result(outputs=(1.0,))) is None


def test_outputs_are_compared_by_their_distance():
    old = result(outputs=(3.0, 1.0, 2.0))
    assert relative_difference(result(outputs=(3.1, 1.0, 2.1)), old) == pytest.approx(0.1 / math.sqrt(5))


def test_a_difference_that_the_sample_misses_shows_in_the_sum():
    old, new = result(outputs=(100.0, 1.0, 2.0)), result(outputs=(101.0, 1.0, 2.0))
    assert relative_difference(new, old) == pytest.approx(0.01)


@given(numbers, st.sampled_from([1e-3, 1e3]))
def test_the_difference_does_not_depend_on_the_unit(losses, scale):
    assume(max(map(abs, losses)) > 1e-6)
    new = [1.01 * loss for loss in losses]
    expected = relative_difference(result(new), result(losses))
    scaled = relative_difference(result([scale * x for x in new]), result([scale * x for x in losses]))
    assert scaled == pytest.approx(expected, rel=1e-6)
