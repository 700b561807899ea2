"""Signals that end perf-advisor, in bursts, at any moment: what was asked for is written, and there is no traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from on_a_terminal import OnATerminal
from planted import TINY_TARGET
from trial_processes import until

from advisor.process import interrupts
from advisor.process.interrupts import INTERRUPTS, Interrupts

SOON_S = 60.0
RESTORED_S = 5.0  # generous: it takes 0.3 s where nothing else runs
EVERY = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", EVERY)
def test_a_signal_is_noted_and_a_burst_counts_once(number):
    taken, told = Interrupts(), []
    before = signal.getsignal(number)
    with taken.handled(), taken.obeyed_by(lambda: told.append(number)):
        for _ in range(5):
            os.kill(os.getpid(), number)
        assert (taken.asked, taken.urgent) == (True, False)
    assert told == [number] * 5
    assert signal.getsignal(number) is before


def test_the_second_is_urgent_a_moment_later(monkeypatch):
    monkeypatch.setattr(interrupts, "SAME_SIGNAL_S", 0.0)
    taken = Interrupts()
    with taken.handled(), taken.obeyed_by():
        os.kill(os.getpid(), signal.SIGINT)
        assert not taken.urgent
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        assert taken.urgent


def test_where_nobody_looks_the_first_waits_and_the_second_interrupts(monkeypatch):
    monkeypatch.setattr(interrupts, "_BEGINS_WITHIN_S", 0.0)
    taken, told = Interrupts(), []
    with taken.handled():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with taken.obeyed_by(lambda: told.append(1)):
            assert told == [1]


def test_a_command_that_measures_nothing_is_interrupted_at_once():
    taken = Interrupts()
    with taken.handled():
        taken.at_once()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with taken.handled():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            taken.at_once()


def test_nohup_and_other_threads_are_left_alone():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts().handled():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    worker = threading.Thread(target=lambda: Interrupts().handled().__enter__())
    worker.start()
    worker.join()
    assert not INTERRUPTS.asked


@pytest.mark.process
@pytest.mark.usefixtures("own_state")
def test_a_session_that_is_interrupted_in_its_first_seconds_leaves_what_was_asked_for(tmp_path):
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    command = [sys.executable, "-m", "advisor", "target.py:build", "--headless", "--json", "out.json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen([*command, "--device", "cpu"], cwd=tmp_path, text=True, start_new_session=True, **pipes)
    assert until(lambda: takes_signals(process.pid), SOON_S)  # not before, however busy the machine is
    time.sleep(1.0)
    for _ in range(30):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.05)
    printed, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert json.loads((tmp_path / "out.json").read_text())["cancelled"] is True, printed


def ended_by(number, folder, asks):
    """A session in the app on a terminal, which gets a signal once it takes them and ``asks`` says so of what is shown.

    Returns its exit code, all that it showed, and the seconds that it took to switch the terminal back or to end.
    """
    (folder / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    outputs = ["--json", "out.json", "--report", "out.md", "--export", "tuned.yaml"]
    command = [sys.executable, "-m", "advisor", "target.py", "--device", "cpu", "--budget", "60s", *outputs]
    with OnATerminal(command, folder, {"PERF_ADVISOR_STATE": str(folder / "s"), "OMP_NUM_THREADS": "1"}) as app:
        app.wait_for(lambda: takes_signals(app.process.pid))
        app.wait_for(lambda: asks(app.shown))
        app.process.send_signal(number)
        restored_s = app.wait_for(lambda: b"\x1b[?1049l" in app.shown)
        return app.ended(), app.shown, restored_s


def takes_signals(pid):
    """Whether a process has a handler of its own for SIGTERM, and so for the others."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def assert_restored(shown):
    """What the app switched on is off again."""
    for switched_on, switched_off in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?1000h", b"\x1b[?1000l")):
        assert shown.rfind(switched_off) >= shown.rfind(switched_on)
    assert b"Traceback" not in shown


@pytest.mark.process
@pytest.mark.parametrize(("number", "measured"), [(signal.SIGHUP, False), (signal.SIGTERM, True)])
def test_the_app_leaves_its_screen_and_writes_what_was_asked_for(tmp_path, number, measured):
    def asks(shown):
        sessions = (path.read_text() for path in (tmp_path / "s").rglob("*.jsonl"))
        return b"Result" in shown and (not measured or any("BaselineMeasured" in session for session in sessions))

    code, shown, restored_s = ended_by(number, tmp_path, asks)
    assert code == 130, shown[-2000:]
    assert b"\x1b[?1049h" in shown
    assert restored_s < RESTORED_S
    assert_restored(shown)
    assert json.loads((tmp_path / "out.json").read_text())["cancelled"] is True
    assert [(tmp_path / name).exists() for name in ("out.md", "tuned.yaml")] == [measured, measured]


@pytest.mark.process
def test_after_a_signal_in_the_first_moment_no_app_is_opened(tmp_path):
    code, shown, _ = ended_by(signal.SIGINT, tmp_path, lambda shown: True)
    assert code == 130, shown[-2000:]
    assert b"\x1b[?1049h" not in shown
