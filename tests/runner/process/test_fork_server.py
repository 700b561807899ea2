"""The fork server, the trials' parent: killed, stopped, and with what trials leave behind."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
from planted import TINY_TARGET
from trial_processes import SOON_S, appears, building, gone, spec_of

from advisor.process import household
from advisor.records import Outcome
from advisor.runner.trials import Runner, fork_server


@pytest.fixture
def spec(tmp_path):
    def of(text=TINY_TARGET):
        (tmp_path / "target.py").write_text(text, encoding="utf-8")
        return spec_of(tmp_path, "target.py", measure_s=0.01, warmup_limit_s=0.05)

    return of


@pytest.fixture
def imports_nothing(monkeypatch):
    """Begin with a fork server that does not import PyTorch, which takes seconds."""
    monkeypatch.setattr(fork_server, "_PRELOAD", [])
    fork_server._kill()
    fork_server.prepare()
    yield
    fork_server._kill()


def a_process_is_started(**options):
    made = fork_server.CONTEXT.Process(target=time.sleep, args=(0,))
    fork_server.start(made, **options)
    made.join()
    return made.exitcode == 0


def test_a_fork_server_that_ended_is_started_again(imports_nothing):
    before = fork_server._running().pid
    fork_server._kill()
    assert a_process_is_started()
    assert fork_server._running().pid != before
    assert gone(before)


def test_what_to_do_where_no_fork_server_can_be_started(spec, monkeypatch):
    def refused():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(fork_server, "prepare", refused)
    result = Runner().run(spec(), lambda message: None)
    assert result.outcome is Outcome.CRASHED
    assert "Too many open files" in result.reason
    assert "ulimit -a" in result.hint


def test_only_an_end_of_the_fork_server_is_told_as_pytorchs_import(imports_nothing, monkeypatch):
    made = fork_server.CONTEXT.Process(target=time.sleep, args=(0,))
    monkeypatch.setattr(made, "start", lambda: os.open(os.devnull + "/none", os.O_RDONLY))
    with pytest.raises(OSError, match=r"\(NotADirectoryError .*\)$"):
        fork_server.start(made)


def test_both_helpers_are_started_again_while_the_app_is_on_the_screen(imports_nothing, monkeypatch):
    """In the app, sys.stderr reports the descriptor -1."""
    for pid in (resource_tracker._resource_tracker._pid, fork_server._running().pid):
        household.kill(pid)
        assert gone(pid)
    monkeypatch.setattr(sys, "stderr", type("Captured", (io.StringIO,), {"fileno": lambda self: -1})())
    assert a_process_is_started()


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open({path!r}, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not (os.path.exists({path!r}) and open({path!r}).read()):
    time.sleep(0.01)
"""

SESSION = """
import sys
from pathlib import Path
from advisor.files.folders import scratch_folder
from advisor.records import TargetSpec
from advisor.runner.trials import Runner

if __name__ == "__main__":
    Runner.prepare()
    Path(sys.argv[1], "scratch").write_text(str(scratch_folder()))
    Runner().build_once(TargetSpec("target.py", sys.argv[1], device="cpu"), 0, sys.argv[1] + "/build.log", 600.0)
"""


def test_a_killed_session_leaves_neither_processes_nor_files(spec, tmp_path):
    """Its build hangs, a daemon of it has left the process group."""
    spec(building(DAEMON.format(path=str(tmp_path / "pid")) + "\ntime.sleep(600)"))
    (tmp_path / "session.py").write_text(SESSION, encoding="utf-8")
    session = subprocess.Popen([sys.executable, str(tmp_path / "session.py"), str(tmp_path)])
    (daemon,) = map(int, appears(tmp_path / "pid"))
    started = psutil.Process(session.pid).children(recursive=True)
    scratch = Path((tmp_path / "scratch").read_text())
    assert scratch.is_dir()
    session.kill()
    session.wait()
    assert all(gone(process.pid) for process in started)
    assert gone(daemon)
    assert not scratch.exists()


ENDS_EARLY = """
import os, sys, time
from pathlib import Path
from advisor.runner import fork_server
fork_server.prepare()
Path("pid").write_text(str(fork_server._running().pid))
while not Path("began").exists(): time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.parametrize("meanwhile", ["it begins", "it imports"])
def test_a_fork_server_ends_with_a_session_that_ends_while(meanwhile, tmp_path, monkeypatch):
    began = tmp_path / "began"
    if meanwhile == "it begins":
        began.touch()
    (tmp_path / "torch.py").write_text(f"open({str(began)!r}, 'w').close()\nsum(range(10**12))\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    subprocess.run([sys.executable, "-c", ENDS_EARLY], cwd=tmp_path, check=True)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert gone(pid)
    finally:
        household.kill(pid)


def test_the_helpers_import_nothing_of_the_working_directory(tmp_path):
    (tmp_path / "socket.py").write_text("raise RuntimeError", encoding="utf-8")
    program = tmp_path / "bin" / "program.py"
    program.parent.mkdir()
    lines = "import time", "from advisor.runner.fork_server import prepare", "prepare()", "time.sleep(1)", "prepare()"
    program.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""


LEAVES_A_SEMAPHORE = """
from multiprocessing import resource_tracker
from advisor.runner import fork_server
fork_server.prepare()
resource_tracker.register("/left-behind", "semaphore")
fork_server._kill()
"""


def test_the_terminal_is_spared_warnings_of_semaphores_also_where_python_shall_warn(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "always")
    command = [sys.executable, "-X", "dev", "-c", LEAVES_A_SEMAPHORE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "resource_tracker" not in done.stderr


@pytest.fixture
def imports_for_long(tmp_path, monkeypatch):
    """Begin with a fork server that imports for some seconds, longer than one that has imported may take to answer."""

    def begin(seconds, then=""):
        (tmp_path / "slow_disk.py").write_text(f"import os, time\ntime.sleep({seconds})\n{then}", encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(fork_server, "_PRELOAD", ["slow_disk"])
        monkeypatch.setattr(fork_server, "_IMPORTS_AT_LEAST_S", 0.5)
        fork_server._kill()
        fork_server.prepare()

    yield begin
    fork_server._kill()


def test_an_import_may_take_as_long_as_the_budget(imports_for_long):
    imports_for_long(1.0)
    before = fork_server._running().pid
    assert a_process_is_started(within_s=SOON_S)
    assert fork_server._running().pid == before


def test_an_import_ends_with_the_budget(imports_for_long):
    imports_for_long(10 * SOON_S)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="PyTorch was not imported within 1 s"):
        a_process_is_started(within_s=1.0)
    assert time.monotonic() - started < SOON_S


@pytest.mark.parametrize("name", ["SIGABRT", "SIGKILL", "SIGXCPU"])
def test_an_import_that_ends_python_is_told_as_that(imports_for_long, name):
    """As PyTorch's does for PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb=128, which has the wrong sign, and a limit."""
    imports_for_long(0, f"os.kill(os.getpid(), {getattr(signal, name):d})")
    with pytest.raises(OSError, match="python -c 'import torch'"):
        a_process_is_started()


def test_a_trial_runs_where_the_fork_server_lacks_the_paths_to_import_us(spec, imports_nothing):
    assert Runner().run(spec(), lambda message: None).outcome is Outcome.MEASURED
