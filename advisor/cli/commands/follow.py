"""``perf-advisor follow``: this machine's GPUs for a session on another. For each of its trials torchrun is started."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from advisor.cli.options import RENDEZVOUS
from advisor.cli.parser import Parser, launch_of, say
from advisor.errors import ExitCode, UsageError
from advisor.figures.formatting import counted
from advisor.process.household import OURS, SAFE_PATH
from advisor.trial.starting import RANK, program

# A session on several machines has ended, or searches on one GPU, when it asks for nothing. Seconds.
_PATIENCE_S = 1800.0
_PAUSE_S = 0.5


def run(arguments: Sequence[str]) -> int:
    """Take part in a session on another machine until it asks for nothing more. Raises UsageError."""
    parser = Parser("perf-advisor follow", "Lend this machine's GPUs to a session on another, until that has ended.")
    parser.add("--gpus", default=1, help="this machine's GPUs, or all")
    parser.add(*RENDEZVOUS)
    options = parser.parse(arguments)
    if options.machines == 1:
        raise UsageError(
            "there is no session to follow.",
            "Give the --nnodes and --rdzv-endpoint that the session on the first machine has.",
        )
    _follow(launch_of(options), options.gpus)
    return ExitCode.OK


def _follow(launch: Sequence[str], gpus: int) -> None:
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
