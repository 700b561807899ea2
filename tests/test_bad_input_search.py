"""Sessions on what goes wrong: each ends in time, says what is wrong and what to do, and keeps the best so far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from planted import THREE_PAUSES_TARGET, TINY_TARGET, plant, plant_removers
from real_session import Run

from advisor.errors import ExitCode
from advisor.export.text_report import verdict
from advisor.records import Outcome, Verdict
from advisor.runner import Runner
from advisor.session import events

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
        return x + 0.0 * self.calls
counting = workload.model[1] = Counting()
counting.compile(backend="eager")
def count(*args):
    counting.calls += 1
counting.register_forward_hook(count)
"""
TAKES_MEMORY = """
import torch
if isinstance(workload.model[0], torch.nn.Identity):
    workload.model[2] = torch.empty(2**60, dtype=torch.uint8)
workload.model[1] = torch.nn.Identity()
"""


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERF_ADVISOR_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setenv("OMP_NUM_THREADS", "1")
        Runner.prepare()
        yield


@pytest.fixture
def command(tmp_path):
    """``perf-advisor`` on a target's text, in a process and a folder of its own."""

    def start(text, *arguments):
        (tmp_path / "target.py").write_text(text, encoding="utf-8")
        line = [sys.executable, "-m", "advisor", "target.py", "--headless", "--device", "cpu", *arguments]
        return subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def warnings_of(run):
    return [said.text for said in run.posted(events.Said) if said.severity == "warning"]


def started(run):
    return [event.name for event in run.posted(events.TrialStarted)]


def planted(folder, text, recipes, **options):
    """A session with a recipe that helps, `first`, beside the given ones."""
    plant_removers(folder / "recipes", first="EXACT")
    for recipe_id, apply in recipes.items():
        plant(folder / "recipes", recipe_id, apply=apply, stage="OPTIMIZER")
    return Run(folder, text, only=("first", *recipes), recipe_folders=(str(folder / "recipes"),), **options)


def keeps_the_best(run):
    """Whether the session ended well, in time, with what helps confirmed."""
    assert run.session.exit_code == ExitCode.OK, run.posted(events.SessionFailed)
    assert run.state.stack_settings == {"planted.first": True}
    assert run.state.stack.confirmed
    return run.state.finished.session_s <= LATE * run.request.budget_s


# --- time -----------------------------------------------------------------------------------------------------


def test_a_budget_of_a_second_measures_the_baseline_and_says_what_else_needs(command):
    process = command(TINY_TARGET, "--budget", "1s", "--only", "zero_grad,threads")
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.OK, err
    assert "No candidate was tried" in out
    assert "raise --budget" in out
    assert "Baseline" in out


SLOW_TO_BUILD = TINY_TARGET.replace("torch.manual_seed(0)", "import time; time.sleep(6); torch.manual_seed(0)")


def test_a_target_that_takes_longer_to_build_than_the_budget_is_built_once(tmp_path):
    run = Run(tmp_path, SLOW_TO_BUILD, only=("zero_grad",), budget_s=3.0).run()
    assert run.session.exit_code == ExitCode.OK
    assert started(run) == ["baseline"]
    (record,) = [record for record in run.state.trials.values() if record.candidate.recipe == "zero_grad"]
    assert record.verdict is Verdict.SKIPPED
    assert "raise --budget" in record.result.reason


def test_a_recipe_that_hangs_takes_no_more_than_its_part(tmp_path):
    run = planted(tmp_path, THREE_PAUSES_TARGET, {"hanging": HANGS}, budget_s=150.0).run()
    assert keeps_the_best(run)
    result = run.state.trials["hanging=true"].result
    assert result.outcome is Outcome.TIMED_OUT
    assert result.reason.endswith("s (applying the settings)")
    assert result.wall_s < 0.5 * run.request.budget_s
    assert "in apply" in result.details


def test_compiling_at_each_step_is_noted(tmp_path):
    run = planted(tmp_path, THREE_PAUSES_TARGET, {"compiling": COMPILES_AT_EACH_STEP}, budget_s=120.0).run()
    assert keeps_the_best(run)
    notes = " ".join(run.state.trials["compiling=true"].result.notes)
    assert "recompiled" in notes or "gave up" in notes
