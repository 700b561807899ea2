"""A trial, from its first instruction in a process of its own to its last message."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

from advisor.errors import AdvisorError, TargetError, TooSlowError
from advisor.figures.formatting import format_ms, format_percent
from advisor.figures.stats import two_modes
from advisor.machine.device import backend_of, named
from advisor.portable.losses import LossError
from advisor.portable.nested import mover
from advisor.portable.plan import StepPlan
from advisor.process.channel import Channel
from advisor.process.household import lead_own_group
from advisor.process.output import flush_streams, redirect_output
from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.records import (
    Activity,
    Block,
    BlockDone,
    Compiled,
    DataPrint,
    Finished,
    Inspected,
    Latency,
    MeasureBlock,
    Mode,
    Outcome,
    Profiled,
    Ready,
    Started,
    TargetFailure,
    TrialKind,
    TrialResult,
    TrialSpec,
)
from advisor.runtime.apply import apply_settings
from advisor.runtime.loader import loop_loader
from advisor.runtime.loop import Loop
from advisor.runtime.step import GraphedStep, InferStep, TrainStep, make_step
from advisor.source.prints import imported_sources
from advisor.target.entrypoint import hint_for, load_target, one_line, user_frames
from advisor.trial.inspection import inspect_loop, versions
from advisor.trial.measurement.clock import (
    BlockTeller,
    StepClock,
    batch_samples,
    block_steps,
    latency_of_calls,
    measure,
)
from advisor.trial.measurement.draws import check_batch_size, check_batches, look_at, note_on, undisturbed
from advisor.trial.measurement.epochs import check_epochs
from advisor.trial.measurement.feed import Feed
from advisor.trial.measurement.guards import Guards
from advisor.trial.measurement.probe import (
    Probe,
    divergence_notes,
    probe_batches,
    probe_inference,
    probe_training,
    scale_of,
)
from advisor.trial.measurement.warmup import WarmUp, warm_up
from advisor.trial.packaging import packaged_result
from advisor.trial.profile.clock_check import check_clocks
from advisor.trial.profile.compilation import compilation_notes, compile_mark, keep_no_kernel_timings
from advisor.trial.profile.habits import stop_debugging, with_habits
from advisor.trial.profile.phases import measure_parts
from advisor.trial.profile.profiler import phases_alone, profile_step
from advisor.trial.reference import reference_result
from advisor.trial.verify import verified_result

_PHASES_LIMIT_S = 0.6
# A warm-up step, two that are timed, and a profile of six; then trials of as many steps each, ten or so.
_FEWEST_BASELINE_STEPS = 9
_BUDGET_PER_BASELINE = 8
# Longest block when two trials alternate, and longest run thrown away before it, as a multiple of the usual block:
# blocks may have to be longer to hold whole epochs. Unitless.
_LONGEST_TURN = 3
_FITTING_BATCH = (
    "Check that the batch fits the model and the loss; a batch is (inputs, target) or a dict of keywords, "
    "and a loss that takes the model names its first parameter `model`."
)
_CPU_ALLOCATOR = "DefaultCPUAllocator: "
# Errors of the driver and of libraries that find no room for their own memory; the allocator is not asked for it.
_NO_DEVICE_MEMORY = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
)


def trial_main(
    spec: TrialSpec,
    connection: Connection,
    asked_at: float,
    *,
    loop: Loop | None = None,
    wait_for_memory: Callable[[], None] = lambda: None,
) -> None:
    """Run one trial and send its messages. ``asked_at`` is the parent's ``time.monotonic()`` when it asked.

    ``loop`` is the workload when it has been built already, by the same steps as here. ``wait_for_memory`` returns when
    the trial before has given back its own.
    """
    startup_s = time.monotonic() - asked_at
    lead_own_group()
    # The fork server's method is handed down to its children; the user's program starts its workers by Python's own.
    multiprocessing.set_start_method(None, force=True)
    redirect_output(spec.log_path)  # first: a trial that was cancelled meanwhile has nobody to talk to, and raises
    channel = Channel(connection)
    channel.send(Started(startup_s))
    started = time.perf_counter()
    try:
        result = Trial(spec, channel, loop, wait_for_memory).run()
    except BaseException as error:  # whatever a trial's code raises is the trial's result
        result = result_of(error, channel)
    wall_s = time.perf_counter() - started
    flush_streams()
    channel.send(Finished(replace(result, startup_s=startup_s, wall_s=wall_s, log_path=spec.log_path)))
    # User code may have left non-daemon threads; everything of the trial has been said.
    os._exit(0)


class Trial:
    """The stages of one trial. Each stage says what it does before it starts."""

    def __init__(
        self, spec: TrialSpec, channel: Channel, loop: Loop | None, wait_for_memory: Callable[[], None]
    ) -> None:
        self.spec = spec
        self.channel = channel
        self.loop = loop
        self.wait_for_memory = wait_for_memory
        self.catalog = load_catalog(spec.recipe_folders)

    def run(self) -> TrialResult:
        """Load, prepare, probe, warm up, measure, profile. Raises what the user's code and the recipes raise."""
        self._say("loading the model")
        # Two that take turns on one GPU would take each other for strangers.
        guards = Guards(watch_gpu=self.spec.target.device != "cpu" and self.spec.kind is not TrialKind.TURNS)
        started = time.perf_counter()
        if self.loop is None:
            torch.manual_seed(self.spec.seed)
        loop = self.loop or load_target(self.spec.target)
        device = named(self.spec.target.device)
        backend_of(device).synchronize()  # to start CUDA takes no memory that another trial could miss
        self.wait_for_memory()
        set_mode(loop.model.to(device), training=loop.mode is Mode.TRAIN)
        build_s = time.perf_counter() - started
        if self.spec.kind in (TrialKind.REFERENCE, TrialKind.VERIFY, TrialKind.PACKAGE):
            return self._of_another_loop(loop, device)

        self._say("applying the settings")
        started = time.perf_counter()
        components = self._components(loop, device)
        gc.unfreeze()  # in the user's program the collector also looks at what is imported and built
        step = make_step(components, loop.loss)
        prepare_s = time.perf_counter() - started

        batches = probe_batches(components.data, self.spec.seed, components.plan)
        loop.notes.extend(settle_loss(step, batches))
        data = self._look_at(loop, components, batches)
        if self.spec.kind is TrialKind.AHEAD:
            keep_no_kernel_timings()
        probing = time.perf_counter()
        probe = self._probe(step, components.plan, batches, loop.hint)
        comparing_s = time.perf_counter() - probing - probe.seconds
        del batches
        if self.spec.kind is TrialKind.AHEAD:
            return TrialResult(Outcome.MEASURED, warmup_s=probe.seconds)
        if self.spec.kind is TrialKind.PAUSING:
            self.channel.send(Compiled())
            self.channel.next_command()
        feed = Feed(resident_data(components), self.spec.seed)
        clock = StepClock(device, stepper(step, feed, components.batch_size or 1))
        if self.spec.kind.inspects and probe.steps:
            self._refuse_hopeless(probe.seconds, probe.usual_step_s)
        warm = self._warm_up(clock, feed, probe.steps)
        warm_mark = compile_mark()
        measuring = time.perf_counter()
        blocks = self._blocks(clock, feed, warm, guards)
        memory = backend_of(device).memory()
        diverged = divergence_notes(probe, step, feed.next()) if probe.losses else ()
        result = TrialResult(
            outcome=Outcome.MEASURED,
            batch_size=components.batch_size,
            blocks=tuple(blocks),
            event_step_ms=clock.percentiles(),
            latency=self._latency(clock, warm, loop.mode),
            peak_allocated_bytes=memory.peak_allocated_bytes,
            peak_reserved_bytes=memory.peak_reserved_bytes,
            device_used_bytes=memory.device_used_bytes,
            build_s=build_s,
            prepare_s=prepare_s,
            warmup_s=probe.seconds + warm.seconds,
            warmup_steps=probe.steps + warm.steps,
            losses=probe.losses,
            outputs=probe.outputs,
            weights=probe.weights,
            parameters=sum(parameter.numel() for parameter in components.model.parameters()),
            skipped_steps=probe.skipped_steps,
            gradients_at_times=probe.gradients_at_times,
            notes=(
                *_notes(warm, loop, clock),
                *note_on(data),
                *diverged,
                *probe.scaler_notes(scale_of(step)),
                *compilation_notes(warm_mark),
            ),
            disturbed=guards.disturbed,
            energy_j_per_sample=guards.energy_j_per_sample(blocks),
            gpu=guards.gpu,
            data=replace(data, fed=feed.prints) if data is not None else None,
        )
        if self.spec.kind is TrialKind.PROFILE:
            self._profile(step, feed, clock, blocks)
        elif self.spec.kind is TrialKind.BASELINE and components.has_loader:
            self._look_at_the_input(step, feed, blocks)
        elif self.spec.times_phases:
            result = replace(result, phases=measure_parts(step, feed, limit_s=_PHASES_LIMIT_S))
        return replace(result, measuring_s=comparing_s + time.perf_counter() - measuring)

    def _latency(self, clock: StepClock, warm: WarmUp, mode: Mode) -> Latency | None:
        """The latency of single calls: of inference alone, and not while another trial waits for its turn."""
        if mode is not Mode.INFER or self.spec.kind is TrialKind.TURNS:
            return None
        return latency_of_calls(clock, warm.step_s, self.spec.measure_s)

    def _of_another_loop(self, loop: Loop, device: torch.device) -> TrialResult:
        """The result of a trial that does not run the timed loop: its own steps, or those of a plain loop."""
        if self.spec.kind is TrialKind.REFERENCE:
            self._say("first steps in a higher precision")
            return reference_result(loop, device, self.catalog, self.spec)
        if self.spec.kind is TrialKind.PACKAGE:
            self._say("compiling the model to a file")
            return packaged_result(loop, device, self.catalog, self.spec)
        self._say("timing a plain loop")
        return verified_result(loop, device, self.catalog, self.spec)

    def _say(self, text: str) -> None:
        self.channel.send(Activity(text))

    def _inspect(self, loop: Loop, device: torch.device, batches: list[Any]) -> None:
        with undisturbed(loop.data):
            facts = inspect_loop(loop, device, batches)
        self.channel.send(Inspected(facts, versions(), imported_sources()))

    def _look_at(self, loop: Loop, components: Components, batches: list[Any]) -> DataPrint | None:
        """Describe the first batches, for the comparison with other trials; in the baseline, collect all the facts."""
        if self.spec.kind.inspects:
            check_batches(batches, of_loader=components.has_loader)
            self._inspect(loop, torch.device(components.plan.device), batches)
        if components.batch_size != loop.batch_size:
            check_batch_size(components.data)
        else:
            check_epochs(loop.data, components.data, self.spec.seed)
        return look_at(components.data, batches, self.spec.seed, components.plan, twice=self.spec.kind.inspects)

    def _components(self, loop: Loop, device: torch.device) -> Components:
        plan = StepPlan(mode=loop.mode, device=str(device), clip_norm=loop.clip_norm)
        data = loop.make_batch or loop.data
        components = loop.components(plan, data)
        apply_settings(self.catalog, components, {**loop.current, **self.spec.settings})
        if loop.make_batch is not None:
            resized = components.batch_size != loop.batch_size and components.batch_size is not None
            components.data = loop.make_batch(components.batch_size or 1) if resized else loop.data
        return components

    def _probe(self, step: Any, plan: StepPlan, batches: list[Any], hint: str) -> Probe:
        """The first steps. They also compile, so they count as warm-up."""
        self._say("first steps" if plan.compiles_with == "none" else "compiling")
        probe = probe_training if plan.mode is Mode.TRAIN else probe_inference
        try:
            return probe(step, batches, self.spec.stream_seed)
        except (torch.OutOfMemoryError, AdvisorError):
            raise
        except Exception as error:
            if not self.spec.kind.inspects:
                raise
            if isinstance(error, LossError):
                raise TargetError(error.message, error.hint) from error
            raise TargetError(
                f"the first step failed: {one_line(error)}",
                hint_for(error, hint or _FITTING_BATCH),
                user_frames(error),
            ) from error

    def _refuse_hopeless(self, spent_s: float, step_s: float) -> None:
        """Say at once, not at the time-out, that steps are too long for the budget."""
        needed_s = spent_s + _FEWEST_BASELINE_STEPS * step_s
        if needed_s < self.spec.timeout_s:
            return
        minutes = math.ceil(_BUDGET_PER_BASELINE * needed_s / 60)
        raise TooSlowError(
            f"one step takes about {step_s:.0f} s: measuring the baseline alone needs {needed_s:.0f} s, more than the "
            f"{self.spec.timeout_s:.0f} s that the budget leaves for it.",
            f"Give it time with --budget {minutes}m, or a shorter step with --batch-size.",
        )

    def _warm_up(self, clock: StepClock, feed: Feed, probed_steps: int) -> WarmUp:
        self._say("warming up")
        queued = feed.queued_batches
        return warm_up(
            clock,
            limit_s=self.spec.warmup_limit_s,
            at_least=queued + 1 if queued else 0,
            cold=not probed_steps,
            cycle_of=feed.cycle,
        )

    def _blocks(self, clock: StepClock, feed: Feed, warm: WarmUp, guards: Guards) -> list[Block]:
        watching = guards.watching(clock.backend.identity().uuid)
        if self.spec.kind is not TrialKind.TURNS:
            self._say("measuring")
            return measure(
                clock,
                warm.step_s,
                self.spec.measure_s,
                at_least_s=self.spec.at_least_s,
                cycle_of=None if feed.resident else feed.cycle,
                watching=watching,
                tell=BlockTeller(lambda block: self.channel.send(BlockDone(block))),
            )
        self.channel.send(Ready())
        blocks: list[Block] = []
        with watching:
            while isinstance(command := self.channel.next_command(), MeasureBlock):
                steps = block_steps(command.seconds, warm.step_s, feed.cycle, longest_s=_LONGEST_TURN * command.seconds)
                if feed.queued_batches:  # workers filled their queue while the other trial had its turn
                    clock.run(min(feed.queued_batches, _LONGEST_TURN * steps))
                blocks.append(clock.run(steps))
                self.channel.send(BlockDone(blocks[-1]))
        return blocks

    def _look_at_the_input(self, step: Any, feed: Feed, blocks: list[Block]) -> None:
        """Time the phases of some steps. Whether the step waits for data decides the first candidates."""
        self._say("timing the phases of a step")
        step_ms = median(block.step_ms for block in blocks)
        self.channel.send(Profiled(phases_alone(_eager(step), feed, step_ms, limit_s=_PHASES_LIMIT_S)))

    def _profile(self, step: Any, feed: Feed, clock: StepClock, blocks: list[Block]) -> None:
        self._say("profiling")
        eager = _eager(step)
        step_ms = median(block.step_ms for block in blocks)
        stop_debugging()
        trace_path = str(Path(self.spec.log_path).with_suffix(".trace.json.gz"))
        measured = profile_step(eager, feed, step_ms, limit_s=_PHASES_LIMIT_S, trace_path=trace_path)
        measured = replace(measured, clock=check_clocks(clock, step_ms, measured.kernels_per_step))
        self.channel.send(Profiled(with_habits(measured, eager, feed)))


