"""Sessions on what goes wrong: each ends in time, says what is wrong and what to do, and keeps the best so far."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from planted import THREE_PAUSES_TARGET, TINY_TARGET, plant, plant_removers
from real_session import Run

from advisor.errors import ExitCode
from advisor.experiment import events
from advisor.export.text_report import verdict
from advisor.records import Outcome, Verdict

pytestmark = pytest.mark.usefixtures("real_sessions")

LONGEST_S = 300.0  # generous: the machine may be loaded
LATE = 1.1  # a session may overrun its budget by a tenth

HANGS = "import time\ntime.sleep(3600)"
# It hangs where `torch.compile` would: in the first step.
HANGS_COMPILING = """
import time
import torch
class Hanging(torch.nn.Module):
    def forward(self, x):
        time.sleep(3600)
workload.model[1] = Hanging()
"""
COMPILES_AT_EACH_STEP = """
import torch
class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return x + 0.0 * self.calls
counting = Counting()
counting.compile(backend="eager")
workload.model[1] = torch.nn.Sequential(workload.model[1], counting)
"""
TAKES_MEMORY = """
import torch
if isinstance(workload.model[0], torch.nn.Identity):
    workload.model[2] = torch.empty(2**60, dtype=torch.uint8)
workload.model[1] = torch.nn.Identity()
"""


@pytest.fixture
def command(tmp_path):
    """``perf-advisor`` on a target's text, in a process and a folder of its own."""

    def start(text, *arguments):
        (tmp_path / "target.py").write_text(text, encoding="utf-8")
        line = [sys.executable, "-m", "advisor", "target.py", "--headless", "--device", "cpu", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, cwd=tmp_path, text=True, start_new_session=True, **pipes)

    return start


def started(run):
    return [event.name for event in run.posted(events.TrialStarted)]


def planted(folder, recipe_id, apply, *, expensive=False, **options):
    """A session with a recipe that helps, `first`, and this one."""
    plant_removers(folder / "recipes", first="EXACT")
    path = plant(folder / "recipes", recipe_id, apply=apply, stage="OPTIMIZER")
    if expensive:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("    stage =", "    expensive = True\n    stage ="), encoding="utf-8")
    recipes = (str(folder / "recipes"),)
    return Run(folder, THREE_PAUSES_TARGET, only=("first", recipe_id), recipe_folders=recipes, **options)


def keeps_the_best(run):
    """The session ended well and in time, with what helps confirmed."""
    assert run.session.exit_code == ExitCode.OK, run.posted(events.SessionFailed)
    assert run.state.stack_settings == {"planted.first": True}
    assert run.state.stack.confirmed
    assert run.state.finished.session_s <= LATE * run.request.budget_s


# --- time -----------------------------------------------------------------------------------------------------


def test_a_budget_of_a_second_measures_the_baseline_and_says_what_else_needs(command):
    process = command(TINY_TARGET, "--budget", "1s", "--only", "zero_grad,threads")
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.OK, err
    assert "No candidate was tried" in out
    assert "raise --budget" in out
    assert "Baseline" in out
    told = " ".join(out.split())
    assert re.search(r"The budget of \S+ s left no time to try anything: .* give it --budget \d+m or more", told)


SLOW_TO_BUILD = TINY_TARGET.replace("torch.manual_seed(0)", "import time; time.sleep(6); torch.manual_seed(0)")


def test_a_target_that_takes_longer_to_build_than_the_budget_is_built_once(tmp_path):
    run = Run(tmp_path, SLOW_TO_BUILD, only=("zero_grad",), budget_s=3.0).run()
    assert run.session.exit_code == ExitCode.OK
    assert started(run) == ["baseline"]
    assert {record.verdict for record in run.state.trials.values()} == {Verdict.SKIPPED}
    (warning,) = [said.text for said in run.posted(events.Said) if said.severity == "warning"]
    assert "left no time to try anything" in warning


def test_a_recipe_that_hangs_takes_no_more_than_its_part(tmp_path, monkeypatch):
    """Ten times what a trial takes and a few seconds more, which is well below half the budget."""
    monkeypatch.setattr("advisor.experiment.budget._HANGS_AFTER_S", 5.0)
    run = planted(tmp_path, "hanging", HANGS, budget_s=120.0).run()
    keeps_the_best(run)
    result = run.state.trials["hanging=true"].result
    assert result.outcome is Outcome.TIMED_OUT
    assert result.reason.endswith(" s (applying the settings)")
    assert "in apply" in result.details
    assert result.wall_s < 0.4 * run.request.budget_s


def test_a_compilation_that_hangs_leaves_the_time_to_confirm(tmp_path):
    run = planted(tmp_path, "endless", HANGS_COMPILING, expensive=True, budget_s=60.0).run()
    keeps_the_best(run)
    result = run.state.trials["endless=true"].result
    assert result.outcome is Outcome.TIMED_OUT
    assert result.reason.endswith(" s (first steps)")
    assert "in forward" in result.details


