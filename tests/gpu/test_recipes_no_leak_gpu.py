"""A trial on a GPU leaves nothing to the next one: a baseline after a trial of every recipe is the one before them."""

from __future__ import annotations

import pytest
import test_recipes_no_leak as on_cpu
import torch
from proposals import CATALOG

pytestmark = pytest.mark.gpu
OF_CUDA = {
    "allocator": "expandable_segments",
    "create_on_device": True,
    "cudnn_benchmark": True,
    "empty_cache": "every_step",
    "gpu_prefetch": True,
    "host_sync": "as_written",
    "loss_sync": "every_step",
    "non_blocking": True,
    "pad_dims": 8,
    "pin_memory": True,
    "reduced_reduction": False,
    "step_graph": True,
    "tf32": "high",
}
TRAINING = {id_: value for id_, value in on_cpu.TRAINING.items() if "cuda" in CATALOG[id_].devices} | OF_CUDA
# What needs another package, transforms in the dataset, or is expensive like the one that is tried.
NOT_TRIED = {"compile", "compile_dynamic", "compile_optimizer", "float8", "fuse_pointwise", "gpu_transforms"}
NOT_TRIED |= {"combo_kernels", "compile_autotune", "int8_weights", "large_batch_optimizer"}


@pytest.fixture
def trial(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms ask for it
    return on_cpu.trials_in(tmp_path, f"cuda:{torch.cuda.current_device()}")


def test_each_recipe_of_a_gpu_is_tried():
    of_cuda = {recipe.id for recipe in CATALOG if "cuda" in recipe.devices}
    assert {*TRAINING, *on_cpu.OF_WORKERS, *on_cpu.INFERENCE} | NOT_TRIED == of_cuda


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("values", "mode", "workers"),
    [(TRAINING, "train", 0), (on_cpu.OF_WORKERS, "train", 1), (on_cpu.INFERENCE, "infer", 0)],
    ids=["training", "training with workers", "inference"],
)
def test_a_baseline_after_all_trials_is_the_one_before(trial, values, mode, workers):
    before, state_before = trial({}, mode=mode, workers=workers)
    for recipe_id, value in values.items():
        recipe = CATALOG[recipe_id]
        _, state = trial({recipe.key: value}, mode=mode, workers=workers)
        if not recipe.environment(value):
            assert state == state_before, f"{recipe_id} begins with what another trial left"
    after, state_after = trial({}, mode=mode, workers=workers)
    assert state_after == state_before
    # Atomic additions on the device have no order, so that even the same trial again may differ in the last bits.
    assert after.losses == pytest.approx(before.losses, rel=1e-4)
    assert after.outputs == pytest.approx(before.outputs, rel=1e-4, abs=1e-5)
