"""Trials over several ranks: the request to torchrun, and what such a trial finds."""

from dataclasses import dataclass

# The reason of a trial whose model DistributedDataParallel cannot train unless it looks for them.
UNUSED_PARAMETERS = "parameters got no gradient in a step (DistributedDataParallel)"


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a trial that runs on torchrun."""

    ranks: int  # their number on this machine, a GPU for each
    options: tuple[str, ...] = ()  # given to torchrun as they are
    machines: int = 1  # that take part, with as many ranks each
    script: bool = False  # the target is a script for torchrun: it joins the ranks, and divides its data, itself


@dataclass(frozen=True, slots=True)
class RanksFound:
    """The findings of a trial over several ranks, by the first of them."""

    global_batch: int
    batch_per_rank: int
    peak_reserved_bytes: tuple[int, ...]  # of each rank
    alone_ms: tuple[float, ...] = ()  # each rank's step without communication; empty where there is none such
    exposed_ms: float | None = None  # communication in a step that no computation hides; None where unknown
    straggler_share: float | None = None  # of the step, for which the fastest rank waits for the slowest


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A rank's first message to the process that launched it."""

    rank: int
    pid: int
