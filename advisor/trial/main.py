"""A trial, from its first instruction in a new process to its last message."""

import contextlib
import gc
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
import torch._inductor.config

from advisor.errors import AdvisorError, TargetError, TooSlowError
from advisor.machine.device import backend_of, named
from advisor.machine.host import usable_cores
from advisor.process.channel import Channel
from advisor.process.household import lead_own_group
from advisor.process.logs import flush_streams, redirect_output
from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.records import Block, Mode, Outcome, TrialKind, TrialResult, TrialSpec, messages
from advisor.source.prints import imported_sources
from advisor.step.graph import CaptureError, GraphedStep, captured
from advisor.step.loss import LossError, LossForm
from advisor.step.step import InferStep, TrainStep, make_step
from advisor.trial.batch_form import batch_form_of, with_own_loss
from advisor.trial.inspection import inspect_loop, versions
from advisor.trial.measurement import draws
from advisor.trial.measurement.clock import StepClock, latency_of_calls, measure, merge_uneven, single_steps_ms, warm_up
from advisor.trial.measurement.draws import Feed
from advisor.trial.measurement.guards import Guards
from advisor.trial.measurement.probe import Probe, probe_inference, probe_training
from advisor.trial.other_loops import packaged_result, reference_result, scored_result, verified_result
from advisor.trial.profile.habits import stop_debugging, with_habits
from advisor.trial.profile.profiler import compilation_notes, compiled_frames, phases_alone, profile_step
from advisor.trial.profile.recording import PHASES_LIMIT_S, measure_phases
from advisor.trial.raised import result_of
from advisor.trial.timed_loop import components_of, feed_of, form_of_loss, schedules_that_go_on, set_mode, stepper
from advisor.workloads.entrypoint import hint_for, load_target, one_line, user_frames
from advisor.workloads.loop import Loop, describe
from advisor.workloads.scripts import is_script
from advisor.workloads.scripts.files import remove_made_folders
from advisor.workloads.scripts.rounds import WHOLE_ROUNDS_S, WholeRounds

_ENDING_S = 5.0  # longest wait for the end of the previous trial; seconds; leaving a GPU takes 0.4 on an H200
_PHASES_PATIENCE = 2  # longest time for the phases, as a multiple of their limit plus one step; unitless
# Two or so warm-up steps, two timed ones and one to compare its loss; then about ten trials of as many each.
_FEWEST_BASELINE_STEPS = 5
_BUDGET_PER_BASELINE = 8
# Longest block when two trials alternate, and longest run before it that is thrown away, as a multiple of the usual
# block: blocks may have to be longer to hold whole epochs. Unitless.
_LONGEST_TURN = 3
# The kinds of trials that run no timed loop, but other steps or a plain loop.
_OTHER_LOOPS = {
    TrialKind.REFERENCE: (f"{messages.FIRST_STEPS} in a higher precision", reference_result),
    TrialKind.SCORE: ("evaluating the model", scored_result),
    TrialKind.PACKAGE: ("compiling the model to a file", packaged_result),
    TrialKind.VERIFY: (messages.PLAIN_LOOP, verified_result),
}


def trial_main(spec: TrialSpec, connection: Connection, asked_at: float, *, loop: Loop | None = None) -> None:
    """Run one trial (of ``loop`` if it is built) and send its messages; ``asked_at`` is a ``time.monotonic()``."""
    startup_s = time.monotonic() - asked_at
    lead_own_group()
    redirect_output(spec.log_path)
    channel = Channel(connection)
    started = time.perf_counter()
    try:
        result = Stages(spec, channel, asked_at + spec.timeout_s, loop).run()
    except BaseException as error:  # any error that a trial's code raises is the trial's result
        result = result_of(error)
    wall_s = time.perf_counter() - started
    if spec.kind is TrialKind.VERIFY:  # it ran the whole target again, whose earlier run may have left folders
        remove_made_folders()
    flush_streams()
    channel.send(replace(result, startup_s=startup_s, wall_s=wall_s, log_path=spec.log_path))
    # User code may have left non-daemon threads; all results have been sent.
    os._exit(0)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The workload under the trial's settings."""

    loop: Loop
    components: Components
    step: TrainStep | InferStep | GraphedStep
    form: LossForm

    @property
    def eager(self) -> TrainStep | InferStep:
        """The step without its graph, so that its parts can be run one by one."""
        return self.step.step if isinstance(self.step, GraphedStep) else self.step


