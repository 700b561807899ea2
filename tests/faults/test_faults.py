"""Faults beside those of the rooms' tests, each provoked for real on a CPU; sessions killed at random moments lose
nothing; a soak leaks nothing."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from planted import TINY_TARGET
from trial_processes import building, spec_of

from advisor.cli import main as cli
from advisor.experiment import events
from advisor.experiment.past.journal import open_session
from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.records import Outcome
from advisor.runner import fork_server
from advisor.runner.trials import Runner

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("at_home")]
# A session is recorded for 2 s at the latest after a fault; the figure is generous, for loaded machines. Seconds.
SOON_S = 60.0
KILLS, KILLS_OF_ONE, TRIALS = 50, 5, 300


@pytest.fixture
def at_home(own_state, monkeypatch):
    """Work in an empty folder, with a state folder of its own."""
    monkeypatch.chdir(own_state.parent)


# --- targets --------------------------------------------------------------------------------------------------


def trial(folder, text, *, name="target.py", timeout_s=SOON_S):
    """The result of one trial of a target's text."""
    (folder / name).write_text(text)
    spec = spec_of(folder, name, measure_s=0.05, timeout_s=timeout_s, log_path=str(folder / "trial.log"))
    return Runner().run(spec, lambda message: None)


UNSHOWN = "class E(Exception):\n    def __str__(self): raise ValueError('x')\nraise E"
DEAF = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)"
FIX, MORE_TIME = "Fix the lines below", "Give it more time with --budget"
# The text of a target, and what the two lines say.
FAILING = {
    "an exception with surrogates": (building("raise RuntimeError('\\udcff')"), "RuntimeError: \\udcff", FIX),
    "an exception that cannot be shown": (building(UNSHOWN), "build in target.py failed: E", FIX),
    "endless recursion": (building("def f(): return f()\nf()"), "RecursionError", FIX),
    "a build that takes no signals": (building(DEAF), "no result after 3 s (loading the model)", MORE_TIME),
}
HARMLESS = {
    "a thread that never ends": "import threading\nthreading.Thread(target=threading.Event().wait).start()",
    "another working directory": "os.chdir('/')",
    "a working directory that is removed": "import tempfile\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())",
    "its own start method": "import multiprocessing\nmultiprocessing.set_start_method('spawn', force=True)",
    "warnings as errors": "import warnings; warnings.simplefilter('error')",
    "signals of its own": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "the log removed while it runs": "os.remove(os.path.join(os.path.dirname(__file__), 'trial.log'))",
}


@pytest.mark.parametrize(("text", "reason", "hint"), FAILING.values(), ids=FAILING)
def test_a_target_that_fails_ends_its_trial_in_two_lines(tmp_path, text, reason, hint):
    result = trial(tmp_path, text, timeout_s=3.0 if "no result" in reason else SOON_S)
    assert result.outcome is not Outcome.MEASURED
    assert reason in result.reason
    assert hint in result.hint
    assert "\n" not in result.reason + result.hint


@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_odd_targets_are_measured_all_the_same(tmp_path, body):
    result = trial(tmp_path, building(body))
    assert result.outcome is Outcome.MEASURED, result.reason


@pytest.mark.parametrize("name", [b"caf\xe9.py".decode("utf-8", "surrogateescape"), "x" * 252 + ".py"])
def test_odd_names_of_targets_are_measured_too(tmp_path, name):
    result = trial(tmp_path, TINY_TARGET, name=name)
    assert result.outcome is Outcome.MEASURED, result.reason


# --- the command ----------------------------------------------------------------------------------------------


def test_a_file_where_the_state_folder_should_be_is_told_in_two_lines(tmp_path, capsys):
    (tmp_path / "state").write_text("")
    (tmp_path / "target.py").write_text(TINY_TARGET)
    assert cli.main(["target.py", "--headless"]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert len(told.splitlines()) == 2, told


def command(folder, target, *, code=0, limits=(), **environment):
    """Run a session with the shortest budget and return its standard error; ``limits`` are arguments of setrlimit."""
    line = [sys.executable, "-m", "advisor", target, "--budget", "2s", "--only", "zero_grad", "--no-verify"]
    home = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",  # two would wait for each other on a loaded machine
    }

    def limit():
        for kind, most in limits:
            resource.setrlimit(kind, (most, most))

    done = subprocess.run(
        [*line, "--device", "cpu", "--headless"],
        cwd=folder,
        env={**os.environ, **home, **environment},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=2 * SOON_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "a bug" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("torch.py", ()),
        ("target.py", [(resource.RLIMIT_NOFILE, 12)]),
        ("target.py", [(resource.RLIMIT_AS, 10**9)]),
        ("target.py", [(resource.RLIMIT_CPU, 2)]),
    ],
    ids=["a target called torch.py", "no descriptors left", "no address space left", "no processor time left"],
)
def test_a_name_or_a_limit_that_lets_nothing_run_is_told_with_what_to_do(tmp_path, name, limits):
    (tmp_path / name).write_text(TINY_TARGET)
    lines = command(tmp_path, name, code=3, limits=limits).splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("perf-advisor: ")]
    assert len(lines[place]) > len("perf-advisor: "), lines
    assert lines[place + 1].strip(), lines


