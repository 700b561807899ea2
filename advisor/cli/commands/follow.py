"""``perf-advisor follow``: this machine's GPUs for a session on another."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.cli.parser import Parser, add_rendezvous, gpus_of, launch_of
from advisor.errors import ExitCode, UsageError


@dataclass(frozen=True, slots=True)
class Follow:
    """Take part in the trials of a session on another machine, with these options of torchrun."""

    launch: tuple[str, ...]
    gpus: int

    def run(self) -> int:
        """Follow until the session asks for nothing more, and return the exit code."""
        from advisor.runner.follower import follow

        follow(self.launch, self.gpus, lambda text: print(text, file=sys.stderr, flush=True))
        return ExitCode.OK


def parse(arguments: Sequence[str]) -> Follow:
    """The options of this command. Raises UsageError."""
    parser = Parser("perf-advisor follow", "Lend this machine's GPUs to a session on another, until that has ended.")
    parser.option("--gpus", metavar="N", read=gpus_of, default=1, help="this machine's GPUs, or all")
    add_rendezvous(parser)
    options = parser.parse(arguments)
    if options.nnodes == 1:
        raise UsageError(
            "there is no session to follow.",
            "Give the --nnodes and --rdzv-endpoint that the session on the first machine has.",
        )
    return Follow(launch_of(options), options.gpus)
