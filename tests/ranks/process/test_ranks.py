"""Trials over two ranks on the CPU (gloo), started by torchrun: what they compute, and what becomes of their errors."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import forked_ranks
import psutil
import pytest
import torch
from real_session import short_trials
from trial_processes import spec_of

from advisor.cli import main as cli
from advisor.ranks import launcher
from advisor.records import Activity, Outcome, World
from advisor.runner.trials import Runner

pytestmark = pytest.mark.process

STEPS = 5
TARGET = """
    import os, signal, time
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, behaviour):
            super().__init__()
            self.behaviour, self.calls = behaviour, 0
            self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)))
            self.head, self.spare = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, inputs):
            self.calls += 1
            if self.calls > 2 and os.environ.get("RANK") == "1":
                if self.behaviour == "raises":
                    raise ValueError("no such sample")
                if self.behaviour == "hangs":
                    time.sleep(600)
                if self.behaviour == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.behaviour == "dies late":
                    time.sleep(0.5)
                    os.kill(os.getpid(), signal.SIGKILL)
            if self.calls > 2 and self.behaviour == "dies late":
                raise RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
            output = self.head(self.blocks(inputs))
            return output if self.behaviour == "skips" else output + self.spare(inputs)

    def made(behaviour):
        model = Net(behaviour)
        if behaviour == "differs" and os.environ.get("RANK") == "1":
            model.head = nn.Linear(8, 4)
        generator = torch.Generator().manual_seed(3)
        batch = torch.randn(16, 8, generator=generator), torch.arange(16) % 3
        return model, batch, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)

    class Lengths(torch.utils.data.Dataset):
        # The first half of each batch of eight is four times as long as the second.
        lengths = [4, 4, 4, 4, 1, 1, 1, 1] * 4

        def __len__(self):
            return len(self.lengths)

        def __getitem__(self, place):
            return torch.randn(8), place % 3, self.lengths[place]

    class Takes(nn.Module):
        def __init__(self):  # a step of this rank takes 4 ms for each unit of length
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, batch):
            time.sleep(0.004 * int(batch[2].sum()))
            return nn.functional.cross_entropy(self.head(batch[0]), batch[1])

    def uneven():
        model = Takes()
        loader = torch.utils.data.DataLoader(Lengths(), batch_size=8)
        return model, loader, lambda model, batch: model(batch), torch.optim.SGD(model.parameters(), lr=0.1)

    def group():
        torch.distributed.init_process_group("gloo")
        return made("")
"""
BEHAVIOURS = ("plain", "raises", "hangs", "dies", "dies late", "differs", "skips")


@pytest.fixture
def run(tmp_path):
    functions = "\n".join(f"def {name.replace(' ', '_')}():\n    return made({name!r})\n" for name in BEHAVIOURS)
    (tmp_path / "target.py").write_text(textwrap.dedent(TARGET) + functions)
    Runner.prepare()

    def run_trial(name, settings, *, timeout_s=120, world=None, runner=None, listen=lambda message: None, beside=None):
        options = {"settings": settings, "timeout_s": timeout_s, "world": world or World(2)}
        spec = spec_of(tmp_path, f"target.py:{name}", trial_id=name, **options)
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        result = (runner or Runner()).run(spec, listen)
        _, alive = psutil.wait_procs(_others(before, beside), timeout=5)
        assert alive == []
        return result

    return run_trial


@pytest.fixture
def ranks_are_forked(monkeypatch):
    """For what ranks compute and what their launcher says: that torchrun starts them is shown by other tests."""
    monkeypatch.setattr("advisor.runner.trial_process._enter_trial", forked_ranks.enter_trial)


def _others(before, beside):
    """The processes that a trial left behind; those below ``beside`` are another machine's."""
    theirs = psutil.Process(beside).children(recursive=True) if beside else []
    return [one for one in psutil.Process().children(recursive=True) if one.pid not in before and one not in theirs]


