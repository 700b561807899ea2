"""Logs keep their beginning and their end, whatever a target prints."""

import os

import pytest
from planted import TINY_TARGET
from trial_processes import spec_of

from advisor.records import Outcome
from advisor.runner import log_files
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


LOUD = TINY_TARGET.replace(
    "def build():\n",
    "def build():\n    import os, sys\n    print('the beginning', flush=True)\n"
    "    for _ in range({times}): os.write(1, b'x' * 2**20)\n    print('the end', flush=True)\n{then}",
)


def trial(tmp_path, then=""):
    text = LOUD.replace("{times}", "300").replace("{then}", then)
    (tmp_path / "target.py").write_text(text, encoding="utf-8")
    return spec_of(tmp_path, "target.py", measure_s=0.01, log_path=str(tmp_path / "trial.log"))


@pytest.mark.process
def test_a_target_that_prints_without_end_fills_no_disk(tmp_path):
    result = Runner().run(trial(tmp_path), lambda message: None)
    assert result.outcome is Outcome.MEASURED, result.reason
    log = (tmp_path / "trial.log").read_bytes()
    assert len(log) < 1.1 * MIB
    assert log.startswith(b"the beginning\n")
    assert b"the end\n" in log
    assert (tmp_path / "trial.log").stat().st_mode & 0o077 == 0


@pytest.mark.process
def test_its_last_words_are_told_though_the_middle_was_cut_out(tmp_path):
    result = Runner().run(trial(tmp_path, "    sys.exit('the learning rate is missing')\n"), lambda message: None)
    assert result.outcome is Outcome.FAILED
    assert "called sys.exit('the learning rate is missing')" in result.reason
    runner = Runner()
    spec = trial(tmp_path)
    assert runner.build_once(spec.target, 0, str(tmp_path / "build.log"), 60.0) == ""
    assert (tmp_path / "build.log").stat().st_size < 1.1 * MIB
    runner.forget_build()
