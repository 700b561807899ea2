"""Faults in the middle of a whole session, and sessions of another user: each goes on until a candidate is measured."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from on_a_terminal import OnATerminal
from planted import TINY_TARGET
from sample_session import journaled, sample_history

from advisor.errors import UsageError
from advisor.experiment import events
from advisor.experiment.past.journal import open_session
from faults.register import SOON_S, fault

_NOBODY = 65534
_AS_NOBODY = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
_OPTIONS = ("--only", "zero_grad", "--no-verify", "--device", "cpu", "--json", "out.json")
# What a target imports may make the baseline wait for long; candidates are measured for seconds only. Seconds.
_MOST_S = 3 * SOON_S


@dataclass(frozen=True, slots=True)
class User:
    """Who runs the command, in which Python, and with which variables."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)

    def line(self, *arguments: str) -> list[str]:
        return [self.python, "-m", "advisor", *arguments]

    @property
    def variables(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, sys.path))
        return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **self.environment}

    def said(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What a command that measures nothing says."""
        return subprocess.run(
            self.line(*arguments),
            cwd=folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=_MOST_S,
            check=False,
            **self.options,
        )


def _told(holds: Callable[[events.Event], bool]) -> bool:
    """Whether the session has told of such an event."""
    with contextlib.suppress(UsageError):  # its journal has only just been made
        return any(holds(event) for event in open_session().events)
    return False


def _baseline_is_measured() -> bool:
    return _told(lambda event: isinstance(event, events.BaselineMeasured))


def _candidate_is_measured() -> bool:
    return _told(lambda event: isinstance(event, events.RunMeasured) and bool(event.settings) and event.result.measured)


def _wait_for(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + _MOST_S
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)


def _headless(folder: Path, midway: Callable[[], object], user: User) -> None:
    """A session without the app, in which something happens after the baseline; ended after its first candidate."""
    (folder / "target.py").write_text(TINY_TARGET)
    line = user.line("target.py", "--headless", "--budget", "10m", *_OPTIONS)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(line, cwd=folder, env=user.variables, start_new_session=True, **pipes, **user.options) as one:
        try:
            _wait_for(_baseline_is_measured, one)
            midway()
            _wait_for(_candidate_is_measured, one)
            one.send_signal(signal.SIGINT)
            printed, _ = one.communicate(timeout=SOON_S)
        finally:
            one.kill()
    assert one.returncode in (0, 130), printed  # 0: it had just finished
    assert "Traceback" not in printed
    assert json.loads((folder / "out.json").read_text())["baseline"]


def _in_the_app(folder: Path, midway: Callable[[], object], user: User) -> None:
    """As :func:`_headless`, with the app on a terminal."""
    (folder / "target.py").write_text(TINY_TARGET)
    line = user.line("target.py", "--budget", "10m", *_OPTIONS)
    with OnATerminal(line, folder, user.variables, **user.options) as app:
        app.wait_for(_baseline_is_measured)
        midway()
        app.wait_for(_candidate_is_measured)
        app.process.send_signal(signal.SIGINT)
        code = app.ended()
        shown = app.shown
    assert code in (0, 130), shown[-2000:]
    assert b"Traceback" not in shown
    assert json.loads((folder / "out.json").read_text())["baseline"]


# --- the folder of temporary files ----------------------------------------------------------------------------


def _empty(folder: Path) -> None:
    found = list(folder.iterdir())
    assert found
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)


@fault("disk", "TMPDIR emptied while a session runs")
def _(folder: Path) -> None:
    temporary = folder / "tmp"
    temporary.mkdir()
    _headless(folder, lambda: _empty(temporary), User(environment={"TMPDIR": str(temporary)}))


@fault("disk", "TMPDIR emptied while the app runs")
def _(folder: Path) -> None:
    temporary = folder / "tmp"
    temporary.mkdir()
    _in_the_app(folder, lambda: _empty(temporary), User(environment={"TMPDIR": str(temporary)}))


# --- another user ---------------------------------------------------------------------------------------------


def _other_user(folder: Path) -> User:
    """The user ``nobody``, with a home folder of its own and a shared, sticky folder of temporary files.

    Only root can become somebody else, and that user needs a Python that is not in root's home.
    """
    if os.geteuid() != 0:
        raise unittest.SkipTest("only root can become another user")
    shared, home = folder / "shared", folder / "home"
    for path, mode in ((folder, 0o755), (shared, 0o1777), (home, 0o755)):
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    os.chown(home, _NOBODY, _NOBODY)
    state = home / "state"
    os.environ["PERF_ADVISOR_STATE"] = str(state)  # of :func:`at_home`, for reading the journal here
    environment = {
        "HOME": str(home),
        "TMPDIR": str(shared),
        "PERF_ADVISOR_STATE": str(state),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return User(_python_of_all(), environment, _AS_NOBODY)


@functools.cache
def _python_of_all() -> str:
    """A Python of this version that every user can run, with the packages of this one."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        line = [python, "-c", "import advisor, importlib.util; assert importlib.util.find_spec('torch')"]
        with contextlib.suppress(OSError):
            done = subprocess.run(line, env=User().variables, cwd="/", capture_output=True, check=False, **_AS_NOBODY)
            if done.returncode == 0:
                return python
    raise unittest.SkipTest("another user can run no Python that has PyTorch")


@fault("privacy", "another user with a shared, sticky TMPDIR")
def _(folder: Path) -> None:
    user = _other_user(folder)
    planted = folder / "shared" / f"perf-advisor-{_NOBODY}-planted"  # of root's, under a name of theirs
    planted.mkdir()
    os.utime(planted, (0, 0))
    _headless(folder / "home", lambda: None, user)
    for command in (["report"], ["sessions"], ["export", "--export", "tuned.yaml"]):
        done = user.said(folder / "home", *command)
        assert done.returncode == 0, done.stderr
    with OnATerminal(
        user.line("open", open_session().session_id), folder / "home", user.variables, **user.options
    ) as app:
        app.wait_for(lambda: b"Result" in app.shown)
        app.process.send_signal(signal.SIGTERM)
        code = app.ended()
        assert code in (0, 130), app.shown[-2000:]
        assert b"Traceback" not in app.shown
    state = folder / "home" / "state"
    assert {path.stat().st_uid for path in (state, *state.rglob("*"))} == {_NOBODY}
    assert planted.is_dir()


CLOSED = {
    "a target in a folder that one may not enter": ["closed/target.py", "--headless"],
    "a config in a folder that one may not enter": ["demo", "--config", "closed/c.yaml"],
    "recipes in a folder that one may not enter": ["demo", "--recipes", "closed"],
    "an output in a folder that one may not enter": ["demo", "--json", "closed/out.json"],
    "a script in a folder that one may not enter": ["demo", "--script", "closed/s.py"],
    "a target that one may not read": ["unreadable.py", "--headless"],
}


def _closed(folder: Path) -> User:
    user = _other_user(folder)
    home = folder / "home"
    (home / "closed").mkdir()
    for name in ("closed/target.py", "closed/c.yaml", "closed/s.py", "unreadable.py"):
        (home / name).write_text(TINY_TARGET)
    for name in ("closed", "unreadable.py"):
        (home / name).chmod(0)
    return user


def _refused(folder: Path, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
    user = _closed(folder)
    user = replace(user, environment={**user.environment, **(environment or {})})
    done = user.said(folder / "home", *arguments)
    assert done.returncode in (2, 3), done.stderr
    assert "a bug" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("perf-advisor: ")]
    assert "cannot be" in line or "Permission denied" in line


for _name, _arguments in CLOSED.items():
    fault("command line", _name)(lambda folder, arguments=_arguments: _refused(folder, arguments))


@fault("command line", "a state folder that one may not enter")
def _(folder: Path) -> None:
    state = {"PERF_ADVISOR_STATE": str(folder / "home" / "closed")}
    _refused(folder, ["demo", "--headless"], state)


# --- the streams of the command itself ------------------------------------------------------------------------

STREAMS = {
    "standard output on /dev/full": (">/dev/full", 2),
    "standard error on /dev/full": ("2>/dev/full", 0),
    "standard output closed": (">&-", 0),
    "all standard streams closed": ("<&- >&- 2>&-", 0),
}


def _redirected(folder: Path, redirection: str, code: int) -> None:
    """A report of a recorded session with some of its streams elsewhere: its files are written all the same."""
    journaled(sample_history())
    line = User().line("report", "--json", "out.json", "--report", "out.md")
    shell = ["bash", "-c", f'"$@" {redirection}', "bash", *line]
    done = subprocess.run(shell, env=User().variables, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert all((folder / name).stat().st_size for name in ("out.json", "out.md"))
    assert not list((folder / "state").glob("crash-*"))
    refused = [line for line in done.stderr.splitlines() if line.startswith("perf-advisor: ")]
    assert len(refused) == (1 if code else 0), done.stderr


for _name, (_redirection, _code) in STREAMS.items():
    fault("disk", _name)(lambda folder, to=_redirection, code=_code: _redirected(folder, to, code))
