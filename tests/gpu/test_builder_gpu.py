"""Trials that are forked from a process which has built the target once, with CUDA in each of them."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from advisor.machine.hardware import device_used_bytes
from advisor.records import Mode, TargetSpec, TrialSpec
from advisor.runner.trials import Runner

pytestmark = pytest.mark.gpu

SOON_S = 120.0
# Asks for a GPU and what it can do while it is imported, as many programs do, and says how often it is built.
ASKS = """
import pathlib
import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
NEW = torch.cuda.get_device_capability() >= (9, 0) or torch.cuda.is_current_stream_capturing()

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


def waiting_with_driver(builder, besides):
    """The builder's fork that has started CUDA's driver and is none of ``besides``, once there is one."""
    until = time.monotonic() + SOON_S
    while time.monotonic() < until:
        for child in psutil.Process(builder.pid).children():
            if child.pid not in besides and "libcuda.so" in Path(f"/proc/{child.pid}/maps").read_text():
                return child.pid
        time.sleep(0.1)
    raise TimeoutError


def test_the_next_trial_has_cudas_driver_before_its_spec_and_takes_nothing_of_the_gpu(target, tmp_path):
    ask = "import torch; print(torch.cuda.get_device_properties(0).uuid)"
    uuid = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    Runner.prepare()
    runner = Runner()
    try:
        assert not runner.build_once(target, 0, str(tmp_path / "build.log"), SOON_S)
        pids, used = [], []
        for _ in range(3):
            pids.append(waiting_with_driver(runner._builder, pids))
            time.sleep(1.0)  # it has started the driver by then, and the trial before has left
            used.append(device_used_bytes(uuid))
            spec = TrialSpec("t", target, {}, 0.2, 0.3, SOON_S, str(tmp_path / "trial.log"))
            with runner.open(spec, lambda message: None) as trial:
                assert trial.pid == pids[-1]
                assert trial.result().measured
    finally:
        runner.forget_build()
    time.sleep(1.0)
    assert max(used) - device_used_bytes(uuid) < 2**24


FORKS = """
import os, torch
from advisor.trial import builder
spoiled = not builder._import_compiler() or torch.cuda.is_initialized()
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


STARTS_THE_DRIVER = """
import ctypes
import torch
from torch import nn

def build():
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # as some libraries do when they are imported; PyTorch does not know
    return nn.Linear(16, 4), (torch.randn(8, 16), torch.randint(4, (8,))), nn.CrossEntropyLoss()
"""


SHOWS_THE_CONFIG = """
import pathlib
import torch
from torch import nn

NO_MKL = "USE_MKL=OFF" in torch.__config__.show()  # as torch_geometric does; this starts the driver

def build():
    with (pathlib.Path(__file__).parent / "builds").open("a") as builds:
        builds.write("built ")
    return nn.Linear(16, 4), (torch.randn(8, 16), torch.randint(4, (8,))), nn.CrossEntropyLoss()
"""


def test_a_target_that_reads_the_configuration_of_pytorch_is_built_once(tmp_path):
    (tmp_path / "target.py").write_text(SHOWS_THE_CONFIG, encoding="utf-8")
    target = TargetSpec("target.py", str(tmp_path), mode=Mode.TRAIN, device="cuda")
    Runner.prepare()
    runner = Runner()
    try:
        assert runner.build_once(target, 0, str(tmp_path / "build.log"), SOON_S) == ""
        for name in ("first", "second"):
            spec = TrialSpec(name, target, {}, 0.2, 0.3, SOON_S, str(tmp_path / "trial.log"))
            assert runner.run(spec, lambda message: None).measured
    finally:
        runner.forget_build()
    assert (tmp_path / "builds").read_text() == "built "


def test_a_driver_that_another_library_started_is_noticed(tmp_path):
    (tmp_path / "target.py").write_text(STARTS_THE_DRIVER, encoding="utf-8")
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
