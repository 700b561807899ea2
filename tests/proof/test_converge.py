"""`perf-advisor converge`: real trainings with settings that learn as well, and with some that do not."""

import json

import pytest

from advisor.cli.grammar import parse
from advisor.errors import ExitCode, UsageError
from advisor.runner.trials import Runner

pytestmark = pytest.mark.process

TARGET = """\
import torch
from torch import nn


def build():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 32, generator=generator)
    targets = (inputs @ torch.randn(32, 10, generator=generator)).argmax(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, (inputs, targets), nn.CrossEntropyLoss(), lambda p: torch.optim.Adam(p, lr=2e-4)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(TARGET)
    (tmp_path / "autocast.yaml").write_text("precision.autocast: bfloat16\n")
    (tmp_path / "weights.yaml").write_text("precision.weights: bfloat16\n")
    Runner.prepare()
    return tmp_path


def test_weights_whose_small_updates_are_lost_are_told_from_autocast(folder, capsys):
    options = ["m.py:build", "--steps", "150", "--seeds", "1"]
    assert parse(["converge", "autocast.yaml", *options])() == ExitCode.OK
    assert "learns as well" in capsys.readouterr().out
    assert parse(["converge", "weights.yaml", *options, "--json"])() == ExitCode.NOT_WORTH_IT
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "learns worse"
    assert len(found["plain"][0]) == len(found["tuned"][0]) == 150
    assert found["difference"] > found["chance"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [(["autocast.yaml", "m.py:build", "--mode", "infer"], "training"), (["none.yaml", "m.py:build"], "none.yaml")],
)
def test_mistakes_are_told_before_anything_runs(folder, words, said):
    with pytest.raises(UsageError, match=said):
        parse(["converge", *words])()