def test_compiling_at_each_step_is_noted(tmp_path):
    run = planted(tmp_path, "compiling", COMPILES_AT_EACH_STEP, budget_s=120.0).run()
    keeps_the_best(run)
    notes = "; ".join(run.state.trials["compiling=true"].result.notes)
    assert "the compiler gave up on a function that it had compiled too often" in notes


# --- memory ---------------------------------------------------------------------------------------------------


def test_memory_that_runs_out_in_the_stack_leaves_the_best_so_far(tmp_path):
    run = planted(tmp_path, "greedy", TAKES_MEMORY, budget_s=150.0).run()
    assert run.session.exit_code == ExitCode.OK
    assert run.state.stack.confirmed
    assert len(run.state.stack.settings) == 1
    (left_out,) = {"planted.first", "planted.greedy"} - set(run.state.stack.settings)
    told = run.state.stack.dropped[left_out]
    assert told.startswith("together with the others it fails: can't allocate memory: you tried to allocate")


def test_a_limit_below_the_model_is_told_with_what_to_do(command):
    process = command(TINY_TARGET, "--budget", "20s", "--only", "zero_grad", "--memory-limit", "1MiB")
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.OK, err
    told = " ".join(out.split())
    assert "Nothing that was measured stays within the memory limit of 1.00 MiB: the least was" in told
    assert "raise --memory-limit, or make the batch smaller" in told


# --- models ---------------------------------------------------------------------------------------------------

BUILT_ONCE = TINY_TARGET.replace(
    "torch.manual_seed(0)",
    """from pathlib import Path
    marker = Path(__file__).with_name("built")
    if marker.exists():
        raise RuntimeError("the port is taken")
    marker.touch()
    torch.manual_seed(0)""",
)
PRINTS_MUCH = TINY_TARGET.replace("return 1.0 * x", "print('x' * 5_000); return 1.0 * x")
DIVERGES_LATER = TINY_TARGET.replace(
    "return 1.0 * x",
    "self.calls = getattr(self, 'calls', 0) + 1; return (1.0 if self.calls <= 8 else float('nan')) * x",
)


def test_a_model_that_can_be_built_once_only_is_told_by_every_trial(tmp_path):
    run = Run(tmp_path, BUILT_ONCE, only=("zero_grad",), budget_s=40.0).run()
    assert run.session.exit_code == ExitCode.OK
    assert run.state.baseline is not None
    for record in run.state.trials.values():
        assert record.verdict is Verdict.FAILED
        assert "RuntimeError: the port is taken" in record.result.reason
    assert "failed" in verdict(run.state)
    (warning,) = [said.text for said in run.posted(events.Said) if said.severity == "warning"]
    assert warning.startswith("your own settings failed when they were measured again: build in target.py failed")
    assert "let the target be built and run any number of times" in warning
    assert run.state.stack_settings == {}


def test_a_model_that_prints_much_fills_its_logs_alone(command):
    process = command(PRINTS_MUCH, "--budget", "20s", "--only", "zero_grad")
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.OK, err
    assert "xxxx" not in out + err
    assert "baseline: " in err


def test_a_loss_that_is_not_finite_after_the_first_steps_is_told(command):
    process = command(DIVERGES_LATER, "--budget", "1s", "--only", "zero_grad")
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.OK, err
    told = " ".join(out.split())
    assert "the loss was finite in the first 5 steps and is nan after warming up and timing" in told


# --- the person -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wrong", "what_to_do"),
    [
        (("--only", "zero_gard"), "--only: there is no recipe 'zero_gard'.", "Did you mean zero_grad"),
        (("--only", "threads", "--skip", "threads"), "--only and --skip both name threads.", "Leave it out"),
        (("--budget", "0s"), "--budget: '0s' is not a duration.", "Write a positive one such as 90s"),
        (("--memory-limit", "0GiB"), "--memory-limit: '0GiB' is not a size.", "Write a number and its unit"),
    ],
)
def test_what_contradicts_itself_is_refused_in_two_lines(command, arguments, wrong, what_to_do):
    process = command(TINY_TARGET, *arguments)
    out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out) == (ExitCode.USAGE, "")
    first, second = err.splitlines()
    assert first == f"perf-advisor: {wrong}"
    assert second.startswith(what_to_do)


def test_an_interruption_in_the_baseline_says_that_nothing_was_measured_and_how_to_go_on(command, tmp_path):
    hanging = TINY_TARGET.replace("torch.manual_seed(0)", "import time; time.sleep(3600)")
    process = command(hanging, "--json", str(tmp_path / "out.json"))
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "measuring the baseline" in line:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, while the fork server imports torch
    out, rest = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.INTERRUPTED, rest
    assert out == ""
    assert rest.splitlines()[0] == "stopping; what was measured is kept (once more to leave at once)"
    assert rest.splitlines()[-1] == "nothing was measured yet; go on with: perf-advisor --resume"
    assert json.loads((tmp_path / "out.json").read_text())["baseline"] is None
