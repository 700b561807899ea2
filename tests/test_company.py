"""What is compiled beside a trial that compiles: real processes throughout."""

from __future__ import annotations

import dataclasses
import threading
import time

import psutil
import pytest
from planted import TINY_TARGET
from test_runner import SOON_S, building, gone, spec_of

from advisor.records import Activity, Compiled, Outcome, TargetSpec
from advisor.runner import Runner
from advisor.session.bench import Bench
from advisor.session.budget import Budget
from advisor.session.journal import Journal
from advisor.session.request import Request

NOTES_ITS_PROCESS = "open(os.path.join(os.path.dirname(__file__), {!r}), 'a').write(f'{{os.getpid()}}\\n')"


@pytest.fixture(scope="module", autouse=True)
def _fork_server():
    Runner.prepare()


@pytest.fixture
def specs(tmp_path):
    """Make the spec of a target's text; each has a file of its own."""

    def make(name, text, **changes):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        spec = dataclasses.replace(spec_of(tmp_path, f"{name}.py"), log_path=str(tmp_path / "logs" / f"{name}.log"))
        return dataclasses.replace(spec, trial_id=name, **changes)

    return make


def test_what_is_only_compiled_has_first_steps_and_no_timings(specs):
    result = Runner().run(specs("tiny", TINY_TARGET, compile_only=True), lambda message: None)
    assert (result.outcome, result.blocks) == (Outcome.MEASURED, ())
    assert result.warmup_s > 0
    assert not result.measured


def test_a_trial_that_pauses_times_nothing_before_it_is_told_to_go_on(specs):
    messages = []
    with Runner().open(specs("tiny", TINY_TARGET, pauses=True), messages.append) as trial:
        assert trial.wait_compiled() is None
        assert isinstance(messages[-1], Compiled)
        time.sleep(0.5)
        assert not trial._connection.poll()
        result = trial.go_on()
    assert result.measured
    said = [message.text for message in messages if isinstance(message, Activity)]
    assert said[-2:] == ["warming up", "measuring"]


def test_what_is_compiled_beside_a_trial_has_ended_before_that_is_timed(specs, tmp_path):
    trial = specs("trial", building("time.sleep(4)"))
    ahead = specs("ahead", building(NOTES_ITS_PROCESS.format("pid") + "; time.sleep(600)"), compile_only=True)
    beside = []

    def listen(message):
        if message == Activity("warming up"):
            beside.append(psutil.pid_exists(int((tmp_path / "pid").read_text())))

    result = Runner().run_in_company(trial, ahead, listen)
    assert result.measured
    assert beside == [False]


def test_both_run_at_the_same_time(specs, tmp_path):
    trial = specs("trial", building("time.sleep(4)"))
    ahead = specs("ahead", building(NOTES_ITS_PROCESS.format("pid")), compile_only=True)
    seen = []

    def listen(message):
        if isinstance(message, Compiled):
            seen.append((tmp_path / "pid").exists())

    assert Runner().run_in_company(trial, ahead, listen).measured
    assert seen == [True]
    assert "Error" not in (tmp_path / "logs" / "ahead.log").read_text()


def test_a_failure_of_what_is_compiled_ahead_is_nobodys(specs):
    ahead = specs("ahead", building("raise ValueError('not today')"), compile_only=True)
    assert Runner().run_in_company(specs("trial", TINY_TARGET), ahead, lambda message: None).measured


def test_a_trial_in_company_that_fails_is_told_at_once(specs, tmp_path):
    trial = specs("trial", building("time.sleep(2); os._exit(5)"))
    ahead = specs("ahead", building(NOTES_ITS_PROCESS.format("pid") + "; time.sleep(600)"), compile_only=True)
    result = Runner().run_in_company(trial, ahead, lambda message: None)
    assert result.outcome is Outcome.CRASHED
    assert gone(int((tmp_path / "pid").read_text()))


def test_cancelling_ends_both(specs, tmp_path):
    sleeps = NOTES_ITS_PROCESS.format("pids") + "; time.sleep(600)"
    runner = Runner()

    def cancel_when_both_run():
        until = time.monotonic() + SOON_S
        while time.monotonic() < until and _pids(tmp_path) < 2:
            time.sleep(0.1)
        runner.cancel()

    threading.Thread(target=cancel_when_both_run).start()
    trial, ahead = specs("trial", building(sleeps)), specs("ahead", building(sleeps), compile_only=True)
    assert runner.run_in_company(trial, ahead, lambda message: None).outcome is Outcome.CANCELLED
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def _pids(folder):
    return len((folder / "pids").read_text().split()) if (folder / "pids").exists() else 0


NOT_ENOUGH_FOR_TWO = """
if os.path.exists(os.path.join(os.path.dirname(__file__), 'first')):
    open(os.path.join(os.path.dirname(__file__), 'second'), 'w').write('')
else:
    open(os.path.join(os.path.dirname(__file__), 'first'), 'w').write('')
    while not os.path.exists(os.path.join(os.path.dirname(__file__), 'second')): time.sleep(0.05)
    raise torch.cuda.OutOfMemoryError('CUDA out of memory')
"""


def test_a_trial_that_had_too_little_memory_in_company_is_run_without(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    (tmp_path / "target.py").write_text(building(NOT_ENOUGH_FOR_TWO), encoding="utf-8")
    request = Request(TargetSpec("target.py", str(tmp_path), device="cpu"), budget_s=200.0)
    bench = Bench(request, Runner(), Budget(200.0), Journal.create(request), lambda event: None)
    result = bench.run(bench.spec("compiles", {}), cost=1.0, ahead={"control.noop": True})
    assert result.measured, result
    assert (tmp_path / "second").exists()
