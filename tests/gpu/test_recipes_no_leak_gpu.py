"""A trial on a GPU leaves nothing to the next one: a baseline after a trial of every recipe is the one before them."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "experiment" / "process"))

import test_recipes_no_leak as on_cpu

from advisor.records import Mode

pytestmark = pytest.mark.gpu


@pytest.fixture
def trial(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms ask for it
    return on_cpu.trials_in(tmp_path, f"cuda:{torch.cuda.current_device()}")


def are_close(before, after):
    """Atomic additions on the device have no order, so that the same trial again may differ in the last bits."""
    assert after.losses == pytest.approx(before.losses, rel=1e-4)
    assert after.outputs == pytest.approx(before.outputs, rel=1e-4, abs=1e-5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["training", "training with workers", "inference"])
def test_a_baseline_after_all_trials_is_the_one_before(trial, kind):
    mode, workers = Mode.INFER if kind == "inference" else Mode.TRAIN, on_cpu.WORKERS.get(kind, 0)
    for _ in on_cpu.check_that_nothing_is_left(trial, on_cpu.tried("cuda")[kind], mode, workers, are_close):
        pass