def _eager(step: TrainStep | InferStep | GraphedStep) -> TrainStep | InferStep:
    """The step without its graph, whose parts can be run one by one."""
    return step.step if isinstance(step, GraphedStep) else step


def set_mode(model: torch.nn.Module, *, training: bool) -> None:
    """Put a model into the mode of its loop, unless it is in it: its frozen layers keep theirs then."""
    if model.training is not training:
        model.train(training)


def resident_data(components: Components) -> Any:
    """The data that the steps consume: a DataLoader as it is; one batch moved to the device once.

    What a plan converts, types and layouts, is converted in each step, as it would be of each new batch.
    """
    if components.has_loader:
        return loop_loader(components.data, components.plan)
    return mover(torch.device(components.plan.device))(components.data)


def stepper(step: TrainStep | InferStep | GraphedStep, feed: Feed, batch_size: int) -> Callable[[int], int]:
    """Runs steps of the timed loop, returning the samples in them. A resident batch is not moved again."""
    moved_already = feed.resident and not step.plan.converts_batches
    run = step.run if moved_already and not isinstance(step, GraphedStep) else step

    def run_steps(steps: int) -> int:
        samples, batch = 0, None
        try:
            for _ in range(steps):
                batch = feed.next()
                run(batch)
                samples += batch_samples(batch, batch_size)
        except Exception as error:
            if problem := feed.problem_of(error, batch):
                raise problem from error
            raise
        return samples

    def run_resident_steps(steps: int) -> int:
        for _ in range(steps):
            run(batch)
        return steps * samples

    if not feed.resident:
        return run_steps
    batch = feed.next()
    samples = batch_samples(batch, batch_size)
    return run_resident_steps


