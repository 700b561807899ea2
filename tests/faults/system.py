"""Faults around a session: the disk, processes and signals. Those of its journal: tests/experiment."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from planted import TINY_TARGET

from advisor.errors import UsageError
from advisor.export.files import write_atomically
from advisor.files.scratch import SCRATCH
from advisor.process.streams import Stream
from advisor.runner import fork_server
from advisor.runner.trials import Runner
from faults.inputs import in_build
from faults.register import SOON_S, TRIAL, Met, ends_its_trial, fault, measured, trial

# --- the disk -------------------------------------------------------------------------------------------------


@fault("disk", "standard output full")
def _(folder: Path) -> Met:
    full = os.open("/dev/full", os.O_WRONLY)
    stream = Stream(full)
    for _ in range(3):
        stream.write(b"figures")
    os.close(full)
    assert stream.error is not None
    return Met(f"standard output cannot be written: {stream.error.strerror}")


@fault("disk", "a report on a full disk")
def _(folder: Path) -> Met:
    try:
        write_atomically("/dev/full", "text" * 10_000)
    except UsageError as error:
        return Met(error.message, "that file")
    raise AssertionError("it was written")


@fault("disk", "a limit on the size of files")
def _(folder: Path) -> Met:
    (folder / "old.md").write_text("before")
    code = "from advisor.export.files import write_atomically; write_atomically('old.md', 'x' * 10**6)"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True, check=False)
    assert (folder / "old.md").read_text() == "before"
    assert not list(folder.glob(".old*"))
    return Met(done.stderr.strip().splitlines()[-1].partition(": ")[2], "that file; the old one stays")


@fault("disk", "the log removed while a trial runs")
def _(folder: Path) -> Met:
    return measured(trial(folder, in_build(f"import os; os.remove({str(folder / 'trial.log')!r})")))


@fault("disk", "the working directory removed")
def _(folder: Path) -> Met:
    return measured(trial(folder, in_build("import os, tempfile\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())")))


# --- processes ------------------------------------------------------------------------------------------------


def _fork_server_gets(number: signal.Signals, folder: Path) -> Met:
    Runner.prepare()
    os.kill(fork_server._pid(), number)
    return measured(trial(folder, TINY_TARGET), "nothing: it is started again")


for _number in (signal.SIGKILL, signal.SIGTERM):
    fault("processes", f"the fork server gets {_number.name}")(
        lambda folder, number=_number: _fork_server_gets(number, folder)
    )


@fault("processes", "the folder of temporary files removed")
def _(folder: Path) -> Met:
    Runner.prepare()
    shutil.rmtree(SCRATCH.folder())
    return measured(trial(folder, TINY_TARGET), "nothing: it is made again")


def _stray(start: str, folder: Path) -> Met:
    note = str(folder / "pid")
    result = measured(trial(folder, in_build(start.replace("NOTE", repr(note)))), "nothing: the process is ended")
    until = time.monotonic() + SOON_S
    pid = int(Path(note).read_text())
    while time.monotonic() < until and Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in _status(pid):
        time.sleep(0.02)
    assert time.monotonic() < until
    return result


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


_DAEMON = """import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(NOTE + ".new", "w") as file: file.write(str(os.getpid()))
        os.rename(NOTE + ".new", NOTE)
        time.sleep(600)
    os._exit(0)
while not os.path.exists(NOTE): time.sleep(0.01)"""
_DETACHED = """import subprocess, sys
made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(NOTE, "w") as file: file.write(str(made.pid))"""
fault("processes", "a daemon, forked twice")(lambda folder: _stray(_DAEMON, folder))
fault("processes", "a child with a session of its own")(lambda folder: _stray(_DETACHED, folder))


# --- signals --------------------------------------------------------------------------------------------------


def _signalled(number: signal.Signals, folder: Path) -> Met:
    (folder / "target.py").write_text(TINY_TARGET)
    line = [sys.executable, "-m", "advisor", "target.py", "--headless", "--json", "out.json", "--device", "cpu"]
    line = ["env", "--default-signal=HUP", *line]  # these tests may themselves run under nohup
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(line, start_new_session=True, **pipes)
    time.sleep(1.0)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert json.loads((folder / "out.json").read_text())["cancelled"]
    return Met("stopping; what was measured is kept", TRIAL)


for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    fault("signals", f"{_number.name} in the first second")(lambda folder, number=_number: _signalled(number, folder))


@fault("processes", "a trial that is killed while it builds")
def _(folder: Path) -> Met:
    return ends_its_trial(trial(folder, in_build("import os, signal; os.killpg(0, signal.SIGKILL)")))
