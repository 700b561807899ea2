"""One rank's part of a trial, of a plain model or of a script for torchrun; communication and waits for others."""

import datetime
import gc
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from advisor import records
from advisor.errors import TargetError
from advisor.machine.device import backend_of
from advisor.process.channel import Channel
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Block
from advisor.records.kinds import COLLECTIVES
from advisor.records.parallel import UNUSED_PARAMETERS
from advisor.step.batch import map_tensors, tensors_of
from advisor.step.graph import GraphedStep, captured, refuse_graph
from advisor.step.spread import spread_loader, spread_model, synchronise_gradients
from advisor.step.step import make_step
from advisor.trial.main import Stages
from advisor.trial.measurement.clock import StepClock, batch_samples, measure, steps_in, warm_up
from advisor.trial.measurement.draws import PROBE_LIMIT_S, PROBE_STEPS, Feed
from advisor.trial.measurement.guards import Guards
from advisor.trial.profile.recording import busy_us, is_range
from advisor.trial.timed_loop import components_of, form_of_loss, resident_data, schedules_that_go_on, stepper
from advisor.trial.verify import applied_step
from advisor.workloads.batches import seed_host
from advisor.workloads.loop import Loop

# Steps without communication, one by one: as many as fit into this time, within bounds. Seconds, counts.
_ALONE_S = 1.0
_FEWEST_ALONE, _MOST_ALONE = 6, 40
_PROFILED_STEPS = 4
_COMMUNICATION = "nccl"
_RETURN_PLAIN = "Return the plain model and loader from build(): perf-advisor starts the ranks and divides the batches."


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
    """Times blocks that all ranks run: a block lasts as long as the slowest rank, and has the samples of all ranks.

    Therefore all ranks agree on when they are warm, and when they have measured enough.
    """

    def __init__(self, device: torch.device, run_steps: Callable[[int], int], peers: Peers) -> None:
        super().__init__(device, run_steps)
        self.peers = peers

    def run(self, steps: int) -> Block:
        """Time one block of steps in all ranks."""
        block = super().run(steps)
        seconds, samples = zip(*self.peers.gathered((block.seconds, block.samples)), strict=True)
        return Block(steps, sum(samples), max(seconds))

    def blocks(self, steps: int, enough: Callable[[list[Block]], bool], *, ahead: int = 0) -> list[Block]:
        """Time blocks one by one, until there are enough."""
        blocks: list[Block] = []
        while not enough(blocks):
            blocks.append(self.run(steps))
        return blocks


class OneRank(Stages):
    """The stages of one rank, on the device of its local number; ``deadline`` is of ``time.monotonic()``.

    ``channel`` leads to the launcher, and from the first rank to the session.
    """

    def __init__(self, spec: records.TrialSpec, channel: Channel, deadline: float) -> None:
        device = spec.target.device
        if device != "cpu" and torch.cuda.is_available():  # among those that CUDA_VISIBLE_DEVICES shows
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        else:
            device = "cpu"
        spec = replace(spec, target=replace(spec.target, device=device))
        super().__init__(spec, channel, deadline)


