"""`perf-advisor ab` of a loop and its captured form, whose last batch of each epoch is smaller and runs eagerly."""

import sys

import pytest

from advisor.proof.commands import compare
from advisor.records import Verdict

pytestmark = pytest.mark.gpu

LOOP = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(32)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
whole, rest = torch.randn(32, 64, device="cuda"), torch.randn(7, 64, device="cuda")

def train_step(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()

"""
PLAIN = "replay = lambda: train_step(whole)\n"
CAPTURED = """\
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        train_step(whole)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train_step(whole)
replay = graph.replay
"""
EPOCHS = """\
while True:
    for _ in range(200):
        replay()
    train_step(rest)
"""


def test_replayed_steps_count_beside_the_eager_ones(tmp_path, monkeypatch):
    for name, form in (("plain.py", PLAIN), ("captured.py", CAPTURED)):
        (tmp_path / name).write_text(LOOP + form + EPOCHS)
    monkeypatch.chdir(tmp_path)
    plain, captured = (f"{sys.executable} {name}" for name in ("plain.py", "captured.py"))
    found = compare(plain, captured, 90.0, tmp_path / "runs", lambda text: None)
    assert found.comparison.verdict is Verdict.FASTER
    assert found.comparison.ci_low > 3
