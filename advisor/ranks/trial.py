"""A rank of a trial, as a program that torchrun starts: its part of a plain model's trial or of a script's trial."""

import datetime
import math
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Client
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.rendezvous import rendezvous
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from advisor import records
from advisor.errors import TargetError
from advisor.machine.device import backend_of
from advisor.process.channel import Channel
from advisor.process.household import lead_own_group
from advisor.process.logs import flush_streams, redirect_output
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Block
from advisor.records.kinds import COLLECTIVES
from advisor.records.trials import UNUSED_PARAMETERS
from advisor.step.batch import map_tensors
from advisor.step.graph import GraphedStep
from advisor.step.spread import spread_loader, spread_model, synchronise_gradients
from advisor.trial.main import Stages
from advisor.trial.measurement.clock import StepClock, batch_samples, measure, steps_in, warm_up
from advisor.trial.measurement.draws import PROBE_LIMIT_S, PROBE_STEPS, Feed
from advisor.trial.other_loops import applied_step
from advisor.trial.profile.recording import busy_us, is_range
from advisor.trial.raised import result_of
from advisor.trial.timed_loop import feed_of, schedules_that_go_on, stepper
from advisor.workloads.loop import Loop, seed_host

# Time for the machines to meet before a trial is sent.
_MEETING = datetime.timedelta(seconds=60)
# A rank that lost another waits this long before it reports that, so that the other's end is seen first. Seconds.
_OTHER_FIRST_S = 3.0
# Single steps without communication: as many as fit into this time, within these counts. Seconds, counts.
_ALONE_S = 1.0
_FEWEST_ALONE, _MOST_ALONE = 6, 40
_PROFILED_STEPS = 4
_COMMUNICATION = "nccl"
_RETURN_PLAIN = "Return the plain model and loader from build(): perf-advisor starts the ranks and divides the batches."


def gathered(value: Any) -> list[Any]:
    """The value of each rank. All ranks must call it at the same time."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


class SharedClock(StepClock):
    """Times blocks that all ranks run. A block lasts as long as in the slowest rank, so all agree when to end."""

    def run(self, steps: int) -> Block:
        """Time one block of steps in all ranks."""
        block = super().run(steps)
        seconds, samples = zip(*gathered((block.seconds, block.samples)), strict=True)
        return Block(steps, sum(samples), max(seconds))

    def blocks(self, steps: int, enough: Callable[[list[Block]], bool], *, ahead: int = 0) -> list[Block]:
        """Time blocks one by one until there are enough."""
        blocks: list[Block] = []
        while not enough(blocks):
            blocks.append(self.run(steps))
        return blocks


class RankTrial(Stages):
    """One rank's part of a trial of a plain model, which this class spreads over the ranks."""

    def run(self) -> records.TrialResult:
        """Load, divide, wrap, compare the first steps, warm up, measure. Raises any error of the user's code."""
        started = time.perf_counter()
        loop, device = self._load()
        if loop.spread_already:  # in a target for torchrun only
            raise TargetError(f"{loop.spread_already}.", _RETURN_PLAIN)
        build_s = time.perf_counter() - started
        self._say("meeting the other ranks")
        dist.init_process_group(
            COLLECTIVES[device.type],
            timeout=datetime.timedelta(seconds=self.spec.timeout_s),  # the launcher ends a hang earlier, with its calls
            device_id=device if backend_of(device).has_memory else None,
        )
        parts = self._applied(loop, device)
        step, components = parts.step, parts.components
        feed = feed_of(components, self.spec.seed)
        began = time.perf_counter()
        losses = self._first_losses(step, feed, components)
        clock = SharedClock(device, stepper(step, feed, components.batch_size or 1))
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

    def _spread(self, components: Components) -> None:
        components.data = self._share(components)
        try:
            components.model = spread_model(components.model, components.optimizer, components.plan)
        except (ValueError, TypeError) as problem:
            hint = "Leave this strategy out, or change the model."
            raise TargetError(f"the model cannot be wrapped: {problem}", hint) from problem

    def _share(self, components: Components) -> Any:
        """This rank's part of the data; all of it if there is one process."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
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
        if batch_samples(shared, 0) == samples:
            raise TargetError(
                f"a batch of the class {type(components.data).__name__} cannot be divided.",
                "Return a DataLoader, or a batch of tensors with one entry for each sample.",
            )
        return shared

    def _first_losses(self, step: Any, feed: Feed, components: Components) -> list[float]:
        """The losses of the first steps, averaged over the ranks: those of one GPU with the same global batch."""
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
                if not unused:  # DDP fails in the step after one with an unused parameter
                    raise
                hint = "Set `parallel.find_unused_parameters: true`, or leave these layers out of the model."
                raise TargetError(UNUSED_PARAMETERS, hint) from error
            unused = needs_all and any(one.requires_grad and one.grad is None for one in components.model.parameters())
            of_ranks, seconds = zip(*gathered((float(loss), time.perf_counter() - began)), strict=True)
            losses.append(fmean(of_ranks))
            if len(losses) > 1 and max(seconds) > PROBE_LIMIT_S:
                break
        return losses

    def _ranks(self, step: Any, clock: SharedClock, blocks: list[Block], plan: StepPlan) -> records.RanksFound:
        """The results over all ranks, and the communication between them."""
        exposed, alone = None, list[list[float]]()
        if dist.get_world_size() > 1:
            self._say("looking at the communication")
            own = StepClock(clock.device, clock.run_steps)
            exposed = exposed_ms(own)
            alone = steps_alone(step, own, min(block.step_ms for block in blocks) / 1e3, plan)
        samples = round(median(block.samples / block.steps for block in blocks))
        return records.RanksFound(
            global_batch=samples,
            batch_per_rank=round(samples / dist.get_world_size()),
            peak_reserved_bytes=tuple(gathered(clock.backend.memory().peak_reserved_bytes)),
            alone_ms=tuple(median(times) for times in alone),
            exposed_ms=exposed,
            straggler_share=straggler_share(alone),
        )


class RankOfScript(Stages):
    """One rank's part of a trial of a script for torchrun. Like all ranks, it runs the script up to its loop.

    Rank 0 measures its steps as in any script. The other ranks take the same steps without end. The ranks wait for one
    another, so rank 0's step takes as long as the slowest rank's.
    """

    def run(self) -> records.TrialResult:
        """Measure in rank 0; in the other ranks, take steps until the process is ended."""
        return super().run() if os.environ["RANK"] == "0" else self._follow()

    @schedules_that_go_on()
    def _follow(self) -> records.TrialResult:
        loop, device = self._load()
        step: Callable[[Any], Any]
        if self.spec.kind is records.TrialKind.VERIFY:
            step, feed = applied_step(loop, device, self.catalog, self.spec)
        else:
            parts = self._applied(loop, device)
            # Some loaders make the ranks meet at the start of an epoch (Accelerate's), and sharded parameters do when
            # they are read. So this rank does the same as rank 0 before its steps, with the same batches.
            for batch in self._first_batches(parts):
                parts.step(batch)
            step, feed = parts.step, feed_of(parts.components, self.spec.seed)
        self.channel.send(records.Activity("taking the steps of rank 0"))
        while True:
            step(feed.next())

    def _load(self) -> tuple[Loop, torch.device]:
        loop, device = super()._load()
        if dist.is_initialized():
            group = f"{dist.get_world_size()} ranks ({dist.get_backend()})"
            loop.notes.append(f"measured in {group}: batch, samples per second and memory are those of one")
        return loop, device


def exposed_ms(clock: StepClock) -> float | None:
    """Milliseconds of a step in which only NCCL's kernels run; None without a profiler that sees them.

    All ranks must call it at the same time. The slowest rank waits for no other, so the shortest time is communication.
    """
    if not clock.backend.is_ahead:
        return None
    clock.run(1)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        clock.run(_PROFILED_STEPS)
    kernels = [one for one in profiler.events() or () if one.device_type == DeviceType.CUDA and not is_range(one)]
    computing = [one for one in kernels if _COMMUNICATION not in one.name.lower()]
    exposed_us = gathered(busy_us(kernels) - busy_us(computing) if len(computing) < len(kernels) else None)
    return None if None in exposed_us else min(exposed_us) / 1e3 / _PROFILED_STEPS


def steps_alone(step: Any, clock: StepClock, step_s: float, plan: StepPlan) -> list[list[float]]:
    """The ms of each rank's single steps without communication; empty if a step cannot leave it out."""
    if plan.strategy != "ddp" or plan.no_sync or isinstance(step, GraphedStep):
        return []
    count = max(_FEWEST_ALONE, min(_MOST_ALONE, steps_in(_ALONE_S, step_s)))  # the same in all ranks
    synchronise_gradients(step.model, wanted=False)
    clock.run(2)
    everywhere = gathered([clock.run(1).step_ms for _ in range(count)])
    synchronise_gradients(step.model, wanted=True)
    return everywhere


