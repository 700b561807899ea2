"""A trial leaves nothing to the next one: a baseline after a trial of every recipe is the baseline before them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from proposals import CATALOG

from advisor.records import Numerics, Outcome, TargetSpec, TrialSpec
from advisor.runner.trials import Runner

TARGET = """
import json
import sys
import torch
from torch import nn

sys.path.insert(0, TESTS)
from process_state import process_state


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.act(self.linear(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 4)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, images):
        x = self.blocks(self.norm(self.conv(images)).flatten(2).transpose(1, 2))
        return self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


def build():
    print("state", json.dumps(process_state()), flush=True)
    torch.manual_seed(0)
    model = Net()
    data = torch.utils.data.TensorDataset(torch.randn(64, 3, 6, 6), torch.arange(64) % 4)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=WORKERS)
    if MODE == "infer":
        return {"model": model.eval(), "data": loader, "mode": "infer"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {"model": model, "data": loader, "loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "clip_grad": 1.0}
"""
# One value of each recipe that can be tried on the CPU; one that compiles.
TRAINING = {
    "affinity": "physical",
    "autocast": "bfloat16",
    "batch_size": 8,
    "channels_last": "channels_last",
    "checkpointing": "blocks",
    "control": True,
    "conv_bias": False,
    "debug_off": "anomaly",
    "deterministic_off": True,
    "eval_no_grad": "grad",
    "flush_denormal": True,
    "fused_optimizer": "fused",
    "grad_accumulation": 2,
    "grad_clip": "for-loop",
    "half_weights": "bfloat16",
    "host_gc": "scheduled",
    "inplace_activations": True,
    "interop_threads": 1,
    "num_workers": 1,
    "openmp": "bind",
    "optimizer_memory": "adafactor",
    "sdpa": "math",
    "tf32": "medium",
    "threads": 1,
    "zero_grad": "zeros",
}
OF_WORKERS = {"persistent_workers": True, "prefetch": 4, "worker_context": "fork", "worker_threads": 2}
INFERENCE = {"compile_scope": "regional", "fold_norm": True, "inference_mode": "inference_mode"}
# What only another package or library brings, and what is expensive like the one that is tried.
NOT_TRIED = {"compile", "compile_dynamic", "cpu_freeze", "fuse_pointwise"}
NOT_TRIED |= {"host_allocator", "int8_weights", "large_batch_optimizer"}


@pytest.fixture
def trial(tmp_path):
    """Runs a trial: its result, and the state of its process when the target was built."""
    return trials_in(tmp_path)


def trials_in(tmp_path, device="cpu"):
    """A function that runs a trial on a device."""
    Runner.prepare()
    runner = Runner()

    def run(settings, *, mode="train", workers=0):
        text = TARGET.replace("TESTS", repr(str(Path(__file__).parents[1])))
        name = f"target_{mode}_{workers}.py"
        (tmp_path / name).write_text(text.replace("MODE", repr(mode)).replace("WORKERS", str(workers)))
        log = tmp_path / f"{len(list(tmp_path.glob('*.log')))}.log"
        spec = TrialSpec(
            trial_id="t",
            target=TargetSpec(name, str(tmp_path), device=device),
            settings=settings,
            measure_s=0.001,  # nothing here is about the time
            warmup_limit_s=0.05,
            timeout_s=300.0,
            log_path=str(log),
            environment=CATALOG.environment(settings),
        )
        result = runner.run(spec, lambda message: None)
        assert result.outcome is Outcome.MEASURED, f"{settings}: {result.reason}"
        lines = [line for line in log.read_text().splitlines() if line.startswith("state ")]
        return result, json.loads(lines[0].removeprefix("state "))

    return run


def test_each_recipe_of_the_cpu_is_tried():
    of_cpu = {recipe.id for recipe in CATALOG if "cpu" in recipe.devices}
    assert {*TRAINING, *OF_WORKERS, *INFERENCE} | NOT_TRIED == of_cpu


@pytest.mark.parametrize(
    ("values", "mode", "workers"),
    [(TRAINING, "train", 0), (OF_WORKERS, "train", 1), (INFERENCE, "infer", 0)],
    ids=["training", "training with workers", "inference"],
)
def test_a_baseline_after_all_trials_is_the_one_before(trial, values, mode, workers):
    before, state_before = trial({}, mode=mode, workers=workers)
    for recipe_id, value in values.items():
        recipe = CATALOG[recipe_id]
        if recipe.expensive and shutil.which("g++") is None:
            continue
        result, state = trial({recipe.key: value}, mode=mode, workers=workers)
        if not recipe.environment(value):
            assert state == state_before, f"{recipe_id} begins with what another trial left"
        if recipe.numerics_of(value, mode) is Numerics.EXACT:
            assert (result.losses, result.outputs) == (before.losses, before.outputs), recipe_id
    after, state_after = trial({}, mode=mode, workers=workers)
    assert state_after == state_before
    assert (after.losses, after.outputs, after.weights) == (before.losses, before.outputs, before.weights)