class RankTrial(OneRank):
    """One rank's part of a trial of a plain model, which is spread over the ranks here."""

    def run(self) -> records.TrialResult:
        """Load, divide, wrap, compare the first steps, warm up, measure. Raises what the user's code raises."""
        started = time.perf_counter()
        loop, device = self._load()
        if loop.spread_already:  # under torchrun only
            raise TargetError(f"{loop.spread_already}.", _RETURN_PLAIN)
        build_s = time.perf_counter() - started
        self._say("meeting the other ranks")
        self.peers = Peers(device, self.spec.timeout_s)  # the launcher ends a hang before, and shows its calls
        self._say("applying the settings")
        components = components_of(loop, device, self.catalog, self.spec.settings)
        components.data = self._share(components)
        gc.unfreeze()
        form = form_of_loss(loop, components, self.spec)  # is found with the plain model
        try:
            components.model = spread_model(components.model, components.optimizer, components.plan)
        except (ValueError, TypeError) as problem:
            hint = "Leave this strategy out, or mend the model."
            raise TargetError(f"the model cannot be wrapped: {problem}", hint) from problem
        step = captured(make_step(components, loop.loss, form=form), refuse_graph)
        feed = Feed(resident_data(components), self.spec.seed)
        began = time.perf_counter()
        losses = self._first_losses(step, feed, components)
        clock = SharedClock(device, stepper(step, feed, components.batch_size or 1), self.peers)
        self._say("warming up")
        warm = warm_up(clock, limit_s=self.spec.warmup_limit_s, earlier=len(losses))
        measuring = time.perf_counter()
        self._say("measuring")
        blocks = measure(clock, warm.step_s, self.spec.measure_s)
        ranks = self._ranks(step, clock, blocks, components.plan)
        finite = all(map(math.isfinite, losses))
        return records.TrialResult(
            outcome=records.Outcome.MEASURED if finite else records.Outcome.NON_FINITE,
            reason="" if finite else "the losses of the first steps are not finite",
            batch_size=ranks.global_batch,
            blocks=tuple(blocks),
            peak_reserved_bytes=max(ranks.peak_reserved_bytes),
            build_s=build_s,
            warmup_s=measuring - began,
            warmup_steps=len(losses) + warm.steps,
            measuring_s=time.perf_counter() - measuring,
            losses=tuple(losses),
            notes=tuple(loop.notes),
            ranks=ranks,
        )

    def _share(self, components: Components) -> Any:
        """This rank's part of the data; in one process all of it."""
        rank, ranks = self.peers.rank, self.peers.size
        if isinstance(components.data, DataLoader):
            try:
                return spread_loader(components.data, components.plan, rank, ranks)
            except ValueError as problem:
                raise TargetError(f"the batches cannot be divided: {problem}.", _RETURN_PLAIN) from problem
        if ranks == 1:
            return components.data
        samples = batch_samples(components.data, 0)
        if samples % ranks:
            raise TargetError(
                f"a batch of {samples} cannot be divided among {ranks} GPUs.",
                "Choose a batch size that the number of GPUs divides, with --batch-size.",
            )
        own = slice(rank * samples // ranks, (rank + 1) * samples // ranks)
        shared = map_tensors(lambda one: one[own].contiguous() if one.shape[:1] == (samples,) else one, components.data)
        if batch_samples(shared, 0) == samples or not any(True for _ in tensors_of(shared)):
            raise TargetError(
                f"a batch of the class {type(components.data).__name__} cannot be divided.",
                "Return a DataLoader, or a batch of tensors with one entry for each sample.",
            )
        return shared

    def _first_losses(self, step: Any, feed: Feed, components: Components) -> list[float]:
        """The losses of the first steps, averaged over the ranks: those of one GPU with the same global batch.

        DistributedDataParallel refuses the step after one in which a parameter got no gradient.
        """
        plan = components.plan
        self._say(records.FIRST_STEPS if plan.compiles_with == "none" else records.COMPILING)
        needs_all = plan.strategy == "ddp" and not plan.find_unused_parameters
        unused = False
        seed_host(self.spec.stream_seed)
        losses: list[float] = []
        began = time.perf_counter()
        while len(losses) < PROBE_STEPS:
            try:
                loss = step(feed.next())
            except RuntimeError as error:
                if not unused:
                    raise
                hint = "Set `parallel.find_unused_parameters: true`, or leave these layers out of the model."
                raise TargetError(UNUSED_PARAMETERS, hint) from error
            unused = needs_all and any(one.requires_grad and one.grad is None for one in components.model.parameters())
            everywhere = self.peers.gathered((float(loss), time.perf_counter() - began))
            losses.append(sum(values[0] for values in everywhere) / self.peers.size)
            if len(losses) > 1 and max(values[1] for values in everywhere) > PROBE_LIMIT_S:
                break
        return losses

    def _ranks(self, step: Any, clock: SharedClock, blocks: list[Block], plan: StepPlan) -> records.RanksFound:
        """The findings over all ranks; and the communication between them."""
        exposed, alone = None, list[list[float]]()
        if self.peers.size > 1:
            self._say("looking at the communication")
            own = StepClock(clock.device, clock.run_steps)
            exposed = exposed_ms(own, self.peers)
            alone = steps_alone(step, own, min(block.step_ms for block in blocks) / 1e3, plan, self.peers)
        samples = round(median(block.samples / block.steps for block in blocks))
        return records.RanksFound(
            global_batch=samples,
            batch_per_rank=round(samples / self.peers.size),
            peak_reserved_bytes=tuple(self.peers.gathered(backend_of(clock.device).memory().peak_reserved_bytes)),
            alone_ms=tuple(median(times) for times in alone),
            exposed_ms=exposed,
            straggler_share=straggler_share(alone),
        )


class RankOfScript(OneRank):
    """One rank's part of a trial of a script that is written for torchrun: it runs up to its loop, as in all ranks.

    Rank 0 measures its steps as those of any script. The others take the same steps with no end: in each the ranks wait
    for one another, so rank 0's step takes as long as the slowest rank's.
    """

    def __init__(self, spec: records.TrialSpec, channel: Channel, deadline: float) -> None:
        super().__init__(spec, channel, deadline)
        self._rank = int(os.environ["RANK"])
        self.guards = Guards(watch_gpu=self.spec.target.device != "cpu" and not self._rank)

    def run(self) -> records.TrialResult:
        """Measure in rank 0; in another one take steps until the process is ended."""
        return self._follow() if self._rank else super().run()

    @schedules_that_go_on()
    def _follow(self) -> records.TrialResult:
        loop, device = self._load()
        step: Callable[[Any], Any]
        if self.spec.kind is records.TrialKind.VERIFY:
            step, feed = applied_step(loop, device, self.catalog, self.spec)
        else:
            parts = self._applied(loop, device)
            # Loaders have the ranks meet where an epoch begins, as Accelerate's do, and sharded parameters where one
            # looks at them: what rank 0 does before its steps, and with which batches, is done here too.
            for batch in self._first_batches(parts):
                parts.step(batch)
            step, feed = parts.step, Feed(resident_data(parts.components), self.spec.seed)
        self.channel.send(records.Activity("taking the steps of rank 0"))
        while True:
            step(feed.next())

    def _load(self) -> tuple[Loop, torch.device]:
        loop, device = super()._load()
        if dist.is_initialized():
            group = f"{dist.get_world_size()} ranks ({dist.get_backend()})"
            loop.notes.append(f"measured in {group}: batch, samples per second and memory are those of one")
        return loop, device


def exposed_ms(clock: StepClock, peers: Peers) -> float | None:
    """Milliseconds of a step in which only NCCL's kernels run; None without a profiler that sees them.

    All ranks call it at once. The slowest rank waits for no other, so the least of their times is communication.
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
    """The ms of each rank's single steps without communication; empty if a step cannot leave it out."""
    if plan.strategy != "ddp" or plan.no_sync or isinstance(step, GraphedStep):
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
