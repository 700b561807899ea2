"""An export verified on a GPU: a captured step in a plain loop beside the same loop without it."""

from dataclasses import replace

import pytest
from sample_session import sample_history

from advisor.experiment.measuring.verification import verify
from advisor.experiment.state import SessionState
from advisor.records import Exported, TargetSpec, TrialSpec
from advisor.runner.trials import Runner

pytestmark = pytest.mark.gpu

TARGET = """
import torch

def build():
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    batch = (torch.randn(32, 64), torch.randn(32, 64))
    return model, batch, torch.nn.MSELoss(), torch.optim.AdamW(model.parameters())
"""


class OneBench:
    """What verifying needs of a bench: specs, and a real runner."""

    def __init__(self, target, folder):
        self.runner = Runner()
        self.target, self.folder = target, folder

    def spec(self, name, settings, *, kind):
        return TrialSpec(name, self.target, dict(settings), 1, 1, 1, str(self.folder / "log"), kind=kind)


def test_a_captured_step_is_verified_to_be_faster(tmp_path):
    (tmp_path / "target.py").write_text(TARGET)
    settings = {"step.cuda_graph": True, "optimizer.implementation": "fused"}
    exported = tmp_path / "tuned.yaml"
    exported.write_text("".join(f"{key}: {str(value).lower()}\n" for key, value in settings.items()))
    stack = replace(SessionState.of(sample_history()).stack, settings=settings)
    Runner.prepare()
    found = verify(OneBench(TargetSpec("target.py:build", str(tmp_path)), tmp_path), Exported(str(exported)), stack)
    assert not found.problem
    assert found.speedup > 1.5
    assert found.tuned_step_ms < found.plain_step_ms
