"""What is told of a process that was given up: the calls that it is in, or that it waits for another machine."""

from pathlib import Path

import pytest

from advisor.process.stacks import last_stack
from advisor.process.streams import STACK_BEGINS
from advisor.runner.trial_process import advice

OWN = '  File "/home/me/train.py", line 3 in build'
HINT = "Mend what hangs."


def stack(tmp_path: Path, *calls: str) -> str:
    log = tmp_path / "trial.log"
    log.write_text(f"printed before\n{STACK_BEGINS}\n" + "\n".join((*calls, OWN)), encoding="utf-8")
    return last_stack(str(log))


@pytest.mark.parametrize(
    "library", ["site-packages/huggingface_hub/utils/_http.py", "python3.11/ssl.py", "site-packages/requests/api.py"]
)
def test_a_process_that_waits_for_another_machine_says_so_in_two_lines(tmp_path, library):
    hint, details = advice(stack(tmp_path, f'  File "/usr/lib/{library}", line 5 in get'), HINT)
    assert "network" in hint
    assert not details


@pytest.mark.parametrize("library", ["multiprocessing/popen_fork.py", "site-packages/torch/multiprocessing/spawn.py"])
def test_a_process_that_waits_for_one_of_its_own_says_so_and_shows_where(tmp_path, library):
    hint, details = advice(stack(tmp_path, f'  File "/usr/lib/python3.11/{library}", line 5 in wait'), HINT)
    assert "a process that it had started" in hint
    assert "train.py" in details


def test_a_process_that_hangs_elsewhere_shows_where(tmp_path):
    hint, details = advice(stack(tmp_path, '  File "/usr/lib/python3.11/threading.py", line 5 in wait'), HINT)
    assert hint == HINT
    assert "train.py" in details
    assert "threading.py" in details
