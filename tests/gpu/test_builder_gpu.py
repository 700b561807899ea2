"""Trials that are forked from a process which has built the target once, with CUDA in each of them."""

import contextlib

import pytest
from trial_processes import spec_of

from advisor.records import Mode
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
def built(tmp_path):
    """Build a target's text once: why that cannot be, and a function that measures a trial of it."""
    with contextlib.ExitStack() as stack:

        def build(text):
            (tmp_path / "target.py").write_text(text, encoding="utf-8")
            Runner.prepare()
            runner = Runner()
            stack.callback(runner.forget_build)
            gpu = {"mode": Mode.TRAIN, "device": "cuda", "measure_s": 0.2, "warmup_limit_s": 0.3, "timeout_s": SOON_S}

            def measure(name, settings, *, forked=False, **changes):
                spec = spec_of(tmp_path, "target.py", trial_id=name, settings=settings, **gpu, **changes)
                result = runner.run(spec, lambda message: None)
                assert result.measured, (name, result.reason)
                assert not forked or runner._builder.serves(spec), name

            target = spec_of(tmp_path, "target.py", **gpu).target
            return runner.build_once(target, 0, str(tmp_path / "build.log"), SOON_S), measure

        yield build


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


def test_trials_that_fill_more_than_half_of_the_memory_follow_one_another_at_once(built):
    problem, measure = built(FILLS)
    assert not problem
    for number, environment in enumerate([{}, {}, {}, {}, {"A_VARIABLE": "1"}]):
        measure(str(number), {}, environment=environment)


def test_the_target_is_built_once_for_all_its_trials(built, tmp_path):
    """The last one is forked from a process that has imported the compiler beside the one before."""
    problem, measure = built(ASKS)
    assert not problem
    for number, settings in enumerate([{}, *[{"compile.mode": "default"}] * 2]):
        measure(str(number), settings, forked=True)
    assert (tmp_path / "builds").read_text() == "built "


ASKS_WHAT_IT_CAN_DO = """
import torch
from torch import nn

HALF = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
open(__file__ + ".passed", "a").write("once ")

def build():
    return nn.Linear(16, 4), (torch.randn(8, 16), torch.randint(4, (8,))), nn.CrossEntropyLoss()
"""


def test_where_building_uses_cuda_it_ends_and_each_trial_builds(built, tmp_path):
    problem, measure = built(ASKS_WHAT_IT_CAN_DO)
    assert "uses CUDA" in problem
    measure("plain", {})
    assert (tmp_path / "target.py.passed").read_text() == "once "
