"""The command ``mcp``, which serves coding agents, and ``follow``, which lends this machine's GPUs to a session.

The session runs on another machine; ``follow`` starts torchrun once for each of its trials.
"""

import os
import subprocess
import sys
import time

from advisor.cli.options import RENDEZVOUS
from advisor.cli.parser import Parser, launch_of, say
from advisor.errors import UsageError
from advisor.figures.formatting import counted
from advisor.process.household import OURS, SAFE_PATH
from advisor.trial.starting import RANK, program

# If no trial starts for so long, the session on the other machine is taken to have ended. Seconds.
_PATIENCE_S = 1800.0
_PAUSE_S = 0.5


def run_mcp(arguments: list[str]) -> None:
    """Serve coding agents over standard input and output, by the Model Context Protocol.

    Its tools: inspect, measure, progress, result, cancel, explain, diff, export, ab. Start it in the folder of your
    code.
    """
    Parser("mcp", run_mcp.__doc__).parse(arguments)
    from advisor.agents.server import serve

    serve()


def run_follow(arguments: list[str]) -> None:
    """Lend this machine's GPUs to a session on another, until that has ended."""
    parser = Parser("follow", run_follow.__doc__)
    parser.add("--gpus", default=1, help="this machine's GPUs, or all")
    parser.add(*RENDEZVOUS)
    options = parser.parse(arguments)
    if options.machines == 1:
        raise UsageError("there is no session to follow.", "Give the session's own --nnodes and --rdzv-endpoint.")
    numbers = ["--nproc-per-node", str(options.gpus or "gpu"), "--no-python"]
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", *launch_of(options), *numbers]
    environment = {SAFE_PATH: OURS, **os.environ}
    last, trials = time.monotonic(), 0
    while time.monotonic() - last < _PATIENCE_S:
        ended = subprocess.run([*torchrun, *program(RANK, "")], env=environment, check=False)  # noqa: S603 - our own
        if ended.returncode == 0:
            trials, last = trials + 1, time.monotonic()
            say(f"took part in {counted(trials, 'trial')}")
        time.sleep(_PAUSE_S)
    say("no trial was asked for any more")
