"""Logs keep their beginning and their end, and tell the calls of a process that was given up, or what it waits for."""

import os
from pathlib import Path

import pytest
from planted import TINY_TARGET
from trial_processes import spec_of

from advisor.process import logs
from advisor.records import Outcome
from advisor.runner import log_files
from advisor.runner.trial_process import advice
from advisor.runner.trials import Runner

MIB = 2**20


def test_the_middle_of_a_long_log_is_cut_out_while_its_process_appends(tmp_path):
    path = tmp_path / "a.log"
    log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    os.write(log, b"first\n" + b"x" * 5 * MIB + b"\nlast")
    log_files.shorten(str(path), 10 * MIB)
    assert path.stat().st_size > 5 * MIB
    log_files.shorten(str(path), 4 * MIB)
    os.write(log, b" word")
    os.close(log)
    text = path.read_bytes()
    assert text.startswith(b"first\n")
    assert text.endswith(b"\nlast word")
    assert b"4.00 MiB of output are left out here" in text
    assert len(text) < 1.1 * MIB
    log_files.shorten(str(tmp_path / "gone"), 1)


@pytest.mark.parametrize("call", ["pread", "ftruncate"])
def test_what_is_appended_while_a_log_is_cut_stays(tmp_path, monkeypatch, call):
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 9000)
    real = getattr(os, call)

    def appended_after(*args):
        result = real(*args)
        monkeypatch.undo()
        with path.open("ab") as log:
            log.write(b"the end\n")
        return result

    monkeypatch.setattr(log_files.os, call, appended_after)
    log_files.shorten(str(path), 4000)
    assert b"the end\n" in path.read_bytes()


def test_a_process_that_writes_without_a_pause_is_cut_all_the_same(tmp_path, monkeypatch):
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 9000)
    monkeypatch.setattr(log_files.os, "pread", lambda log, most, place: b"more\n")
    log_files.shorten(str(path), 4000)
    assert path.stat().st_size < 4100


LOUD = TINY_TARGET.replace(
    "def build():\n",
    "def build():\n    import os, sys\n    print('the beginning', flush=True)\n"
    "    for _ in range(300): os.write(1, b'x' * 2**20)\n"
    "    import time; time.sleep(1); print('the end', flush=True)\n",  # no cut is under way then
)


@pytest.mark.process
def test_a_target_that_prints_without_end_fills_no_disk(tmp_path):
    (tmp_path / "target.py").write_text(LOUD, encoding="utf-8")
    spec = spec_of(tmp_path, "target.py", measure_s=0.01, log_path=str(tmp_path / "trial.log"))
    result = Runner().run(spec, lambda message: None)
    assert result.outcome is Outcome.MEASURED, result.reason
    log = (tmp_path / "trial.log").read_bytes()
    assert len(log) < 1.1 * MIB
    assert log.startswith(b"the beginning\n")
    assert b"the end\n" in log
    assert (tmp_path / "trial.log").stat().st_mode & 0o077 == 0


OWN = '  File "/home/me/train.py", line 3 in build'
HINT = "Mend what hangs."


def stack(tmp_path: Path, *calls: str) -> str:
    log = tmp_path / "trial.log"
    log.write_text(f"printed before\nStack {logs.STACK_BEGINS}" + "\n".join(calls), encoding="utf-8")
    return logs.last_stack(str(log))


@pytest.mark.parametrize(
    ("library", "hinted", "shows"),
    [
        *[
            (library, "network", False)
            for library in ("site-packages/huggingface_hub/utils/_http.py", "ssl.py", "site-packages/requests/api.py")
        ],
        ("multiprocessing/popen_fork.py", "a process that it had started", True),
        ("site-packages/torch/multiprocessing/spawn.py", "a process that it had started", True),
        ("threading.py", HINT, True),
    ],
)
def test_what_a_process_waits_for_is_told_and_its_own_calls_where_they_help(tmp_path, library, hinted, shows):
    in_library = f'  File "{Path(os.__file__).parent}/{library}", line 5 in wait'
    hint, details = advice(stack(tmp_path, *[in_library] * 20, OWN), HINT)
    assert hinted in hint
    assert details.splitlines()[1:] == [OWN] * shows
    assert advice(stack(tmp_path, in_library), HINT) == (hint, "")
    assert logs.last_words(str(tmp_path / "trial.log")) == "printed before"