def straggler_share(everywhere: list[list[float]]) -> float | None:
    """The share of a step, 0 to 1, that the fastest rank waits for the slowest, by the ms of each rank's steps."""
    steps = list(zip(*everywhere, strict=True))
    return median(max(times) - min(times) for times in steps) / median(map(max, steps)) if steps else None


@record
def main(address: str) -> None:
    """Run this rank's part of a trial. Errors are sent to the launcher and raised again, so that torchrun sees them.

    ``address`` is the launcher's socket, which sends the trial; empty on a machine that follows another's session.
    """
    lead_own_group()
    channel: Any = SimpleNamespace(send=lambda message: None)  # a machine that follows has no session
    spec: records.TrialSpec | None = None
    deadline = math.inf
    if address:
        connection = Client(address, "AF_UNIX")
        spec, sys.path[:], deadline = connection.recv()
        assert spec is not None
        redirect_output(spec.log_path)
        channel = Channel(connection)
        channel.send(records.RankJoined(int(os.environ["RANK"]), os.getpid()))
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1:  # ranks on the session's machine send it to the others
        meeting, _, _ = next(rendezvous("env://", timeout=_MEETING))
        store = PrefixStore("trial", meeting)  # separate from the process group's keys
        if spec is not None:
            store.set("spec", pickle.dumps(spec).hex())
        spec = pickle.loads(bytes.fromhex(store.get("spec").decode()))  # noqa: S301 - of the same person's session
    assert spec is not None, "torchrun was started for a trial"
    failure: BaseException | None = None
    try:
        device = "cpu"
        if spec.target.device != "cpu" and torch.cuda.is_available():  # one of those that CUDA_VISIBLE_DEVICES shows
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        spec = replace(spec, target=replace(spec.target, device=device))
        by_script = spec.world is not None and spec.world.script
        result = (RankOfScript if by_script else RankTrial)(spec, channel, deadline).run()
    except BaseException as error:  # any error of the user's code is the trial's result
        failure, result = error, result_of(error)
    flush_streams()
    errors = (failure, failure.__cause__) if failure is not None else ()
    # These errors may follow from another rank's end. Gloo's errors have no class, but they name its source file.
    if any(isinstance(one, DistError) or (isinstance(one, RuntimeError) and "gloo/" in str(one)) for one in errors):
        time.sleep(_OTHER_FIRST_S)
    channel.send(result)
    if failure is not None:
        raise failure
    os._exit(0)  # user code may have left threads, and NCCL needs no orderly end
