"""What one rank of a trial refuses of its data: a stand-in for the others tells what they have, nothing is sent."""

import math
from types import SimpleNamespace

import pytest

from advisor.errors import TargetError
from advisor.ranks import trial as ranks
from advisor.ranks.trial import RankTrial
from advisor.records import TargetSpec, TrialSpec, World

TARGET = """
import torch
from torch import nn

def build(data):
    model = nn.Linear(8, 3)
    return model, data, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)

BATCH = torch.randn(16, 8), torch.arange(16) % 3

def batch():
    return build(BATCH)

def loader():
    return build(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*BATCH), batch_size=4))
"""


def refused(folder, monkeypatch, name, *, count, others):
    """The error of the first of so many ranks; ``others`` says what the rest have where this one has a value."""
    (folder / "target.py").write_text(TARGET, encoding="utf-8")
    monkeypatch.setattr(ranks, "gathered", lambda own: [own, *[others(own)] * (count - 1)])
    alone = {"init_process_group": lambda *_, **__: None, "get_rank": lambda: 0, "get_world_size": lambda: count}
    monkeypatch.setattr(ranks, "dist", SimpleNamespace(**alone))
    target = TargetSpec(f"target.py:{name}", str(folder), device="cpu")
    spec = TrialSpec("t", target, {"parallel.strategy": "ddp"}, 0.1, 0.2, 60.0, "", world=World(count))
    with pytest.raises(TargetError) as error:
        RankTrial(spec, SimpleNamespace(send=lambda message: None), math.inf).run()
    return str(error.value), error.value.hint


def test_a_batch_that_cannot_be_divided(tmp_path, monkeypatch):
    reason, hint = refused(tmp_path, monkeypatch, "batch", count=3, others=lambda own: own)
    assert "a batch of 16 cannot be divided among 3 GPUs" in reason
    assert "--batch-size" in hint
