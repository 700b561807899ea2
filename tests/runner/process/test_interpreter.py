"""Interpreters that start before their trials are known: real processes throughout."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from trial_processes import building, gone, spec_of

from advisor.records import Outcome
from advisor.runner.trials import Runner

VARIABLE = {"PLANTED": "a value"}
# The tests wait for the import by what it has mapped: the library that torch's Python module is linked with.
LIBRARY = "libtorch_python"
IMPORTED_AFTER_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def _fork_server():
    Runner.prepare()


@pytest.fixture
def runner():
    runner = Runner()
    yield runner
    runner.interpreters.close()


def start(runner, folder, environment=None):
    """Start an interpreter; its process."""
    before = _descendants()
    runner.interpreters.start(environment or VARIABLE, str(folder / "logs" / "interpreter.log"))
    (new,) = _descendants() - before
    return new


def _descendants():
    return set(psutil.Process().children(recursive=True))


def has_imported(process):
    until = time.monotonic() + IMPORTED_AFTER_S
    while time.monotonic() < until:
        if any(LIBRARY in file.path for file in process.memory_maps()) and process.cpu_times().user > 0:
            used = process.cpu_times().user
            time.sleep(0.5)
            if process.cpu_times().user == used:
                return True
        time.sleep(0.1)
    return False


def run(runner, spec):
    return runner.run(spec, lambda message: None)


def noting(folder, name="seen"):
    """A target that notes the process it is built in and its environment."""
    note = f"open({str(folder / name)!r}, 'w').write(str(os.getpid()) + ' ' + os.environ['PLANTED'])"
    (folder / "target.py").write_text(building(note), encoding="utf-8")
    return replace(spec_of(folder, "target.py"), environment=VARIABLE)


@pytest.mark.timed
def test_a_trial_starts_at_once_in_the_interpreter_that_waits_for_it(runner, tmp_path):
    spec, process = noting(tmp_path), start(runner, tmp_path)
    with runner.interpreters.importing():
        assert has_imported(process)
    result = run(runner, spec)
    assert result.outcome is Outcome.MEASURED
    assert result.startup_s < 1.0
    assert (tmp_path / "seen").read_text() == f"{process.pid} a value"
    assert not runner.interpreters.has(VARIABLE)
    assert gone(process.pid)


def test_one_that_waits_stands_still_but_where_it_is_told_to_import(runner, tmp_path):
    process = start(runner, tmp_path)
    assert stands_still(process)
    with runner.interpreters.importing():
        assert not stands_still(process)
    assert stands_still(process)


def stands_still(process):
    """Whether it takes no time of a processor for a while. A signal arrives a moment after it was sent."""
    time.sleep(0.2)
    used = process.cpu_times().user
    time.sleep(1.0)
    return process.status() == psutil.STATUS_STOPPED and process.cpu_times().user == used


def test_a_trial_may_come_before_the_interpreter_is_ready_and_what_that_wrote_is_in_its_log(runner, tmp_path):
    variables = {**VARIABLE, "LD_PRELOAD": "/nowhere/libmissing.so"}
    spec, process = replace(noting(tmp_path), environment=variables), start(runner, tmp_path, variables)
    result = run(runner, spec)
    assert result.measured
    assert (tmp_path / "seen").read_text() == f"{process.pid} a value"
    assert "libmissing.so" in Path(result.log_path).read_text(encoding="utf-8")
    assert not (tmp_path / "logs" / "interpreter.log").exists()


def test_one_that_waits_serves_no_other_environment(runner, tmp_path):
    process = start(runner, tmp_path)
    spec = noting(tmp_path)
    other = replace(spec, environment={**VARIABLE, "ANOTHER": "1"})
    assert run(runner, other).measured
    assert (tmp_path / "seen").read_text().split()[0] != str(process.pid)
    assert runner.interpreters.has(VARIABLE)


def test_one_is_enough(runner, tmp_path):
    start(runner, tmp_path)
    before = _descendants()
    runner.interpreters.start(VARIABLE, str(tmp_path / "logs" / "second.log"))
    assert _descendants() == before


def test_one_that_died_meanwhile_is_done_without(runner, tmp_path):
    spec, process = noting(tmp_path), start(runner, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    assert gone(process.pid)
    assert run(runner, spec).measured
    assert (tmp_path / "seen").read_text().split()[0] != str(process.pid)


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_nothing_waits_for_a_session_that_is_over(runner, tmp_path, end):
    process = start(runner, tmp_path)
    runner.interpreters.close() if end == "close" else runner.cancel()
    assert gone(process.pid)
    assert not runner.interpreters.has(VARIABLE)


def test_a_trial_in_one_is_cancelled_at_once(runner, tmp_path):
    process = start(runner, tmp_path)
    (tmp_path / "target.py").write_text(building("time.sleep(600)"), encoding="utf-8")
    spec = replace(spec_of(tmp_path, "target.py"), environment=VARIABLE, timeout_s=2.0)
    assert run(runner, spec).outcome is Outcome.TIMED_OUT
    assert gone(process.pid)


DIES = """
import os, signal, sys, time
import psutil
from advisor.runner.trials import Runner

if __name__ == "__main__":
    Runner.prepare()
    runner = Runner()
    runner.interpreters.start({"PLANTED": "1"}, sys.argv[1])
    if sys.argv[2] == "importing":
        with runner.interpreters.importing():
            time.sleep(1.5)
    print(*(process.pid for process in psutil.Process().children(recursive=True)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("told_to", ["stand still", "importing"])
def test_nothing_is_left_of_a_session_that_was_killed(tmp_path, told_to):
    command = [sys.executable, "-c", DIES, str(tmp_path / "interpreter.log"), told_to]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=IMPORTED_AFTER_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = done.stdout.split()
    assert len(pids) >= 2, "the fork server and the interpreter, at least"
    assert all(gone(int(pid)) for pid in pids)


def test_interpreters_may_be_ended_from_two_threads_at_once(runner, tmp_path):
    process = start(runner, tmp_path)
    threads = [threading.Thread(target=runner.interpreters.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gone(process.pid)
    runner.interpreters.close()
