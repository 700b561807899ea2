"""The report's section on batch sizes: the knee, the learning rate, and no more than the trials have shown."""

import pytest
from proposals import CATALOG
from report_text import body_of, table_rows
from sample_session import detailed_history, sample_request

from advisor.experiment.state import SessionState
from advisor.export.formats.markdown import markdown_report
from advisor.figures.sweep import SweepPoint, knee_of
from advisor.records import Mode
from advisor.report.evidence import sweep_sentence

BEYOND = "above the latency limit of 20.0 ms"
OWN = SweepPoint(32, 10.0, 3200.0, 1, own=True)


@pytest.fixture
def detailed() -> SessionState:
    return SessionState.of(detailed_history())


def markdown(state: SessionState) -> str:
    return markdown_report(state, sample_request(), CATALOG)


def test_the_sweep_with_its_knee_and_the_advice(detailed):
    rows = table_rows(markdown(detailed), "Batch sizes")
    assert rows[0] == ["Batch", "Step", "Samples/s", "Gain", "Memory", "Remark"]
    assert [row[-1] for row in rows[2:]] == ["", "knee"]
    section = body_of(markdown(detailed), "Batch sizes")
    assert "start from 1.41 times the learning rate (square-root scaling)" in section
    assert "the largest that was fit to use" in section


def test_one_size_is_no_sweep(detailed):
    del detailed.trials["batch_size=128"]
    assert "## Batch sizes" not in markdown(detailed)


@pytest.mark.parametrize(
    ("points", "knee", "mode", "said"),
    [
        (
            (OWN, SweepPoint(64, 18.0, 3500.0, 2, undecided=True)),
            32,
            Mode.TRAIN,
            "No size is measurably faster than the one you have.",
        ),
        (
            (OWN, SweepPoint(64, 14.0, 4500.0, 2), SweepPoint(128, 40.0, 3300.0, 3, undecided=True)),
            64,
            Mode.TRAIN,
            "64 samples is the knee",
        ),
        (
            (OWN, SweepPoint(64, 14.0, 4500.0, 2), SweepPoint(128, 24.0, 5300.0, 3, problem=BEYOND)),
            64,
            Mode.INFER,
            "64 samples is the size to take: of those that keep the latency limit",
        ),
        (
            (SweepPoint(32, 30.0, 1000.0, own=True, problem=BEYOND),),
            None,
            Mode.INFER,
            "start lower, with --batch-size 1",
        ),
    ],
)
def test_the_sentence_recommends_a_size(points, knee, mode, said):
    assert knee_of(points) == knee
    assert said in sweep_sentence(points, mode)
