"""`advisor.ab`: two builds in turn, in real trial processes."""

import pytest
import torch

import advisor
from advisor.errors import AdvisorError
from advisor.records import Verdict

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _few_short_runs(monkeypatch):
    """Two pairs, each timed for a second: budgets are for loaded machines."""
    monkeypatch.setattr("advisor.proof.builds._MEASURE_S", 1.0)
    monkeypatch.setattr("advisor.proof.builds._MOST_PAIRS", 2)


BUILD = """\
import time
import torch


class Slept(torch.nn.Linear):
    def forward(self, inputs):
        time.sleep({seconds})
        return super().forward(inputs)


def build():
    return Slept(4, 2), torch.randn(3, 4)
"""


def test_the_ratio_of_two_builds_is_that_of_their_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seconds in (("slow", 0.02), ("fast", 0.01)):
        (tmp_path / f"{name}.py").write_text(BUILD.format(seconds=seconds))
    found = advisor.ab("slow.py:build", "fast.py:build", "25s", mode="infer", device="cpu", progress=False)
    assert found.speedup == pytest.approx(2, rel=0.15)
    assert found.ci_low < found.a_step_ms / found.b_step_ms < found.ci_high
    assert found.verdict is Verdict.FASTER
    with pytest.raises(AdvisorError, match=r"gone\.py"):
        advisor.ab("slow.py:build", "gone.py:build", "25s", mode="infer", device="cpu", progress=False)


def test_two_objects_of_one_kind_are_told_apart():
    small, large = (torch.nn.Linear(8, 8), torch.randn(4, 8)), (torch.nn.Linear(2048, 2048), torch.randn(512, 2048))
    found = advisor.ab(small, large, "25s", mode="infer", device="cpu", progress=False)
    assert found.b_step_ms > 5 * found.a_step_ms
