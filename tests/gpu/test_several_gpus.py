"""Two GPUs: the links between them, and exported settings under torchrun (NCCL)."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from advisor.python.file import python_source
from advisor.recipe.catalog import load_catalog
from advisor.records import Outcome, TargetSpec, TrialKind, TrialSpec, World
from advisor.runner.trials import Runner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")]
WORKLOADS = Path(__file__).parent / "workloads"


def measured(folder, target, settings, **options):
    """The result of a trial of a workload."""
    log_path = str(folder / "log")
    spec = TrialSpec("t", TargetSpec(target, str(WORKLOADS)), settings, 0.5, 1.0, 240.0, log_path, **options)
    Runner.prepare()
    return Runner().run(spec, lambda message: None)


def test_two_ranks_are_measured(tmp_path):
    result = measured(tmp_path, "small_resnet18.py:build", {"parallel.strategy": "ddp"}, world=World(2))
    assert result.outcome is Outcome.MEASURED, result
    assert result.ranks.exposed_ms is not None


@pytest.mark.parametrize("kind", [TrialKind.BASELINE, TrialKind.PROFILE])
@pytest.mark.parametrize("script", ["torchrun_ddp.py", "torchrun_fsdp.py"])
@pytest.mark.parametrize("settings", [{}, {"precision.autocast": "bfloat16"}, {"compile.mode": "default"}], ids=str)
def test_a_script_for_torchrun_is_measured_in_two_ranks(script, settings, kind, tmp_path):
    if settings and kind is TrialKind.PROFILE:
        pytest.skip("the baseline alone is profiled")
    result = measured(tmp_path, script, settings, kind=kind, world=World(2, script=True))
    assert result.outcome is Outcome.MEASURED, result
    assert any("2 ranks (nccl)" in note for note in result.notes)
    assert not (WORKLOADS / "snapshot.pt").exists()
    print(script, settings, [block.step_ms for block in result.blocks][:3], result.losses, result.disturbed)


SCRIPT = """
    import sys, time
    import torch
    from torch import distributed, nn
    from torch.utils.data import DataLoader, TensorDataset
    from advisor.step.tuning import Tuning

    def loop():
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)), nn.Linear(512, 10))
        model.to("cuda")  # the first GPU in every process: prepare moves it
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(2048, 512, generator=generator), torch.arange(2048) % 10)
        return model, optimizer, DataLoader(data, batch_size=256, shuffle=True)

    def run(prepare, train_step, captures=False):
        model, optimizer, loader = prepare(*loop())
        step = train_step(model, optimizer, nn.CrossEntropyLoss())
        losses = torch.stack([step(batch) for _ in range(2) for batch in loader])
        assert getattr(step, "captured", False) == captures
        if distributed.is_initialized():
            distributed.all_reduce(losses)
            losses /= distributed.get_world_size()
        return losses.tolist(), str(next(model.parameters()).device)

    if __name__ == "__main__":
        import tuned
        rank, found = int(__import__("os").environ.get("RANK", "0")), {}
        ways = {name: Tuning({"parallel.strategy": name}) for name in ("ddp", "fully_shard")}
        for name, tuning in ways.items():
            found[name], device = run(tuning.prepare, tuning.train_step)
        for options in ({}, {"parallel.gradient_as_bucket_view": True}):
            tuning = Tuning({"parallel.strategy": "ddp", "step.cuda_graph": True, **options})
            found[f"graph {options}"], device = run(tuning.prepare, tuning.train_step, captures=True)
        found["file"], device = run(tuned.prepare, tuned.train_step)
        assert device == f"cuda:{rank}", device
        if rank == 0:
            torch.save(found, sys.argv[1])
        if distributed.is_initialized():
            distributed.destroy_process_group()
"""


def test_exported_settings_train_on_two_gpus_what_one_does(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    settings = {"parallel.strategy": "ddp", "parallel.gradient_as_bucket_view": True}
    (tmp_path / "tuned.py").write_text(python_source(load_catalog(), settings, "train"), encoding="utf-8")
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, launcher in (("one", []), ("two", several)):
        command = [sys.executable, *launcher, "script.py", f"{name}.pt"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[:6000]
    one, two = torch.load(tmp_path / "one.pt"), torch.load(tmp_path / "two.pt")
    for name, losses in two.items():
        assert losses == pytest.approx(one[name], rel=1e-3), name