def losses_of_one_process(*, accumulate=1):
    torch.manual_seed(0)
    names = {}
    exec(textwrap.dedent(TARGET), names)
    model, (inputs, targets), loss, optimizer = names["made"]("plain")
    found = []
    for step in range(STEPS):
        value = loss(model(inputs), targets)
        (value / accumulate).backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        found.append(value.item())
    return found


DDP, SHARDED = {"parallel.strategy": "ddp"}, {"parallel.strategy": "fully_shard"}
NO_SYNC = {**DDP, "parallel.no_sync": True, "step.accumulate": 2}


@pytest.mark.parametrize("settings", [DDP, SHARDED, NO_SYNC], ids=["ddp", "fully_shard", "no_sync"])
@pytest.mark.usefixtures("ranks_are_forked")
def test_two_ranks_compute_what_one_process_does(run, settings):
    result = run("plain", settings)
    assert result.outcome is Outcome.MEASURED, result
    accumulate = settings.get("step.accumulate", 1)
    assert result.losses == pytest.approx(losses_of_one_process(accumulate=accumulate), rel=1e-5)
    ranks = result.ranks
    assert (ranks.global_batch, ranks.batch_per_rank, len(ranks.peak_reserved_bytes)) == (16, 8, 2)
    assert all(block.samples == 16 * block.steps for block in result.blocks)
    if settings is DDP:
        assert 0 <= ranks.straggler_share <= 1


@pytest.mark.parametrize(
    ("name", "ranks", "words"),
    [
        ("differs", 2, "rank 1: RuntimeError: [1]: params[4] in this process"),
        ("raises", 2, "rank 1: ValueError: no such sample"),
        ("group", 2, "the target starts a process group itself"),
        ("skips", 2, "parameters got no gradient"),
        ("plain", 3, "a batch of 16 cannot be divided among 3 GPUs"),
    ],
)
@pytest.mark.usefixtures("ranks_are_forked")
def test_the_first_error_of_a_rank_is_the_reason(run, name, ranks, words):
    result = run(name, {"parallel.strategy": "ddp"}, world=World(ranks))
    assert result.outcome is Outcome.FAILED, result
    assert words in result.reason
    assert result.hint


@pytest.mark.usefixtures("ranks_are_forked")
def test_with_a_larger_batch_each_rank_gets_as_much_as_one_process_had(run):
    result = run("plain", {**DDP, "data.batch_size": 32})
    assert result.outcome is Outcome.MEASURED, result
    assert (result.ranks.global_batch, result.ranks.batch_per_rank) == (32, 16)


@pytest.mark.parametrize("name", ["dies", "dies_late"])
def test_torchrun_ends_the_others_and_the_end_of_a_rank_is_the_reason(run, name):
    """Also where the other rank notices it first."""
    result = run(name, DDP)
    assert result.outcome is Outcome.CRASHED, result
    assert "rank 1: its process was ended by SIGKILL" in result.reason
    assert result.hint


@pytest.mark.usefixtures("ranks_are_forked")
def test_the_wait_for_the_slowest_is_what_was_planted_and_dealing_by_length_ends_it(run):
    """One rank's parts take 64 ms a step and the other's 16 ms; dealt by length both take 40 ms."""
    drawn, dealt = (
        run("uneven", {"parallel.strategy": "ddp", **more}).ranks for more in ({}, {"parallel.length_bucketing": True})
    )
    assert drawn.straggler_share == pytest.approx(0.75, abs=0.2)
    assert drawn.alone_ms[0] > 2 * drawn.alone_ms[1]
    assert dealt.straggler_share < drawn.straggler_share / 2
    assert dealt.global_batch == drawn.global_batch == 8


@pytest.mark.usefixtures("ranks_are_forked")
def test_where_the_ranks_are_at_the_time_out_is_told(run):
    result = run("hangs", {"parallel.strategy": "ddp"}, timeout_s=12)
    assert result.outcome is Outcome.TIMED_OUT, result
    assert result.reason.startswith("no result after 12 s (")
    assert "rank 0: " in result.details
    assert "in forward" in result.details.partition("rank 1: ")[2]


