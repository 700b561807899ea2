"""The sweep over batch sizes says no more than its trials have shown."""

from __future__ import annotations

from advisor.figures.sweep import SweepPoint, knee_of
from advisor.records import Mode
from advisor.report.evidence import sweep_sentence

OWN = SweepPoint(32, 10.0, 3200.0, 1, own=True)


def test_a_size_that_cannot_be_told_from_the_baselines_is_no_knee():
    points = (OWN, SweepPoint(64, 18.0, 3500.0, 2, undecided=True))
    assert knee_of(points) == 32
    assert sweep_sentence(points, Mode.TRAIN) == "No size is measurably faster than the one you have."


def test_a_size_that_is_faster_is_the_knee_beside_one_that_is_not():
    points = (OWN, SweepPoint(64, 14.0, 4500.0, 2), SweepPoint(128, 40.0, 3300.0, 3, undecided=True))
    assert knee_of(points) == 64
    assert "64 samples is the knee" in sweep_sentence(points, Mode.TRAIN)
