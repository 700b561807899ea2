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

import pytest
from planted import TINY_TARGET, plant

from advisor.errors import UsageError
from advisor.export.files import write_atomically
from advisor.files.scratch import SCRATCH
from advisor.process.streams import Stream
from advisor.runner import fork_server
from advisor.runner.trials import Runner
from faults.inputs import in_build
from faults.register import SOON_S, command, ends_its_trial, fault, measured, recorded, trial

# --- the journal ----------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "one byte flipped": lambda lines: [*lines[:3], bytes([lines[3][0] ^ 1]) + lines[3][1:], *lines[4:]],
    "a blank line": lambda lines: [*lines[:3], b"", *lines[3:]],
    "the last line cut": lambda lines: [*lines[:-2], lines[-2][:10], b""],
    "a line of another version": lambda lines: [*lines[:3], b'{"event": "FromTheFuture", "data": {}}', *lines[3:]],
    "100,000 brackets": lambda lines: [*lines[:3], b"[" * 100_000, *lines[3:]],
    "a line that is no text": lambda lines: [*lines[:3], b"\xff\xfe\x00", *lines[3:]],
}


def _damaged(change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = recorded()
    count = len(open_session().events)
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))
    past = open_session()
    lost = count - len(past.events)
    assert past.damaged == 1
    assert lost <= 1


for _name, _change in DAMAGE.items():
    fault("journal", _name)(lambda folder, change=_change: _damaged(change))


@fault("journal", "its first line gone")
def _(folder: Path) -> None:
    recorded().write_bytes(b"\n")
    command("report")


@fault("journal", "another form of it")
def _(folder: Path) -> None:
    path = recorded()
    path.write_text(path.read_text().replace('"schema":1', '"schema":9'))
    command("report")


@fault("journal", "another process writes it")
def _(folder: Path) -> None:
    path = recorded()
    code = "import sys; from pathlib import Path; from advisor.experiment.past.journal import Journal\n"
    code += "journal = Journal(Path(sys.argv[1]), None); print('held', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], **pipes)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=str(holder.pid)):
            Journal(path, open_session().request)
    finally:
        holder.kill()
        holder.communicate()


# --- the disk -------------------------------------------------------------------------------------------------


@fault("disk", "full while a session is recorded")
def _(folder: Path) -> None:
    journal = Journal(recorded(), open_session().request)
    before = len(open_session().events)
    journal._file.close()
    journal._file = open("/dev/full", "a", encoding="utf-8")  # noqa: PTH123, SIM115
    assert journal.record(events.StageStarted("one"))
    assert journal.record(events.StageStarted("two")) == ""
    journal.close()
    assert len(open_session().events) == before


@fault("disk", "a file where the state folder should be")
def _(folder: Path) -> None:
    (folder / "state").write_text("")
    (folder / "target.py").write_text(TINY_TARGET)
    command("target.py", "--headless")


@fault("disk", "standard output full")
def _(folder: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    stream = Stream(full)
    for _ in range(3):
        stream.write(b"figures")
    os.close(full)
    assert stream.error is not None


@fault("disk", "a report on a full disk")
def _(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_atomically("/dev/full", "text" * 10_000)


@fault("disk", "a limit on the size of files")
def _(folder: Path) -> None:
    (folder / "old.md").write_text("before")
    code = "from advisor.export.files import write_atomically; write_atomically('old.md', 'x' * 10**6)"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True, check=False)
    assert (folder / "old.md").read_text() == "before"
    assert not list(folder.glob(".old*"))
    assert done.stderr.strip()


@fault("disk", "the log removed while a trial runs")
def _(folder: Path) -> None:
    measured(trial(folder, in_build(f"import os; os.remove({str(folder / 'trial.log')!r})")))


@fault("disk", "the working directory removed")
def _(folder: Path) -> None:
    measured(trial(folder, in_build("import os, tempfile\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())")))


# --- processes ------------------------------------------------------------------------------------------------


def _fork_server_gets(number: signal.Signals, folder: Path) -> None:
    Runner.prepare()
    os.kill(fork_server._pid(), number)
    measured(trial(folder, TINY_TARGET))


for _number in (signal.SIGKILL, signal.SIGTERM):
    fault("processes", f"the fork server gets {_number.name}")(
        lambda folder, number=_number: _fork_server_gets(number, folder)
    )


@fault("processes", "the folder of temporary files removed")
def _(folder: Path) -> None:
    Runner.prepare()
    shutil.rmtree(SCRATCH.folder())
    measured(trial(folder, TINY_TARGET))


def _stray(start: str, folder: Path) -> None:
    note = str(folder / "pid")
    measured(trial(folder, in_build(start.replace("NOTE", repr(note)))))
    until = time.monotonic() + SOON_S
    pid = int(Path(note).read_text())
    while time.monotonic() < until and Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in _status(pid):
        time.sleep(0.02)
    assert time.monotonic() < until


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


def _signalled(number: signal.Signals, folder: Path) -> None:
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


for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    fault("signals", f"{_number.name} in the first second")(lambda folder, number=_number: _signalled(number, folder))

# --- another workload, and what stays private -----------------------------------------------------------------


def _resumed(*arguments: str) -> None:
    assert "measured " in command("mymodel:build", "--resume", *arguments)


@fault("resume", "another batch size")
def _(folder: Path) -> None:
    recorded(batch_size=16, directory=str(folder))
    _resumed("--batch-size", "1024")


@fault("resume", "another config")
def _(folder: Path) -> None:
    recorded(config={"lr": 0.1}, directory=str(folder))
    (folder / "c.yaml").write_text("lr: 0.2\n")
    _resumed("--config", "c.yaml")


@fault("resume", "another device")
def _(folder: Path) -> None:
    recorded(directory=str(folder))
    _resumed("--device", "cpu")


@fault("resume", "another target")
def _(folder: Path) -> None:
    recorded()
    command("other:build", "--resume")


@fault("privacy", "a journal that names another's file")
def _(folder: Path) -> None:
    (folder / "secret.json.gz").write_bytes(b"private")
    path = recorded()
    path.write_text(path.read_text().replace("/tmp/sample", str(folder)))
    command("report", "--trace", "t.json.gz", code=0)
    assert not (folder / "t.json.gz").exists()


@fault("privacy", "a journal that names a folder of recipes")
def _(folder: Path) -> None:
    from dataclasses import replace

    from sample_session import sample_request

    planted = plant(folder / "recipes", "planted")
    planted.write_text(planted.read_text() + f"open({str(folder / 'ran')!r}, 'w')\n")
    Journal.create(replace(sample_request(), recipe_folders=(str(folder / "recipes"),))).close()
    command("report", code=0)
    assert not (folder / "ran").exists()


@fault("privacy", "a token in the config")
def _(folder: Path) -> None:
    path = recorded(config={"hub": {"token": "opensesame"}}, arguments=("--api-key", "opensesame"))
    assert "opensesame" not in path.read_text()


@fault("privacy", "escape sequences in a name")
def _(folder: Path) -> None:
    shown = plain("\x1b[31mred\x9b0m"), printable("\x1b]0;title\x07")
    assert not any(sign in text for text in shown for sign in "\x1b\x9b\x07")


@fault("privacy", "a umask of 0")
def _(folder: Path) -> None:
    before = os.umask(0)
    try:
        recorded()
    finally:
        os.umask(before)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder / "state").rglob("*"))


@fault("processes", "a trial that is killed while it builds")
def _(folder: Path) -> None:
    ends_its_trial(trial(folder, in_build("import os, signal; os.killpg(0, signal.SIGKILL)")))