def test_a_rank_that_has_ended_is_not_asked_where_it_is(tmp_path, monkeypatch):
    """Its id may be that of somebody else's process."""
    monkeypatch.setattr(launcher, "_run_torchrun", lambda *_: time.sleep(600))
    monkeypatch.setattr(launcher, "stack_of", lambda pid, log_path: f'  File "/train.py", line {pid} in build')
    started = launcher.Launcher(spec_of(tmp_path, "target.py", world=World(2)), tmp_path)
    started._ranks = [launcher._Rank(None, 0, 1001), launcher._Rank(None, 1, 1002, ended=True)]
    try:
        details = started.run(None, deadline=0.0).details
        assert ("rank 0: " in details, "line 1001" in details, "1002" in details) == (True, True, False)
    finally:
        started._torchrun.kill()


def test_cancelling_leaves_no_process(run, tmp_path):
    runner = Runner()
    told = []

    def listen(message):
        told.append(message)
        if isinstance(message, Activity) and message.text == "first steps":
            threading.Timer(1.0, runner.cancel).start()

    result = run("hangs", {"parallel.strategy": "ddp"}, runner=runner, listen=listen)
    assert result.outcome is Outcome.CANCELLED
    assert told


def test_another_machine_follows_with_its_ranks(run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = f"127.0.0.1:{free.getsockname()[1]}"
    options = ("--nnodes", "2", "--rdzv-endpoint", meeting, "--rdzv-backend", "c10d")
    with (tmp_path / "follow.log").open("wb") as log:
        follower = subprocess.Popen(
            [sys.executable, "-m", "advisor", "follow", *options], stdout=log, stderr=log, start_new_session=True
        )
        try:
            result = run(
                "plain", {"parallel.strategy": "ddp"}, world=World(1, machines=2, options=options), beside=follower.pid
            )
        finally:
            os.killpg(follower.pid, signal.SIGTERM)
            follower.wait(30)
    assert result.outcome is Outcome.MEASURED, (result, (tmp_path / "follow.log").read_text())
    ranks = result.ranks
    assert (ranks.global_batch, ranks.batch_per_rank, len(ranks.peak_reserved_bytes)) == (16, 8, 2)
    assert result.losses == pytest.approx(losses_of_one_process(), rel=1e-5)


def test_machines_that_do_not_meet_are_told_with_the_port(run):
    """Another program has the port: torchrun takes it for the other machine, and would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meeting = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--nnodes", "2", "--rdzv-endpoint", meeting, "--rdzv-backend", "c10d")
        result = run("plain", {"parallel.strategy": "ddp"}, timeout_s=6, world=World(1, machines=2, options=options))
    assert result.outcome is Outcome.TIMED_OUT
    assert f"the machines did not meet at {meeting}" in result.reason
    assert "perf-advisor follow" in result.hint


@pytest.mark.usefixtures("ranks_are_forked")
def test_a_session_on_two_processes_from_its_command_to_its_report(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["target.py:plain", "--gpus", "2", "--device", "cpu", "--budget", "100s", "--only", "parallel_strategy"]
    with short_trials():
        code = cli.main([*command, "--json", "found.json", "--report", "report.md", "--headless"])
    told = capsys.readouterr().err
    assert code == 0, told
    found = json.loads((tmp_path / "found.json").read_text())["parallel"]
    assert (found["gpus"], found["device_type"]) == (2, "cpu")
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["one GPU"]["speedup"] == 1
    ddp = rows["ddp"]
    assert (ddp["global_batch"], ddp["batch_per_gpu"], len(ddp["peak_reserved_bytes"])) == (16, 8, 2)
    assert ddp["loss_difference"] < 1e-5
    assert ddp["efficiency"] == pytest.approx(ddp["speedup"] / 2)
    assert "## Several GPUs" in (tmp_path / "report.md").read_text()
    assert "2 GPUs, ddp:" in told
