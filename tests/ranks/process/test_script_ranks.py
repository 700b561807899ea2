"""A script for torchrun in two ranks on the CPU (gloo): what is measured, and what becomes of its errors."""

import json
import textwrap
import time

import forked_ranks
import pytest
from real_session import short_trials
from trial_processes import spec_of

from advisor.cli import main as cli
from advisor.records import Inspected, Outcome, TrialKind, World
from advisor.runner.trials import Runner

pytestmark = pytest.mark.process

# In the form of PyTorch's tutorial on training over several GPUs with torchrun.
TRAIN = """
    import os
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    BEFORE


    class Trainer:
        def __init__(self, model, loader, optimizer):
            self.rank = int(os.environ["RANK"])
            self.model = DDP(model)
            self.loader = loader
            self.optimizer = optimizer

        def run_batch(self, source, targets):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()

        def run_epoch(self, epoch):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self.run_batch(source, targets)

        def save(self, epoch):
            torch.save({"model": self.model.module.state_dict(), "epoch": epoch}, "snapshot.pt")

        def train(self, epochs):
            for epoch in range(epochs):
                self.run_epoch(epoch)
                if self.rank == 0:
                    self.save(epoch)
                dist.barrier()


    def main():
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        data = TensorDataset(torch.randn(256, 8), torch.arange(256) % 4)
        loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
        Trainer(model, loader, torch.optim.AdamW(model.parameters(), lr=1e-3)).train(2)
        dist.destroy_process_group()


    if __name__ == "__main__":
        main()
"""
RAISES = """
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    updates = 0

    def count(*_):
        global updates
        updates += 1
        if updates > 3 and os.environ["RANK"] == "1":
            raise ValueError("no such sample")

    register_optimizer_step_pre_hook(count)
"""
FOUR = """
    if int(os.environ["WORLD_SIZE"]) != 4:
        raise SystemExit("this recipe is for 4 ranks")
"""
ALONE = """
    class DDP(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.module = model

        def forward(self, inputs):
            return self.module(inputs)

    DistributedSampler = lambda data: type("Own", (torch.utils.data.RandomSampler,), {"set_epoch": print})(data)
    dist.init_process_group = dist.destroy_process_group = dist.barrier = lambda *_: None
"""
SPAWNS = """
    import os
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def main(rank, ranks):
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
        dist.init_process_group("gloo", rank=rank, world_size=ranks)

    if __name__ == "__main__":
        mp.spawn(main, args=(2,), nprocs=2)
"""


def text_of(before=""):
    return textwrap.dedent(TRAIN).replace("BEFORE", textwrap.dedent(before))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the script, with what an earlier training wrote; ranks are forked."""
    monkeypatch.setattr("advisor.runner.trial_process._enter_trial", forked_ranks.enter_trial)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "snapshot.pt").write_text("of the last training")
    monkeypatch.chdir(folder)
    Runner.prepare()
    return folder


@pytest.fixture
def run(folder, tmp_path):
    """Run one trial of a script in two ranks, and check that no file of the script's folder is written."""

    def run_trial(text, settings=None, *, kind=TrialKind.CANDIDATE, messages=None, timeout_s=120.0):
        (folder / "train.py").write_text(text)
        options = {"settings": settings or {}, "timeout_s": timeout_s, "log_path": str(tmp_path / "log")}
        spec = spec_of(folder, "train.py", kind=kind, world=World(2, script=True), **options)
        result = Runner().run(spec, (messages if messages is not None else []).append)
        assert sorted(one.name for one in folder.iterdir()) == ["snapshot.pt", "train.py"]
        assert (folder / "snapshot.pt").read_text() == "of the last training"
        return result

    return run_trial


def test_rank_0_measures_the_steps_of_all_ranks(run):
    messages = []
    result = run(text_of(), kind=TrialKind.BASELINE, messages=messages)
    assert result.outcome is Outcome.MEASURED, result
    (facts,) = [message.workload for message in messages if isinstance(message, Inspected)]
    assert facts.own_step
    assert (facts.ranks, facts.spread_already) == (2, "the model is wrapped in DistributedDataParallel already")
    assert {block.samples / block.steps for block in result.blocks} == {16}
    assert result.batch_size == 16
    assert any("2 ranks (gloo)" in note for note in result.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (text_of(RAISES), "rank 1: ValueError: no such sample"),
        (text_of(FOUR), "this recipe is for 4 ranks"),
        (textwrap.dedent(SPAWNS), "trains in processes of its own"),
    ],
    ids=["one raises", "for another number", "spawns"],
)
def test_the_error_of_a_rank_is_the_reason_at_once(run, text, words):
    began = time.monotonic()
    result = run(text)
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith("rank ")
    assert words in result.reason
    assert result.hint
    assert time.monotonic() - began < 60


def test_a_session_ends_where_the_ranks_of_a_script_train_apart(folder, capsys):
    (folder / "train.py").write_text(text_of(ALONE))
    command = ["train.py", "--gpus", "2", "--device", "cpu", "--budget", "60s", "--only", "parallel_strategy"]
    with short_trials():
        code = cli.main([*command, "--headless"])
    told = capsys.readouterr().err
    assert code != 0
    assert "train.py train apart: no process group joins them" in told
    assert "Leave --gpus out" in told


SLOW_STEPS = """
    import time
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def wait(optimizer, *_):
        time.sleep(0.0 if optimizer.param_groups[0]["fused"] else 0.05)

    register_optimizer_step_pre_hook(wait)
"""


def test_a_session_finds_settings_in_ranks_and_writes_them_into_the_script(folder, capsys):
    text = text_of(SLOW_STEPS)
    (folder / "train.py").write_text(text)
    command = ["train.py", "--gpus", "2", "--device", "cpu", "--budget", "25s", "--only", "fused_optimizer"]
    with short_trials():
        code = cli.main([*command, "--json", "found.json", "--export", "train.tuned.py", "--headless"])
    told = capsys.readouterr().err
    assert code == 0, told
    found = json.loads((folder / "found.json").read_text())
    assert found["stack"]["settings"] == {"optimizer.implementation": "fused"}, told
    assert found["stack"]["speedup"] > 2
    assert found["parallel"] is None
    assert "measured in 2 ranks (gloo)" in told
    changed = {*(folder / "train.tuned.py").read_text().splitlines()} - {*text.splitlines()}
    assert len(changed) == 1
    assert "lr=1e-3, fused=True)" in changed.pop()
    assert (folder / "snapshot.pt").read_text() == "of the last training"
