"""``perf-advisor follow``: this machine's GPUs for a session on another."""

from collections.abc import Sequence

from advisor.cli.options import RENDEZVOUS
from advisor.cli.parser import Parser, launch_of, say
from advisor.errors import ExitCode, UsageError


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
    from advisor.runner.follower import follow

    follow(launch_of(options), options.gpus, say)
    return ExitCode.OK
