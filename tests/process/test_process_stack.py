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
def test_what_a_process_waits_for_is_told_and_its_calls_where_they_help(tmp_path, library, hinted, shows):
    hint, details = advice(stack(tmp_path, f'  File "/usr/lib/python3.11/{library}", line 5 in wait'), HINT)
    assert hinted in hint
    assert ("train.py" in details) is (library in details) is shows
