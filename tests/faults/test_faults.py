"""Faults beside those of the rooms' tests; sessions killed at random moments lose nothing; a soak leaks nothing."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from planted import TINY_TARGET

from advisor.experiment import events
from advisor.experiment.past.journal import open_session
from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.records import Outcome, TargetSpec, TrialSpec
from advisor.runner import fork_server
from advisor.runner.trials import Runner
from faults import inputs, streams, whole  # noqa: F401 - importing them fills the register
from faults.register import FAULTS, SOON_S, at_home

KILLS, KILLS_OF_ONE, TRIALS = 50, 5, 300


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.phase}: {fault.name}")
def test_each_is_met(fault):
    folder = tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True)
    with folder as name, at_home(Path(name)) as home:
        fault.provoke(home)


# --- kills ----------------------------------------------------------------------------------------------------


def _started(folder, *arguments):
    line = [sys.executable, "-m", "advisor", *arguments, "--headless", "--budget", "25s", "--no-verify"]
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(line, cwd=folder, start_new_session=True, **nowhere)


def _measured(path):
    """What a journal holds: runs by their settings, and whether the control is among them."""
    past = open_session(path.stem)
    state = SessionState.of(past.events)
    runs = Counter(repr(event) for event in past.events if isinstance(event, events.RunMeasured))
    control = any(record.candidate.recipe == CONTROL and record.result.measured for record in state.trials.values())
    return runs, control, int(past.damage.split()[0]) if past.damage else 0


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chain", range(KILLS // KILLS_OF_ONE))
def test_a_session_killed_at_random_moments_loses_no_measured_trial(tmp_path, monkeypatch, chain):
    """`kill -9` of the session, or of all of its processes, then `--resume`, again and again.

    Half of the kills come while a resumed session starts, the others just after it has recorded something.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    chance = random.Random(chain)
    with at_home(tmp_path):
        begin = ["target.py", "--device", "cpu", "--only", "zero_grad,channels_last,fused_optimizer"]
        process = _started(tmp_path, *begin)
        _wait_for_a_baseline(tmp_path / "state" / "sessions", process)
        (path,) = (tmp_path / "state" / "sessions").glob("*.jsonl")
        before, had_control, _ = _measured(path)
        for kill in range(KILLS_OF_ONE):
            if chance.random() < 0.5:
                _wait_for_a_record(path, process)
                time.sleep(chance.uniform(0.0, 0.5))
            else:
                time.sleep(chance.uniform(0.0, 2.0))
            _kill(process, whole_family=chance.random() < 0.3)
            after, has_control, damaged = _measured(path)
            assert not before - after
            assert has_control or not had_control
            assert damaged <= kill + 1
            before, had_control = after, has_control
            process = _started(tmp_path, "--resume")
        _wait_for_a_record(path, process)  # before it begins, a signal ends any program
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) in (0, 130)
        after, has_control, _ = _measured(path)
        assert not before - after
        assert has_control or not had_control


def _wait_for_a_baseline(folder, process):
    _wait(lambda: any("BaselineMeasured" in path.read_text() for path in folder.glob("*.jsonl")))
    assert process.poll() is None


def _wait_for_a_record(path, process):
    size = path.stat().st_size
    _wait(lambda: path.stat().st_size > size or process.poll() is not None)


def _wait(holds):
    until = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def _kill(process, *, whole_family):
    """Kill a session; its fork server and the trials have to end by themselves, but for those that are killed too."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    for one in [*(family if whole_family else []), *([psutil.Process(process.pid)] if process.poll() is None else [])]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(SOON_S)
    gone, alive = psutil.wait_procs(family, timeout=SOON_S)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    assert len(gone) + len(alive) == len(family)


# --- a soak ---------------------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_many_trials_leave_nothing_behind(tmp_path):
    """Every tenth is killed, raises or prints a lot; memory, descriptors, threads, processes and disk stay level."""
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    (tmp_path / "bad.py").write_text("raise RuntimeError('no')\n", encoding="utf-8")
    (tmp_path / "dead.py").write_text("import os; os.kill(os.getpid(), 9)\n", encoding="utf-8")
    (tmp_path / "loud.py").write_text("print('x' * 30_000_000)\n" + TINY_TARGET, encoding="utf-8")
    runner, levels = Runner(), []
    for number in range(TRIALS):
        name = {3: "bad.py", 5: "dead.py", 7: "loud.py"}.get(number % 10, "target.py")
        result = runner.run(_spec(tmp_path, name, number % 20), lambda message: None)
        assert (result.outcome is Outcome.MEASURED) == (name in ("target.py", "loud.py")), result.reason
        if number % 50 == 49:
            levels.append(_levels(tmp_path))
    first, last = levels[1], levels[-1]
    assert last["descriptors"] <= first["descriptors"] + 2
    assert last["threads"] <= first["threads"] + 1
    assert last["processes"] <= first["processes"]
    assert last["disk_bytes"] <= first["disk_bytes"] + 2**20
    assert last["memory_bytes"] <= first["memory_bytes"] + 30 * 2**20


def _spec(folder, name, number):
    target = TargetSpec(name, str(folder), device="cpu")
    log = str(folder / "logs" / f"{number}.log")
    return TrialSpec("t", target, {}, measure_s=0.02, warmup_limit_s=0.05, timeout_s=SOON_S, log_path=log)


def _levels(folder):
    me = psutil.Process()
    server = psutil.Process(fork_server._pid())
    family = [me, server]
    places = [folder, *Path(os.environ.get("TMPDIR", "/tmp")).glob(f"perf-advisor-{os.getuid()}-*")]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    return {
        "memory_bytes": sum(one.memory_info().rss for one in family),
        "descriptors": sum(one.num_fds() for one in family),
        "threads": sum(one.num_threads() for one in family),
        "processes": len(server.children(recursive=True)),
        "disk_bytes": sum(path.stat().st_size for path in files),
    }
