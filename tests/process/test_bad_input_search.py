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
from real_session import Run, short_trials

from advisor.errors import ExitCode
from advisor.experiment import events
from advisor.recipe.settings import Settings
from advisor.records import Outcome, Verdict
from advisor.report.verdict import verdict
from advisor.tui.views.advice_text import nothing_helped

pytestmark = pytest.mark.timed

LONGEST_S = 300.0  # generous: the machine may be loaded
SOON_S = 30.0  # the fork server imports torch before it looks at anything else
LATE_S = 2.0  # a session ends that soon after its budget

HANGS = "import time\ntime.sleep(3600)"
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
workload.model[2] = torch.nn.Sequential(workload.model[2], counting)
"""
TAKES_MEMORY = """
import torch
if isinstance(workload.model[0], torch.nn.Identity):
    workload.model[2] = torch.empty(2**60, dtype=torch.uint8)
workload.model[2] = torch.nn.Identity()
"""


@pytest.fixture(scope="module", autouse=True)
def _short_trials(real_sessions):
    with short_trials():
        yield


@pytest.fixture
def command(tmp_path):
    """``perf-advisor`` on a target's text, in a process and a folder of its own."""

    def start(text, *arguments):
        (tmp_path / "target.py").write_text(text, encoding="utf-8")
        line = [sys.executable, "-m", "advisor", "target.py", "--headless", "--device", "cpu", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, cwd=tmp_path, text=True, start_new_session=True, **pipes)

    return start


def planted(folder, recipe_id, apply, *, expensive=False, usual=False, **options):
    """A session with two recipes that an expert would use, `first` and `second`, and this one."""
    plant_removers(folder / "recipes", usual=True, first="EXACT", second="EXACT")
    plant(folder / "recipes", recipe_id, apply=apply, stage="OPTIMIZER", expensive=expensive, usual=usual)
    recipes = (str(folder / "recipes"),)
    return Run(folder, THREE_PAUSES_TARGET, only=("first", "second", recipe_id), recipe_folders=recipes, **options)


BEST = {"planted.first": True, "planted.second": True}


def finds_the_best(event):
    """Matches the stack of what helps."""
    return isinstance(event, events.StackMeasured) and event.record.settings == BEST


def ended_well(run):
    """The session ended well and in time, with what helps in its stack."""
    assert run.session.exit_code == ExitCode.OK, run.posted(events.SessionFailed)
    assert run.state.stack_settings == BEST
    assert run.state.finished.session_s <= run.request.budget_s + LATE_S


def warnings(run):
    """What a session warned of, but for the noise of the machine that runs the tests."""
    said = [event.text for event in run.posted(events.Said) if event.severity == "warning"]
    return [text for text in said if not text.startswith("this machine is noisy")]


# --- the leap -------------------------------------------------------------------------------------------------

RAISES = "raise RuntimeError('no such trick')"
CHANGES = """
import torch
workload.model[3].register_forward_hook(lambda module, inputs, output: 3 * output)
"""
NOT_FINITE = """
import torch
workload.model[3].register_forward_hook(lambda module, inputs, output: output / 0)
"""
# As fast as the others that take a pause out, but for the first step.
SLOW_START = """
import time
import torch
class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.started = False
    def forward(self, x):
        if not self.started:
            time.sleep(1.0)
        self.started = True
        return 1.0 * x
workload.model[2] = Slow()
"""


@pytest.mark.parametrize(
    ("recipe_id", "apply", "told"),
    [
        ("raising", RAISES, "together these fail: {stack}: RuntimeError: no such trick"),
        ("not_finite", NOT_FINITE, "together these fail: {stack}: the loss became nan at step 1 of 5"),
        ("wrong", CHANGES, "together these cannot be used: {stack}: the numerics are changed"),
    ],
)
def test_a_part_of_the_leap_that_fails_is_left_out_and_named(tmp_path, recipe_id, apply, told):
    run = planted(tmp_path, recipe_id, apply, usual=True).run_until(finds_the_best)
    assert not run.posted(events.SessionFailed)
    whole = Settings({**BEST, f"planted.{recipe_id}": True})
    assert run.order[1] == f"stack: {whole}"
    assert f"stack: {Settings(BEST)}" in run.started
    assert any(text.startswith(told.format(stack=whole)) for text in warnings(run)), warnings(run)
    assert run.state.stack_settings == BEST
    assert run.state.stack.comparison.verdict is Verdict.FASTER


