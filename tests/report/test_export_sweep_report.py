"""The report's section on batch sizes: the knee, and what to do about the learning rate."""

import pytest
from proposals import CATALOG
from report_text import body_of, table_rows
from sample_session import detailed_history, sample_request

from advisor.experiment.state import SessionState
from advisor.export.formats.markdown import markdown_report


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