KILLED_ONCE = """
if not os.path.exists('killed') and os.getppid() != 1:
    open('killed', 'w').close()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("text", "environment"),
    [(TINY_TARGET, {"PYTHONOPTIMIZE": "2"}), (TINY_TARGET, {"TMPDIR": "x" * 100}), (building(KILLED_ONCE), {})],
    ids=["optimised", "a long path of temporary files", "killed once"],
)
def test_the_baseline_is_measured_all_the_same(tmp_path, text, environment):
    (tmp_path / "target.py").write_text(text)
    (tmp_path / ("x" * 100)).mkdir()
    made = {name: str(tmp_path / value) if name == "TMPDIR" else value for name, value in environment.items()}
    assert "baseline: " in command(tmp_path, "target.py", **made)


def test_a_child_of_a_loaders_worker_ends_with_the_session(tmp_path):
    start = "import subprocess\n    made = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    note = f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(made.pid))\n"
    data = "[(torch.randn(16), torch.tensor(0)) for _ in range(64)]"
    made = f"torch.utils.data.DataLoader({data}, batch_size=8, num_workers=1, worker_init_fn=worker)"
    text = TINY_TARGET.replace("torch.randn(8, 16), torch.randint(4, (8,))", made)
    (tmp_path / "target.py").write_text(f"{text}\ndef worker(number):\n    {start}{note}\n")
    assert "baseline: " in command(tmp_path, "target.py")
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# --- kills ----------------------------------------------------------------------------------------------------


def _started(folder, *arguments):
    line = [sys.executable, "-m", "advisor", *arguments, "--headless", "--budget", "25s", "--no-verify"]
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(line, cwd=folder, start_new_session=True, **nowhere)


def _measured(path):
    """The contents of a journal: runs by their settings, and whether the control is among them."""
    past = open_session(path.stem)
    state = SessionState.of(past.events)
    runs = Counter(repr(event) for event in past.events if isinstance(event, events.RunMeasured))
    control = any(record.candidate.recipe == CONTROL and record.result.measured for record in state.trials.values())
    return runs, control, int(past.damage.split()[0]) if past.damage else 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chain", range(KILLS // KILLS_OF_ONE))
def test_a_session_killed_at_random_moments_loses_no_measured_trial(tmp_path, monkeypatch, chain):
    """`kill -9` of the session, or of all of its processes, then `--resume`, again and again.

    Half of the kills come while a resumed session starts, the others just after it has recorded something.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    chance = random.Random(chain)
    begin = ["target.py", "--device", "cpu", "--only", "zero_grad,channels_last,fused_optimizer"]
    process = _started(tmp_path, *begin)
    sessions = tmp_path / "state" / "sessions"
    _wait(lambda: any("BaselineMeasured" in path.read_text() for path in sessions.glob("*.jsonl")))
    assert process.poll() is None
    (path,) = sessions.glob("*.jsonl")
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
        log = str(tmp_path / "logs" / f"{number % 20}.log")
        spec = spec_of(tmp_path, name, measure_s=0.02, warmup_limit_s=0.05, timeout_s=SOON_S, log_path=log)
        result = runner.run(spec, lambda message: None)
        assert (result.outcome is Outcome.MEASURED) == (name in ("target.py", "loud.py")), result.reason
        if number % 50 == 49:
            levels.append(_levels(tmp_path))
    first, last = levels[1], levels[-1]
    assert last["descriptors"] <= first["descriptors"] + 2
    assert last["threads"] <= first["threads"] + 1
    assert last["processes"] <= first["processes"]
    assert last["disk_bytes"] <= first["disk_bytes"] + 2**20
    assert last["memory_bytes"] <= first["memory_bytes"] + 30 * 2**20


def _levels(folder):
    me = psutil.Process()
    server = fork_server._running()
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
