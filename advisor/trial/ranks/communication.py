"""Figures that ranks exchange, and the time that they spend on communication and wait for each other."""

import datetime
import os
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from advisor.machine.device import backend_of
from advisor.recipe.plan import StepPlan
from advisor.records import Block
from advisor.records.kinds import COLLECTIVES
from advisor.step.graph import GraphedStep
from advisor.step.spread import synchronise_gradients
from advisor.trial.measurement.clock import StepClock, steps_in
from advisor.trial.profile.recording import busy_us, is_range


class Peers:
    """This rank among all. Every method is called by all ranks at once."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self.device = device
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            COLLECTIVES[device.type],
            timeout=datetime.timedelta(seconds=timeout_s),
            device_id=device if backend_of(device).has_memory else None,
        )

    def gathered(self, value: Any) -> list[Any]:
        """Each rank's value."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found


class SharedClock(StepClock):
    """Times blocks that all ranks run: each takes as long as the slowest rank, and has the samples of all.

    So all ranks decide alike when they are warm, and when they have measured enough.
    """

    def __init__(self, device: torch.device, run_steps: Callable[[int], int], peers: Peers) -> None:
        super().__init__(device, run_steps)
        self.peers = peers

    def run(self, steps: int) -> Block:
        """Time a block in all ranks."""
        block = super().run(steps)
        seconds, samples = zip(*self.peers.gathered((block.seconds, block.samples)), strict=True)
        return Block(steps, sum(samples), max(seconds))

    def blocks(self, steps: int, enough: Callable[[list[Block]], bool], *, ahead: int = 0) -> list[Block]:
        """Time blocks one by one, until there are enough."""
        blocks: list[Block] = []
        while not enough(blocks):
            blocks.append(self.run(steps))
        return blocks


# Steps without communication, one by one: as many as fit into this time, within bounds. Seconds, counts.
_ALONE_S = 1.0
_FEWEST_ALONE, _MOST_ALONE = 6, 40
_PROFILED_STEPS = 4
_COMMUNICATION = "nccl"


def exposed_ms(clock: StepClock, peers: Peers) -> float | None:
    """Milliseconds of a step in which only NCCL's kernels run; None where there is no profiler that sees them.

    All ranks ask at once. The slowest waits for nobody, so the least of their times is communication.
    """
    if not backend_of(peers.device).is_ahead:
        return None
    clock.run(1)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        clock.run(_PROFILED_STEPS)
    kernels = [one for one in profiler.events() or () if one.device_type == DeviceType.CUDA and not is_range(one)]
    computing = [one for one in kernels if _COMMUNICATION not in one.name.lower()]
    seen = len(computing) < len(kernels)
    own_ms = (busy_us(kernels) - busy_us(computing)) / 1e3 / _PROFILED_STEPS if seen else None
    everywhere = peers.gathered(own_ms)
    return None if None in everywhere else min(everywhere)


def steps_alone(step: Any, clock: StepClock, step_s: float, plan: StepPlan, peers: Peers) -> list[list[float]]:
    """The ms of each rank's single steps that exchange nothing; empty where a step cannot leave the exchange out."""
    if plan.strategy != "ddp" or plan.static_graph or plan.no_sync or isinstance(step, GraphedStep):
        return []
    count = max(_FEWEST_ALONE, min(_MOST_ALONE, steps_in(_ALONE_S, step_s)))  # the same in all ranks
    synchronise_gradients(step.model, wanted=False)
    clock.run(2)
    everywhere = peers.gathered([clock.run(1).step_ms for _ in range(count)])
    synchronise_gradients(step.model, wanted=True)
    return everywhere


def straggler_share(everywhere: list[list[float]]) -> float | None:
    """The share of a step for which the fastest rank waits for the slowest, 0 to 1; None without steps.

    ``everywhere`` are the ms of each rank's steps. In each step another rank may be the slowest.
    """
    steps = list(zip(*everywhere, strict=True))
    usual_ms = median(max(times) for times in steps) if steps else 0.0
    return median(max(times) - min(times) for times in steps) / usual_ms if usual_ms else None
