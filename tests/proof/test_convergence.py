"""The verdict on loss curves with settings and without them."""

import math

import pytest

from advisor.proof.convergence import Convergence, Learning, band, windows


def falling(end):
    return tuple(2.0 + (end - 2.0) * step / 100 for step in range(100))


@pytest.mark.parametrize(
    ("plain", "tuned", "verdict"),
    [
        ((1.0, 1.1, 0.9), (1.0, 1.1, 0.9), Learning.SAME),
        ((1.0, 1.1, 0.9), (1.01, 1.1, 0.9), Learning.SAME),
        ((1.0, 1.1, 0.9), (1.2, 1.3, 1.1), Learning.WORSE),
        ((1.0, 1.1, 0.9), (0.8, 0.9, 0.7), Learning.BETTER),
        ((1.0, 1.1, 0.9), (1.3, 0.9, 1.1), Learning.SAME),
        ((1.0,), (1.5,), Learning.WORSE),
        ((2.0,), (2.001,), Learning.SAME),
        ((1.0, 1.1, 0.9), (1.1, 1.13, 0.91), Learning.SAME),
    ],
)
def test_the_ends_of_pairs_of_one_seed_decide(plain, tuned, verdict):
    found = Convergence(tuple(map(falling, plain)), tuple(map(falling, tuned)), 1.0)
    assert found.verdict is verdict
    assert found.verdict.is_fine is (verdict is not Learning.WORSE)


def test_losses_that_are_no_numbers_have_diverged():
    broken = (*falling(1.0)[:-1], math.nan)
    found = Convergence((falling(1.0),), (broken,), 1.0)
    assert found.verdict is Learning.DIVERGED
    assert not found.verdict.is_fine


def test_windows_and_the_band_over_seeds():
    assert len(windows(falling(1.0))) == 10
    assert windows((3.0, 1.0)) == [3.0, 1.0]
    assert band([(3.0, 1.0), (1.0, 2.0)]) == [(1.0, 2.0, 3.0), (1.0, 1.5, 2.0)]
