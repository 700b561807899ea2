"""Ranks lent to a session on another machine: torchrun started for each of its trials, with the same options."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from advisor.figures.formatting import counted
from advisor.process.household import OURS, SAFE_PATH
from advisor.trial.starting import RANK, program

# A session on several machines has ended, or searches on one GPU, when it asks for nothing. Seconds.
_PATIENCE_S = 1800.0
_PAUSE_S = 0.5


def follow(launch: Sequence[str], gpus: int, say: Callable[[str], None]) -> None:
    """Take part in trials until none was asked for within a limit. ``gpus``: this machine's, 0 for all."""
    numbers = ["--nproc-per-node", str(gpus or "gpu"), "--no-python"]
    command = [sys.executable, "-P", "-m", "torch.distributed.run", *launch, *numbers, *program(RANK, "")]
    environment = {SAFE_PATH: OURS, **os.environ}
    last = time.monotonic()
    trials = 0
    while time.monotonic() - last < _PATIENCE_S:
        ended = subprocess.run(command, env=environment, check=False)  # noqa: S603 - our own interpreter
        if ended.returncode == 0:
            trials, last = trials + 1, time.monotonic()
            say(f"took part in {counted(trials, 'trial')}")
        time.sleep(_PAUSE_S)
    say("no trial was asked for any more")