def test_when_every_part_of_the_leap_fails_alone_too_that_is_said_plainly(tmp_path):
    for recipe in ("one", "two"):
        plant(tmp_path / "recipes", recipe, apply=RAISES, usual=True)
    recipes = (str(tmp_path / "recipes"),)
    run = Run(tmp_path, THREE_PAUSES_TARGET, only=("one", "two"), recipe_folders=recipes, budget_s=25.0).run()
    assert not run.posted(events.SessionFailed)
    assert [run.state.trials[f"{recipe}=true"].verdict for recipe in ("one", "two")] == [Verdict.FAILED] * 2
    assert run.state.stack.settings == {}
    assert verdict(run.state).startswith("Each of 2 candidates tried for Sequential training")
    assert "failed" in verdict(run.state)


def test_a_first_step_that_is_ten_times_slower_is_a_cost_and_no_fault(tmp_path):
    run = planted(tmp_path, "slow_start", SLOW_START, usual=True)
    run.run_until(lambda event: isinstance(event, events.StackMeasured))
    stack = run.state.stack
    assert stack.settings == {**BEST, "planted.slow_start": True}
    assert stack.comparison.speedup > 5
    assert 10 < stack.break_even_steps < 200  # a second, at 30 ms that each step saves


# --- time -----------------------------------------------------------------------------------------------------


SLOW_TO_BUILD = TINY_TARGET.replace("torch.manual_seed(0)", "import time; time.sleep(4); torch.manual_seed(0)")


def test_a_target_that_takes_longer_to_build_than_the_budget_is_built_once_and_nothing_is_denied(tmp_path):
    run = Run(tmp_path, SLOW_TO_BUILD, only=("zero_grad",), budget_s=3.0).run()
    assert run.session.exit_code == ExitCode.OK
    assert run.order == ["baseline"]
    assert {record.verdict for record in run.state.trials.values()} == {Verdict.SKIPPED}
    (warning,) = warnings(run)
    assert "left no time to try anything" in warning
    for advice in (verdict(run.state), nothing_helped(run.state)):
        assert advice.startswith("No candidate was tried")
        assert "measurably" not in advice


def test_ten_seconds_are_enough_for_the_leap(tmp_path):
    run = planted(tmp_path, "nothing", "pass", budget_s=10.0).run()
    ended_well(run)
    assert run.order[1] == f"stack: {Settings(BEST)}"
    told = "confirmed in turn" if run.state.stack.confirmed else "measured once"
    assert told in verdict(run.state)


def test_a_recipe_that_hangs_takes_no_more_than_its_part(tmp_path, monkeypatch):
    """Some times what a trial takes and a second more, which is well below half the budget."""
    monkeypatch.setattr("advisor.experiment.budget._HANGS_AFTER", 2.0)
    monkeypatch.setattr("advisor.experiment.budget._HANGS_AFTER_S", 1.0)
    run = planted(tmp_path, "hanging", HANGS, budget_s=40.0)
    hung = lambda event: isinstance(event, events.TrialMeasured) and event.record.candidate.recipe == "hanging"  # noqa: E731
    run.run_until(hung)
    assert run.state.stack_settings == BEST
    result = run.state.trials["hanging=true"].result
    assert result.outcome is Outcome.TIMED_OUT
    assert result.reason.endswith(" s (applying the settings)")
    assert "in apply" in result.details
    assert result.wall_s < 0.4 * run.request.budget_s


# It hangs where it is compiled: in the first step.
HANGS_COMPILING = THREE_PAUSES_TARGET.replace(
    "        time.sleep(0.01)", "        time.sleep(3600 if torch.compiler.is_compiling() else 0.01)"
)


