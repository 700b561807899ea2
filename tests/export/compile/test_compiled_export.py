"""A tuned model compiled to one file, and what PyTorch compiled for a loop: what they are for, and what they refuse."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from advisor.errors import UsageError
from advisor.experiment.measuring.packaging import package, warm_start
from advisor.experiment.request import Request
from advisor.judging.numerics import distance
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Outcome, TargetSpec, TrialSpec
from advisor.trial.other_loops import packaged_result, verified_result
from advisor.workloads.loop import Loop

CPU = torch.device("cpu")
CATALOG = load_catalog()
SETTINGS = {"model.memory_format": "channels_last", "precision.autocast": "bfloat16", "compile.mode": "default"}
BRANCHES = """
import torch

class Branches(torch.nn.Module):
    def forward(self, x):
        return x.relu() if x.sum() > 0 else x

def build():
    return Branches(), torch.randn(2, 4)
"""

TRAINS = """
import torch

def build():
    model = torch.nn.Sequential(torch.nn.Linear(8, 2, bias=False), torch.nn.Tanh())
    batch = torch.randn(16, 8), torch.arange(16) % 2
    return model, batch, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
"""


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, image, scale):
        return {"logits": self.head(self.conv(image).relu().mean((2, 3))) * scale}


def loop_of() -> Loop:
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader([{"scale": torch.ones(1), "image": torch.randn(3, 9, 9)}] * 6, batch_size=4)
    return Loop(Scaled().eval(), loader, None, None, Mode.INFER, batch_size=4)


def test_a_compiled_file_gives_the_models_outputs_for_batches_as_the_loader_has_them(tmp_path):
    path = str(tmp_path / "model.pt2")
    spec = TrialSpec("t", TargetSpec("x", "."), SETTINGS, 0.05, 1.0, 300.0, "log", export_path=path)
    assert packaged_result(loop_of(), CPU, CATALOG, spec).outcome is Outcome.MEASURED
    plain = verified_result(loop_of(), CPU, CATALOG, replace(spec, settings={}, export_path=""))
    compiled = verified_result(loop_of(), CPU, CATALOG, spec)
    assert {block.samples // block.steps for block in compiled.blocks} == {4}, (
        "the smaller batch of an epoch is left out"
    )
    assert len(plain.outputs) == len(compiled.outputs) == 1 + 4 * 4
    assert 0 < distance(compiled.outputs, plain.outputs) < 0.03, "in bfloat16"


def test_a_model_that_cannot_be_exported_says_why_in_one_line(tmp_path):
    (tmp_path / "target.py").write_text(BRANCHES)
    target = TargetSpec("target.py:build", str(tmp_path), mode=Mode.INFER, device="cpu")
    with pytest.raises(UsageError, match="cannot be compiled to a file: ") as caught:
        package(Request(target), {}, CATALOG)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400
    assert "--export tuned.yaml" in caught.value.hint


LOADS = """
import runpy

import advisor

tuning = advisor.load("tuned.yaml", cache="tuned.cache")
assert tuning.settings == {"compile.mode": "default"}
model, batch, loss, optimizer = runpy.run_path("target.py")["build"]()
tuning.train_step(*tuning.prepare(model, optimizer), loss)(batch)
from torch._dynamo.utils import counters
assert counters["aot_autograd"]["autograd_cache_hit"], counters
assert not counters["aot_autograd"]["autograd_cache_miss"], counters
"""


def test_the_next_start_finds_compiled_what_a_cache_holds(tmp_path, monkeypatch):
    """In an interpreter of its own: the key of what was compiled holds threads and options, which tests change."""
    for name, text in (("target.py", TRAINS), ("loads.py", LOADS), ("tuned.yaml", "compile.mode: default\n")):
        (tmp_path / name).write_text(text)
    target = TargetSpec("target.py:build", str(tmp_path), device="cpu")
    artifacts, cold_s, warm_s = warm_start(Request(target), {"compile.mode": "default"}, CATALOG)
    assert min(cold_s, warm_s) > 0
    (tmp_path / "tuned.cache").write_bytes(artifacts)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "empty"))
    done = subprocess.run([sys.executable, "loads.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(one.is_file() for one in (tmp_path / "empty").rglob("*"))
