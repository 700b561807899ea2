"""A hanging build ends shortly after the budget; a model that no fork can use is built again in each trial."""

import time

from planted import TINY_TARGET
from real_session import Run

from advisor.errors import ExitCode
from advisor.experiment.events import BaselineMeasured, Said

GRACE_S = 15.0  # generous: the machine may be loaded


def test_a_build_that_never_ends_fails_once(real_sessions, tmp_path, monkeypatch):
    monkeypatch.setattr("advisor.experiment.measuring.bench._LEAST_BUILD_S", 1.0)
    text = TINY_TARGET.replace("def build():\n", "def build():\n    while True: pass\n")
    Run(tmp_path, TINY_TARGET).runner.build_once(Run(tmp_path, TINY_TARGET).request.target, 0, "/dev/null", 60.0)
    run = Run(tmp_path, text, budget_s=2.0)
    started = time.monotonic()
    run.run()
    assert time.monotonic() - started < 2.0 + GRACE_S
    assert run.state.failure.exit_code == ExitCode.TARGET
    assert run.state.failure.message.startswith("building the model takes more than 1 s")
    assert "--budget" in run.state.failure.hint
    assert "in build" in run.state.failure.details
    assert not run.started


def test_a_first_step_that_never_ends_has_the_grace_of_the_first_baseline(real_sessions, tmp_path, monkeypatch):
    for limit in ("_FIRST_GRACE_S", "_FIRST_AT_LEAST_S"):
        monkeypatch.setattr(f"advisor.experiment.measuring.budget.{limit}", 3.0)
    text = TINY_TARGET.replace("        return 1.0 * x", "        while True: pass")
    run = Run(tmp_path, text, budget_s=1.0)
    started = time.monotonic()
    run.run()
    assert time.monotonic() - started < 3.0 + GRACE_S
    assert run.state.failure.exit_code == ExitCode.TARGET
    assert run.state.failure.message.startswith("the baseline could not be measured: no result after 3 s")
    assert run.state.finished.spent.warming_up_s == 0


ONLY_WHERE_IT_WAS_BUILT = """
import os
built_in = []
def check():
    if os.getpid() != built_in[0]:
        raise RuntimeError("this model cannot be forked")
"""


def test_a_model_that_fails_in_a_fork_is_built_in_each_trial(real_sessions, tmp_path):
    text = TINY_TARGET.replace("return 1.0 * x", "check(); return 1.0 * x")
    text = text.replace("def build():\n", "def build():\n    built_in.append(os.getpid())\n")
    run = Run(tmp_path, ONLY_WHERE_IT_WAS_BUILT + text, budget_s=10.0)
    run.run_until(lambda event: isinstance(event, BaselineMeasured))
    assert run.state.failure is None, run.state.failure
    assert any("this model cannot be forked" in event.text for event in run.posted(Said))
