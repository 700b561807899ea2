"""The sweep over batch sizes says no more than its trials have shown."""

from advisor.figures.sweep import SweepPoint, knee_of
from advisor.records import Mode
from advisor.report.evidence import sweep_sentence

BEYOND = "above the latency limit of 20.0 ms"
OWN = SweepPoint(32, 10.0, 3200.0, 1, own=True)


def test_a_size_that_cannot_be_told_from_the_baselines_is_no_knee():
    points = (OWN, SweepPoint(64, 18.0, 3500.0, 2, undecided=True))
    assert knee_of(points) == 32
    assert sweep_sentence(points, Mode.TRAIN) == "No size is measurably faster than the one you have."


def test_a_size_that_is_faster_is_the_knee_beside_one_that_is_not():
    points = (OWN, SweepPoint(64, 14.0, 4500.0, 2), SweepPoint(128, 40.0, 3300.0, 3, undecided=True))
    assert knee_of(points) == 64
    assert "64 samples is the knee" in sweep_sentence(points, Mode.TRAIN)


def test_the_size_within_a_latency_limit_is_named_as_such():
    points = (OWN, SweepPoint(64, 14.0, 4500.0, 2), SweepPoint(128, 24.0, 5300.0, 3, problem=BEYOND))
    assert sweep_sentence(points, Mode.INFER).startswith("64 samples is the size to take: of those that keep the laten")


def test_a_latency_limit_that_no_size_keeps_says_what_to_type():
    points = (SweepPoint(32, 30.0, 1000.0, own=True, problem=BEYOND), SweepPoint(64, 50.0, 1300.0, problem=BEYOND))
    assert "--batch-size 1" in sweep_sentence(points, Mode.INFER)
