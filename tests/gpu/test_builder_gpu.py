"""Trials that are forked from a process which has built the target once, with CUDA in each of them."""

import subprocess
import sys

import pytest

from advisor.records import Mode, TargetSpec, TrialSpec
from advisor.runner.trials import Runner

pytestmark = pytest.mark.gpu

SOON_S = 120.0
# Asks for a GPU while it is imported, as many programs do, and says how often it is built.
ASKS = """
import pathlib
import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

def build():
    with (pathlib.Path(__file__).parent / "builds").open("a") as builds:
        builds.write("built ")
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), (torch.randn(32, 64), torch.randn(32, 8))
"""


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target.py").write_text(ASKS, encoding="utf-8")
    return TargetSpec("target.py", str(tmp_path), mode=Mode.TRAIN, device="cuda")


def test_the_target_is_built_once_though_the_compiler_is_imported_beside_a_trial(target, tmp_path):
    Runner.prepare()
    runner = Runner()
    problem = runner.build_once(target, 0, str(tmp_path / "build.log"), SOON_S)
    assert not problem
    for name, settings in [("first", {}), ("second", {}), ("compiled", {"compile.mode": "default"})]:
        spec = TrialSpec(name, target, settings, 0.2, 0.3, SOON_S, str(tmp_path / "trial.log"))
        result = runner.run(spec, lambda message: None)
        assert result.measured, (name, result.reason)
        assert runner._builder.serves(spec), name
    runner.forget_build()
    assert (tmp_path / "builds").read_text() == "built "


FORKS = """
import os, torch
from advisor.trial import builder
builder._import_compiler()
spoiled = torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    os._exit(int(torch.ones(2, device="cuda").sum().item() != 2))
raise SystemExit(spoiled or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_imports_the_compiler_can_still_fork_for_cuda():
    """In a process of its own: this one has used CUDA, and no fork of it can."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# Takes more than half of the GPU's memory in its first step, and keeps it.
FILLS = """
import torch
from torch import nn

class Fills(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.held = nn.Linear(64, 8), None

    def forward(self, x):
        if self.held is None:
            total = torch.cuda.get_device_properties(x.device).total_memory
            self.held = torch.empty(int(0.6 * total), dtype=torch.uint8, device=x.device)
        return self.layer(x)

def build():
    return Fills(), (torch.randn(32, 64), torch.randn(32, 8))
"""


def test_trials_that_fill_more_than_half_of_the_memory_follow_one_another_at_once(tmp_path):
    (tmp_path / "target.py").write_text(FILLS, encoding="utf-8")
    target = TargetSpec("target.py", str(tmp_path), mode=Mode.TRAIN, device="cuda")
    Runner.prepare()
    runner = Runner()
    assert not runner.build_once(target, 0, str(tmp_path / "build.log"), SOON_S)
    for number, environment in enumerate([{}, {}, {}, {}, {"A_VARIABLE": "1"}]):
        spec = TrialSpec("t", target, {}, 0.1, 0.1, SOON_S, str(tmp_path / "trial.log"), environment=environment)
        result = runner.run(spec, lambda message: None)
        assert result.measured, (number, result.reason)
    runner.forget_build()


ENCODER = """
import pathlib
import pandas  # starts an idle thread, as datasets and graph libraries do by importing it
import torch
from transformers import BertConfig, BertForSequenceClassification

def build():
    with (pathlib.Path(__file__).parent / "builds").open("a") as builds:
        builds.write("built ")
    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=99)
    batch = {"input_ids": torch.randint(99, (8, 16)), "labels": torch.randint(2, (8,))}
    return {"model": BertForSequenceClassification(config), "data": batch, "mode": "train"}
"""


def test_a_hugging_face_encoder_is_built_once_for_its_trials(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("pandas")
    (tmp_path / "target.py").write_text(ENCODER, encoding="utf-8")
    target = TargetSpec("target.py", str(tmp_path), mode=Mode.TRAIN, device="cuda")
    Runner.prepare()
    runner = Runner()
    try:
        assert not runner.build_once(target, 0, str(tmp_path / "build.log"), SOON_S)
        for name, settings in [("plain", {}), ("bfloat16", {"precision.autocast": "bfloat16"})]:
            spec = TrialSpec(name, target, settings, 0.2, 0.3, SOON_S, str(tmp_path / "trial.log"))
            result = runner.run(spec, lambda message: None)
            assert result.measured, (name, result.reason)
            assert runner._builder.serves(spec), name
    finally:
        runner.forget_build()
    assert (tmp_path / "builds").read_text() == "built "


ASKS_WHAT_IT_CAN_DO = """
import torch
from torch import nn

HALF = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16

def build():
    return nn.Linear(16, 4), (torch.randn(8, 16), torch.randint(4, (8,))), nn.CrossEntropyLoss()
"""


def test_where_building_uses_cuda_each_trial_builds(tmp_path):
    (tmp_path / "target.py").write_text(ASKS_WHAT_IT_CAN_DO, encoding="utf-8")
    target = TargetSpec("target.py", str(tmp_path), mode=Mode.TRAIN, device="cuda")
    Runner.prepare()
    runner = Runner()
    try:
        problem = runner.build_once(target, 0, str(tmp_path / "build.log"), SOON_S)
        assert "uses CUDA" in problem
        spec = TrialSpec("plain", target, {}, 0.2, 0.3, SOON_S, str(tmp_path / "trial.log"))
        assert runner.run(spec, lambda message: None).measured
    finally:
        runner.forget_build()
