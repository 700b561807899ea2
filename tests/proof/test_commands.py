"""`perf-advisor ab`: two commands in turn, each a real program that trains."""

import json
import sys

import psutil
import pytest

from advisor.cli.grammar import parse
from advisor.errors import ExitCode, TargetError, UsageError
from advisor.proof import commands
from advisor.proof.commands import CommandRun, Compared, Side, as_json, as_text, compare, run
from advisor.records import Block, Comparison, Verdict

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch):
    """Each is timed for a second: budgets are for loaded machines."""
    monkeypatch.setattr(commands, "_TIMED_S", 1.0)


LOOP = """\
import os, time, torch
torch.manual_seed({seed})
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("its process is", os.getpid(), flush=True)
for step in range({steps}):
    time.sleep({sleep_s})
    loss = model(torch.ones(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def program(folder, name, *, sleep_s=0.01, steps=10**6, seed=0):
    """The command that runs a loop whose steps take about so long."""
    (folder / name).write_text(LOOP.format(sleep_s=sleep_s, steps=steps, seed=seed))
    return f"{sys.executable} {name}"


def test_the_ratio_of_two_programs_is_that_of_their_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_MOST_PAIRS", 1)
    slow, fast = program(tmp_path, "slow.py", sleep_s=0.04), program(tmp_path, "fast.py", sleep_s=0.02)
    assert parse(["ab", slow, fast, "--budget", "100s", "--json", "--min-speedup", "4"])() == ExitCode.NOT_WORTH_IT
    found = json.loads(capsys.readouterr().out)
    assert found["a"]["step_ms"] > 40
    assert found["ci_low"] < found["a"]["step_ms"] / found["b"]["step_ms"] < found["ci_high"]
    assert found["speedup"] == pytest.approx(2, rel=0.15)
    assert found["losses"] == "same"
    assert len(found["a"]["first_losses"]) >= 10
    assert found["a"]["peak_bytes"] > 2**20


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (((1.0, 0.5),) * 2, ((1.0, 0.5),) * 2, "same"),
        (((1.0, 0.5),) * 2, ((1.0, 0.501),) * 2, "close"),
        (((1.0, 0.5),) * 2, ((1.0, 0.7),) * 2, "different"),
        (((1.0, 0.5), (1.0, 0.7)), ((1.0, 0.6),) * 2, "varying"),  # each run has another seed
        (((),) * 2, ((1.0,),) * 2, ""),
    ],
)
def test_losses_are_compared_but_for_seeds_that_vary(a, b, said):
    sides = (Side("", tuple(CommandRun((), 1.0, 0, losses) for losses in runs)) for runs in (a, b))
    assert commands._losses(*sides) == said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{sys.executable} -c 'print(40 + 2)'", "made no optimizer step"),
        (f"{sys.executable} -c 'input()'", "exit code 1"),
        ("sleep 60", "within 2 s"),
        (f"{sys.executable} few.py", "too few optimizer steps"),
        ("there-is-no-such-program", "exit code 127"),
    ],
)
def test_a_command_without_a_training_loop_is_said_with_the_end_of_its_output(tmp_path, monkeypatch, command, said):
    monkeypatch.chdir(tmp_path)
    program(tmp_path, "few.py", steps=3)
    with pytest.raises(TargetError, match=said) as raised:
        run("A", command, tmp_path / "run", within_s=2.0 if "sleep" in command else 60.0)
    assert raised.value.hint
    assert "42" in raised.value.details or "print" not in command


def test_an_optimizer_for_each_parameter_makes_one_step_and_nothing_is_left_of_a_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = LOOP.format(sleep_s=0.02, steps=10**6, seed=0).replace(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "every = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(12)]\noptimizer = every[0]",
    )
    (tmp_path / "train.py").write_text(f"{loop}    for one in every[1:]:\n        one.step()\n")
    command = f"sleep 98.76 & {sys.executable} train.py"
    assert run("A", command, tmp_path / "run", within_s=60.0).step_ms > 20
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "sleep 98.76" in line]
    said = (tmp_path / "run" / "output.log").read_text().split()[-1]
    assert not psutil.pid_exists(int(said))


def test_pairs_that_are_whole_count_where_a_later_run_fails(tmp_path, monkeypatch):
    def made_up(side, command, folder, *, within_s):
        if folder.name == "B2":
            raise TargetError("it failed.", "Mend it.")
        return CommandRun((Block(1, 1, 0.1),), 1.0, 0, ())

    monkeypatch.setattr(commands, "run", made_up)
    found = compare("a", "b", 200.0, tmp_path, lambda text: None)
    assert len(found.a.runs) == len(found.b.runs) == 1


@pytest.mark.parametrize(
    ("foreign", "runs", "interval", "verdict"),
    [
        (1.6, 1, (1.56, 1.17, 2.09), Verdict.UNCLEAR),
        (1.6, 2, (1.56, 1.17, 2.09), Verdict.FASTER),
        (1.6, 2, (1.08, 1.02, 1.15), Verdict.UNCLEAR),
        (1.6, 2, (0.73, 0.55, 0.89), Verdict.SLOWER),
        (0.2, 1, (1.08, 1.02, 1.15), Verdict.FASTER),
    ],
)
def test_where_other_programs_keep_the_cores_busy_two_runs_of_each_and_a_tenth_decide(
    foreign, runs, interval, verdict, monkeypatch
):
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    side = Side("python train.py", (CommandRun((Block(1, 1, 0.1),), 1.0, 0, ()),) * runs)
    found = Compared(side, side, Comparison(*interval), "same", 60.0, foreign)
    assert found.verdict is verdict
    assert ("other programs" in as_text(found)) is (verdict is Verdict.UNCLEAR)
    assert as_json(found, 1.0)["foreign_cores"] == pytest.approx(foreign)


def test_the_number_of_commands_is_checked():
    with pytest.raises(UsageError, match="two commands"):
        parse(["ab", "python train.py"])()
