"""``perf-advisor check``: settings measured again, and the exit code that a continuous integration looks at."""

import json
import re
from pathlib import Path

import pytest
from stopped_clock import Clock

from advisor.cli.grammar import parse
from advisor.errors import ExitCode, TargetError, UsageError
from advisor.experiment.measuring import verification as checking
from advisor.experiment.request import Request
from advisor.recipe.catalog import load_catalog
from advisor.records import Block, Mode, Outcome, TargetSpec, TrialKind, TrialResult


class FakeRunner:
    """Gives each process blocks at one of two rates (samples per second): without the settings and with them."""

    def __init__(self, plain, tuned, failure=None):
        self.rates, self.failure, self.specs = {"": plain, "tuned": tuned}, failure, []

    def run(self, spec, listen):
        self.specs.append(spec)
        if self.failure and spec.export_path:
            return self.failure
        rate = self.rates["tuned" if spec.export_path else ""] * (1 + 0.001 * len(self.specs))
        return TrialResult(Outcome.MEASURED, blocks=tuple(Block(10, 100, 100 / rate) for _ in range(5)))


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "tuned.yaml"
    file.write_text("step.zero_grad: zeros\n")
    return str(file)


def checked(runner, settings, budget_s=60.0):
    request = Request(TargetSpec("t:build", "."), budget_s)
    return checking.check(
        runner, request, settings, load_catalog(), lambda text: None, started=checking.time.monotonic()
    )


def test_the_speedup_is_that_of_pairs_of_processes(settings):
    runner = FakeRunner(100.0, 150.0)
    found = checked(runner, settings)
    assert found.speedup == pytest.approx(1.5, rel=0.01)
    assert found.ci_low < 1.5 < found.ci_high
    assert found.plain_step_ms > found.tuned_step_ms
    assert [bool(spec.export_path) for spec in runner.specs] == [False, True, True, False] * 2
    assert {spec.kind for spec in runner.specs} == {TrialKind.VERIFY}


@pytest.mark.parametrize(("tuned", "least", "worth"), [(150, 1.0, True), (80, 0.95, False), (98, 1.0, True)])
def test_only_an_interval_below_the_least_says_no(settings, tuned, least, worth):
    assert (checked(FakeRunner(100.0, float(tuned)), settings).ci_high >= least) is worth


class SlowRunner(FakeRunner):
    """Processes that take a given time by a fake clock, but no longer than their limit."""

    def __init__(self, clock, seconds):
        super().__init__(100.0, 150.0)
        self.clock, self.seconds = clock, seconds

    def run(self, spec, listen):
        takes = self.seconds[len(self.specs)]
        result = super().run(spec, listen)
        self.clock.now += min(takes, spec.timeout_s)
        return TrialResult(Outcome.TIMED_OUT, reason="no result in time") if takes > spec.timeout_s else result


@pytest.mark.parametrize(
    ("seconds", "pairs"), [([10, 10, 10, 10], 2), ([10, 10, 10, 500], 1), ([25, 25], 1), ([1, 2] * 4, 4)]
)
def test_a_check_ends_with_its_budget(settings, monkeypatch, seconds, pairs):
    clock = Clock(100.0)
    monkeypatch.setattr(checking.time, "monotonic", clock)
    assert checked(SlowRunner(clock, seconds), settings, budget_s=60.0).pairs == pairs
    assert clock.now - 100.0 <= 60.0


def test_a_budget_that_holds_no_pair_is_told_in_time(settings, monkeypatch):
    clock = Clock(100.0)
    monkeypatch.setattr(checking.time, "monotonic", clock)
    with pytest.raises(TargetError, match="with the file: no result in time"):
        checked(SlowRunner(clock, [40, 40]), settings, budget_s=60.0)
    assert clock.now - 100.0 <= 60.0


def test_a_loop_that_fails_with_the_settings_is_told(settings):
    failed = TrialResult(Outcome.FAILED, reason="RuntimeError: no", hint="Mend it.", details="line 3")
    with pytest.raises(TargetError) as error:
        checked(FakeRunner(1.0, 1.0, failed), settings)
    assert error.value.message == "the loop with the file: RuntimeError: no"
    assert (error.value.hint, error.value.details) == ("Mend it.", "line 3")


@pytest.fixture
def runner(monkeypatch):
    """A runner in place of the one that the command makes."""
    runner = FakeRunner(100.0, 150.0)
    monkeypatch.setattr("advisor.runner.trials.Runner", type("R", (), {"prepare": int, "__new__": lambda _: runner}))
    return runner


@pytest.mark.parametrize(("tuned", "code"), [(150.0, ExitCode.OK), (50.0, ExitCode.NOT_WORTH_IT)])
def test_the_exit_code(settings, tuned, code, runner, capsys):
    runner.rates["tuned"] = tuned
    assert parse(["check", settings, "t:build", "--min-speedup", "0.95", "--json"])() == code
    assert json.loads(capsys.readouterr().out)["worth_it"] is (code == ExitCode.OK)


def test_the_speed_up_is_the_quotient_of_the_step_times_beside_it(settings, runner, capsys):
    assert parse(["check", settings, "t:build"])() == ExitCode.OK
    told = re.search(r"OK: ([\d.]+)x .*, ([\d.]+) → ([\d.]+) ms a step", capsys.readouterr().out)
    speedup, before_ms, after_ms = map(float, told.groups())
    assert before_ms / after_ms == pytest.approx(speedup, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.yaml", "t:build"], "missing.yaml"),
        (["{settings}", "t:build", "--min-speedup", "fast"], "not a factor"),
        (["{settings}"], "TARGET"),
        (["/dev/null", "t:build"], "/dev/null has no settings"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(settings, arguments, said):
    with pytest.raises(UsageError) as error:
        parse(["check", *(text.format(settings=settings) for text in arguments)])()
    assert said in error.value.message


@pytest.mark.process
def test_a_target_is_measured(tmp_path, monkeypatch, settings, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "_CHECK_S", 0.1)
    Path("mine.py").write_text(
        "import torch\n\ndef build():\n    torch.set_num_threads(1)\n    return torch.nn.Linear(8, 8), torch.ones(4, 8)"
    )
    code = parse(["check", settings, "mine.py:build", "--min-speedup", "0.1", "--budget", "60s", "--device", "cpu"])()
    assert code == ExitCode.OK
    assert "needed 0.1x" in capsys.readouterr().out


def test_the_target_is_shaped_as_in_a_session(settings, runner):
    words = ["check", settings, "hf:gpt2", "--mode", "infer", "--batch-size", "4", "--input", "4x64", "--", "n_layer=2"]
    assert parse(words)() == ExitCode.OK
    target = runner.specs[0].target
    assert (target.mode, target.batch_size, target.input_shape) == (Mode.INFER, 4, (4, 64))
    assert target.arguments == ("n_layer=2",)
