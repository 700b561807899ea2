"""Real sessions on bad input, and the command in a separate process. test_bad_input_search.py tests the decisions."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from planted import TINY_TARGET
from real_session import Run

from advisor.errors import ExitCode
from advisor.experiment import events
from advisor.export.json_report import report

pytestmark = pytest.mark.usefixtures("real_sessions")

LONGEST_S = 300.0  # generous: the machine may be loaded
SOON_S = 30.0  # the fork server imports torch before it looks at anything else


@pytest.fixture
def command(tmp_path):
    """Run ``perf-advisor`` on a target's text, in a separate process and a new folder."""

    def start(text, *arguments):
        (tmp_path / "target.py").write_text(text, encoding="utf-8")
        line = [sys.executable, "-m", "advisor", "target.py", "--headless", "--device", "cpu", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, cwd=tmp_path, text=True, start_new_session=True, **pipes)

    return start


def test_a_target_that_fails_ends_the_session(tmp_path):
    run = Run(tmp_path, TINY_TARGET.replace("return 1.0 * x", "raise MemoryError('no room')")).run()
    (failure,) = run.posted(events.SessionFailed)
    assert "could not be measured: no room" in failure.message
    assert failure.hint
    assert failure.exit_code == ExitCode.TARGET
    assert isinstance(run.told[-1], events.SessionFinished)
    assert json.dumps(report(run.state, run.request, "0"), allow_nan=False)
    run.session.rework()
    run.session.retry("zero_grad=zeros")
    assert isinstance(run.told[-1], events.SessionFinished)


PRINTS_MUCH = TINY_TARGET.replace("return 1.0 * x", "print('x' * 5_000); return 1.0 * x")


def test_a_second_is_enough_for_the_baseline_and_what_the_model_prints_stays_in_its_logs(command):
    process = command(PRINTS_MUCH, "--budget", "1s", "--only", "zero_grad,threads")
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == ExitCode.OK, err
    assert "xxxx" not in out + err
    assert "baseline: " in err
    assert "no candidate was tried" in " ".join(out.split())  # the name of the processor may break the line
    assert "raise --budget" in out
    told = " ".join(out.split())
    assert re.search(r"The budget of \S+ s left no time for a result; give it --budget \d+m or more", told)


def test_an_interruption_in_the_baseline_says_that_nothing_was_measured_and_how_to_go_on(command, tmp_path):
    hanging = TINY_TARGET.replace("torch.manual_seed(0)", "import time; time.sleep(3600)")
    process = command(hanging, "--json", str(tmp_path / "out.json"))
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "measuring the baseline" in line:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, while the fork server imports torch
    out, rest = process.communicate(timeout=SOON_S)
    assert process.returncode == ExitCode.INTERRUPTED, rest
    assert out == ""
    assert rest.splitlines()[0] == "stopping; what was measured is kept (once more to leave at once)"
    assert rest.splitlines()[-1] == "nothing was measured yet; go on with: perf-advisor --resume"
    assert json.loads((tmp_path / "out.json").read_text())["baseline"] is None