@pytest.mark.usefixtures("compilers")
def test_a_compilation_that_hangs_does_not_take_the_time_of_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr("advisor.experiment.budget._COMPILE_S", 0.5)  # it is expected to end long before
    plant_removers(tmp_path / "recipes", usual=True, first="EXACT", second="EXACT")
    recipes = (str(tmp_path / "recipes"),)
    only = ("first", "second", "compile")
    run = Run(tmp_path, HANGS_COMPILING, only=only, recipe_folders=recipes, budget_s=20.0).run()
    ended_well(run)
    compiled = Settings({**BEST, "compile.mode": "default"})
    assert run.started.index(f"stack: {Settings(BEST)}") < run.started.index(f"stack: {compiled}")
    told = [text for text in warnings(run) if text.startswith("there was too little time for these together: ")]
    assert told[0].startswith(f"there was too little time for these together: {compiled}: no result after ")
    assert told[0].endswith(" s (compiling)")
    assert not run.state.trials["compile=default"].result.measured
    assert run.state.stack.settings == BEST, "what was measured before the compilation is kept"


def test_compiling_at_each_step_is_noted(tmp_path):
    run = planted(tmp_path, "compiling", COMPILES_AT_EACH_STEP, budget_s=40.0)
    run.run_until(
        lambda event: isinstance(event, events.TrialMeasured) and event.record.candidate.recipe == "compiling"
    )
    notes = "; ".join(run.state.trials["compiling=true"].result.notes)
    assert "the compiler gave up on a function that it had compiled too often" in notes


# --- memory ---------------------------------------------------------------------------------------------------


def test_memory_that_runs_out_in_the_stack_leaves_the_best_so_far(tmp_path):
    run = planted(tmp_path, "greedy", TAKES_MEMORY, budget_s=40.0)
    run.run_until(lambda event: isinstance(event, events.StackMeasured) and "planted.greedy" in event.record.dropped)
    assert not run.posted(events.SessionFailed)
    assert run.state.trials["greedy=true"].verdict is Verdict.FASTER
    assert run.state.stack.settings == BEST
    told = run.state.stack.dropped["planted.greedy"]
    assert told.startswith("together with the others it fails: can't allocate memory: you tried to allocate")


# --- models ---------------------------------------------------------------------------------------------------

BUILT_ONCE = THREE_PAUSES_TARGET.replace(
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


def test_a_model_that_can_be_built_once_only_is_measured_once_and_that_is_told(tmp_path):
    """Trials are forked from what was built; what takes turns with the baseline has to build for itself."""
    plant_removers(tmp_path / "recipes", usual=True, first="EXACT", second="EXACT")
    recipes = (str(tmp_path / "recipes"),)
    run = Run(tmp_path, BUILT_ONCE, only=("first", "second"), recipe_folders=recipes, budget_s=30.0).run()
    ended_well(run)
    assert not run.state.stack.confirmed
    assert run.started.count("stack, confirmed") == 1
    (warning,) = warnings(run)
    assert warning.startswith("your own settings failed when they were measured again: build in target.py failed")
    assert "RuntimeError: the port is taken" in warning
    assert "let the target be built and run any number of times" in warning


def test_a_second_is_enough_for_the_baseline_and_what_the_model_prints_stays_in_its_logs(command):
    process = command(PRINTS_MUCH, "--budget", "1s", "--only", "zero_grad,threads")
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.OK, err
    assert "xxxx" not in out + err
    assert "baseline: " in err
    assert "No candidate was tried" in out
    assert "raise --budget" in out
    told = " ".join(out.split())
    assert re.search(r"The budget of \S+ s left no time to try anything: .* give it --budget \d+m or more", told)


def test_a_loss_that_is_not_finite_after_the_first_steps_is_told(tmp_path):
    run = Run(tmp_path, DIVERGES_LATER, only=("zero_grad",), budget_s=1.0).run()
    notes = " ".join(run.state.baseline.result.notes)
    assert "the loss was finite in the first 5 steps and is nan after warming up and timing" in notes


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
    out, rest = process.communicate(timeout=SOON_S)
    assert process.returncode == ExitCode.INTERRUPTED, rest
    assert out == ""
    assert rest.splitlines()[0] == "stopping; what was measured is kept (once more to leave at once)"
    assert rest.splitlines()[-1] == "nothing was measured yet; go on with: perf-advisor --resume"
    assert json.loads((tmp_path / "out.json").read_text())["baseline"] is None