class Stages:
    """The stages of a trial, each reported to the session. At ``deadline`` (``time.monotonic()``) it is given up."""

    def __init__(self, spec: TrialSpec, channel: Channel, deadline: float, loop: Loop | None = None) -> None:
        self.spec = spec
        self.channel = channel
        self.deadline = deadline
        self.loop = loop
        self.catalog = load_catalog(spec.recipe_folders)
        # Two trials that take turns on one GPU would report each other as foreign processes.
        watch_gpu = spec.target.device != "cpu" and spec.kind is not TrialKind.TURNS
        self.guards = Guards(watch_gpu=watch_gpu, beside=spec.beside)

    @schedules_that_go_on()
    def run(self) -> TrialResult:
        """Load, prepare, probe, warm up, measure, profile. Raises any error of the user's code and the recipes."""
        started = time.perf_counter()
        loop, device = self._load()
        loaded = time.perf_counter()
        if self.spec.kind in _OTHER_LOOPS:
            doing, result_of_loop = _OTHER_LOOPS[self.spec.kind]
            self._say(doing)
            return result_of_loop(loop, device, self.catalog, self.spec)
        parts = self._applied(loop, device)
        began = time.perf_counter()
        batches = self._first_batches(parts)
        probe = self._probe(parts, batches)
        del batches[1:]  # they may be in device memory
        if self.spec.kind is TrialKind.COMPILE:
            return TrialResult(Outcome.MEASURED, warmup_s=probe.seconds)
        result = self._measured(parts, batches, probe, began)
        return replace(result, build_s=loaded - started, prepare_s=began - loaded)

    def _load(self) -> tuple[Loop, torch.device]:
        self._say("loading the model")
        if self.loop is None:
            draws.seed_all(self.spec.seed)
        loop = self.loop or load_target(self.spec.target)
        device = named(self.spec.target.device)
        backend_of(device).synchronize()  # starting CUDA takes no memory that another trial could lack
        if self.spec.leaving:
            with contextlib.suppress(psutil.Error):  # it has ended, or takes longer
                psutil.Process(self.spec.leaving).wait(_ENDING_S)
        loop.to(device)
        set_mode(loop)
        return loop, device

    def _applied(self, loop: Loop, device: torch.device) -> _Parts:
        """The workload under the trial's settings."""
        self._say("applying the settings")
        components = components_of(loop, device, self.catalog, self.spec.settings)
        gc.unfreeze()  # in the user's program, the collector also checks objects from imports and building
        form = form_of_loss(loop, components, self.spec)
        self._spread(components)
        step = captured(make_step(components, loop.loss, form=form), required=True)
        return _Parts(loop, components, step, form)

    def _spread(self, components: Components) -> None:
        """Divide the parts among several ranks; does nothing here, with one process."""

    def _first_batches(self, parts: _Parts) -> list[Any]:
        """The batches of the first steps, which an inspection uses too."""
        self._say("reading the first batches")
        components, eager = parts.components, parts.eager
        batches = draws.probe_batches(components.data, self.spec.seed, components.plan)
        if self.spec.kind.inspects:
            if not batches:
                raise draws.no_batch()
            facts = inspect_loop(parts.loop, eager.device, batches, loss_form=parts.form, step=eager)
            self.channel.send(messages.Inspected(facts, versions(), imported_sources()))
        return batches

    def _probe(self, parts: _Parts, batches: list[Any]) -> Probe:
        """The first steps, whose losses and outputs are compared. They also compile, so they count as warm-up."""
        if self.spec.kind is TrialKind.TURNS and not self.spec.settings:  # of the baseline only the blocks are read
            return Probe(0.0, 0)
        plan, loop = parts.components.plan, parts.loop
        self._say(messages.FIRST_STEPS if plan.compiles_with == "none" else messages.COMPILING)
        if self.spec.kind is TrialKind.COMPILE:
            config = torch._inductor.config
            config.autotune_local_cache = False  # kernels timed beside a trial mislead
            half = max(1, usable_cores() // 2)  # the other cores are for the trials beside it
            config.compile_threads = min(config.compile_threads or 1, half)
        first_steps = probe_training if plan.mode is Mode.TRAIN else probe_inference
        try:
            return first_steps(parts.step, batches, self.spec.stream_seed)
        except (torch.OutOfMemoryError, AdvisorError, LossError):
            raise
        except Exception as error:
            if not self.spec.kind.inspects:  # an error in the baseline's first steps is the target's
                raise
            fits = (
                f"A batch is {describe(batches[0])}: check that it fits the model and the loss. It is (inputs, target) "
                "or a dict of keywords, and a loss that takes the model names its first parameter `model`."
            )
            hint = hint_for(error, loop.hint or fits)
            raise TargetError(f"the first step failed: {one_line(error)}", hint, user_frames(error)) from error

    def _measured(self, parts: _Parts, batches: list[Any], probe: Probe, began: float) -> TrialResult:
        """Warm up, time blocks of steps, then measure what this kind of trial needs; the time counts from ``began``."""
        step, eager, loop, components, spec = parts.step, parts.eager, parts.loop, parts.components, self.spec
        feed = feed_of(components, spec.seed)
        clock = StepClock(eager.device, stepper(step, feed, components.batch_size or 1), feed.cycle)
        if spec.kind.inspects and probe.steps:
            self._refuse_hopeless(loop, probe.seconds, probe.usual_step_s)
        self._say("warming up")
        at_least = feed.queued_batches + 1 if feed.queued_batches else 0
        warm = warm_up(clock, spec.warmup_limit_s, probe.steps, probe.usual_step_s, at_least=at_least)
        frames_when_warm = compiled_frames()
        turns = spec.kind is TrialKind.TURNS  # the other trial waits for its turn
        blocks, single_ms = self._turns(clock, feed, warm.step_s) if turns else self._blocks(clock, warm.step_s)
        if isinstance(step, GraphedStep) and not step.captured:
            raise CaptureError(step.reason or "the shapes of its batches differ from step to step")
        memory = clock.backend.memory()
        latency = latency_of_calls(clock, blocks, spec.measure_s) if loop.mode is Mode.INFER and not turns else None
        notes = [*loop.notes]
        if not warm.steady:
            notes.append("the step time was not steady when the warm-up ended")
        if probe.skipped_steps:
            notes.append(f"the gradient scaler skipped {probe.skipped_steps} of the first {probe.steps} updates")
        notes += compilation_notes(frames_when_warm)
        step_ms = median(block.step_ms for block in blocks)
        may_time_phases = self._may_time_phases(step_ms)
        if spec.kind is TrialKind.PROFILE:
            self._say("profiling")
            stop_debugging()
            trace = str(Path(spec.log_path).with_suffix(".trace.json.gz"))
            profile = profile_step(eager, feed, step_ms, trace_path=trace, deadline=self.deadline)
            self.channel.send(with_habits(profile, eager, feed))
        elif spec.kind is TrialKind.BASELINE and components.has_loader and may_time_phases:
            self._say("timing the phases of a step")  # a wait for data decides the first candidates
            self.channel.send(phases_alone(eager, feed, step_ms))
        loss_form, batch_form = parts.form, batch_form_of(eager, batches[0])
        if loss_form is LossForm.OWN and batch_form is not None and probe.outputs:
            # Without a usable place of the model's own loss, the exported file calls a loss with output and target.
            own = with_own_loss(batch_form, probe.loss_at)
            loss_form, batch_form = (loss_form, own) if own else (LossForm.OUTPUT_TARGET, batch_form)
        result = TrialResult(
            Outcome.MEASURED,
            losses=probe.losses,
            outputs=probe.outputs,
            skipped_steps=probe.skipped_steps,
            operations=probe.operations,
            batch_size=components.batch_size,
            blocks=tuple(blocks),
            event_step_ms=single_ms,
            latency=latency,
            **asdict(memory),
            warmup_s=probe.seconds + warm.seconds,
            warmup_steps=probe.steps + warm.steps,
            phases=measure_phases(step, feed) if spec.times_phases and may_time_phases else {},
            measuring_s=time.perf_counter() - began - probe.seconds - warm.seconds,
            notes=tuple(notes),
            disturbed=self.guards.disturbed,
            energy_j_per_sample=self.guards.energy_j_per_sample(blocks),
            gpu=self.guards.gpu,
            loss_form=loss_form,
            batch_form=batch_form,
        )
        whole_round = loop.whole_round if spec.kind.inspects else None  # of a script's loop
        if whole_round is not None and time.monotonic() + WHOLE_ROUNDS_S <= self.deadline:
            self._say("timing whole rounds of the loop")  # at last: a script whose round takes too long is left there
            result = replace(result, whole_rounds=WholeRounds(whole_round, clock.backend.synchronize).times())
        return result

    def _refuse_hopeless(self, loop: Loop, spent_s: float, step_s: float) -> None:
        """Report at once, and not only at the time-out, that steps are too long for the budget."""
        needed_s = spent_s + _FEWEST_BASELINE_STEPS * step_s
        if needed_s < self.spec.timeout_s:
            return
        minutes = math.ceil(_BUDGET_PER_BASELINE * needed_s / 60)
        target = self.spec.target
        where = "in your script" if is_script(target.target, target.directory, "build") else "by --input SHAPE"
        shorter = f"smaller samples, {where}, or less work in it"
        if (loop.loader is None or loop.loader.batch_size is not None) and (loop.batch_size or 1) > 1:
            shorter = f"--batch-size {(loop.batch_size or 1) // 2}"
        raise TooSlowError(
            f"one step takes about {step_s:.0f} s: measuring the baseline alone needs {needed_s:.0f} s, more than the "
            f"{self.spec.timeout_s:.0f} s that the budget leaves for it.",
            f"Give it time with --budget {minutes}m, or a shorter step with {shorter}.",
        )

    def _blocks(self, clock: StepClock, step_s: float) -> tuple[list[Block], tuple[float, float, float] | None]:
        """The timed blocks, and percentiles of single steps in ms."""
        self._say(messages.MEASURING)
        spec = self.spec
        with self.guards.watching(clock.backend.identity().uuid):
            timed = measure(clock, step_s, spec.measure_s, at_least_s=spec.at_least_s, report=self.channel.send)
        return merge_uneven(timed), single_steps_ms(clock, timed, spec.measure_s)

    def _turns(self, clock: StepClock, feed: Feed, step_s: float) -> tuple[list[Block], None]:
        """The blocks that the session asks for, in turn with those of another trial."""
        self.channel.send(messages.Ready())
        blocks: list[Block] = []
        while (seconds := self.channel.commands.get()) is not None:
            steps = clock.steps_of(seconds, step_s, longest_s=_LONGEST_TURN * seconds)
            if feed.queued_batches:  # workers filled their queue during the other trial's turn
                clock.run(min(feed.queued_batches, _LONGEST_TURN * steps))
            blocks.append(clock.run(steps))
            self.channel.send(blocks[-1])
        return blocks, None

    def _may_time_phases(self, step_ms: float) -> bool:
        """Whether the phases can be timed before the trial would be given up, with all of its results."""
        return time.monotonic() + _PHASES_PATIENCE * (PHASES_LIMIT_S + step_ms / 1e3) < self.deadline

    def _say(self, text: str) -> None:
        self.channel.send(messages.Activity(text))