def settle_loss(step: TrainStep | InferStep | GraphedStep, batches: list[Any]) -> list[str]:
    """Find the form of a loss that its signature leaves open, before anything looks at the model's first output."""
    run = step.step if isinstance(step, GraphedStep) else step
    if not isinstance(run, TrainStep) or not batches:
        return []
    try:
        found = run.settle_loss(run.to_device(batches[0]))
    except LossError as error:
        raise TargetError(error.message, error.hint) from error
    return [found] if found else []


def _notes(warm: WarmUp, loop: Loop, clock: StepClock) -> tuple[str, ...]:
    notes = list(loop.notes)
    if not warm.steady:
        notes.append("the step time was not steady when the warm-up ended")
    modes = two_modes(clock.step_ms)
    if modes is not None:
        notes.append(
            f"steps are of two kinds: {format_percent(1 - modes.high_share)} take about {format_ms(modes.low)} and "
            f"{format_percent(modes.high_share)} about {format_ms(modes.high)}; the step time is the mean over both"
        )
    return tuple(notes)


def result_of(error: BaseException, channel: Channel) -> TrialResult:
    """The result of a trial that raised; memory that ran out counts as that wherever in the user's code it did."""
    cause = error.__cause__ if isinstance(error, TargetError) and error.__cause__ else error
    if _ran_out_of_memory(cause):
        return _failed(Outcome.OUT_OF_MEMORY, _short_oom(cause), "Try a smaller batch size.", user_frames(cause))
    if isinstance(error, TargetError):
        channel.send(TargetFailure(error.message, error.hint, error.details))
    if isinstance(error, AdvisorError):
        outcome = Outcome.TIMED_OUT if isinstance(error, TooSlowError) else Outcome.FAILED
        return _failed(outcome, error.message, error.hint, error.details)
    return _failed(Outcome.FAILED, one_line(error), "The trial's log has the whole story.", user_frames(error))


def _ran_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # These have no class of their own for it.
    return isinstance(error, RuntimeError) and any(part in str(error) for part in (_CPU_ALLOCATOR, *_NO_DEVICE_MEMORY))


def _failed(outcome: Outcome, reason: str, hint: str, details: str) -> TrialResult:
    with contextlib.suppress(Exception):  # standard error may be an object of the user's
        print(reason, details, sep="\n", file=sys.stderr)
    return TrialResult(outcome=outcome, reason=reason, hint=hint, details=details)


def _short_oom(error: BaseException) -> str:
    """The first sentences of the message: what was asked for; the rest is about the allocator."""
    text = next(iter(str(error).rpartition(_CPU_ALLOCATOR)[2].strip().splitlines()), "")
    return ". ".join(text.split(". ")[:2]).rstrip(".") + "." if text else type(error).__name__
