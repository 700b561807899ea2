"""The loop that a trial times: its parts under the settings, its data, and a function that runs its steps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import OneCycleLR

from advisor.errors import TargetError
from advisor.process.meanwhile import replaced
from advisor.recipe import Components
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, Value
from advisor.step.apply import apply_settings
from advisor.step.loop import Loop
from advisor.step.losses import LossError
from advisor.step.make_step import GraphedStep, InferStep, TrainStep
from advisor.step.nested import mover
from advisor.step.prefetch import loop_loader
from advisor.trial.measurement.clock import batch_samples
from advisor.trial.measurement.feed import Feed


def components_of(loop: Loop, device: torch.device, catalog: Catalog, settings: Mapping[str, Value]) -> Components:
    """The parts of a workload on ``device`` under its own settings and these; batches that it makes have their size."""
    plan = StepPlan(mode=loop.mode, device=str(device), clip_norm=loop.clip_norm)
    components = loop.components(plan, loop.make_batch or loop.data)
    apply_settings(catalog, components, {**loop.current, **settings})
    if loop.make_batch is not None:
        resized = components.batch_size != loop.batch_size and components.batch_size is not None
        components.data = loop.make_batch(components.batch_size or 1) if resized else loop.data
    return components


def set_mode(loop: Loop) -> None:
    """Put a model into the mode of its loop, unless it is in it: its frozen layers keep theirs then.

    A training step of somebody's own sees to that itself: some train in evaluation mode.
    """
    training = loop.mode is Mode.TRAIN
    if loop.model.training is not training and not (training and loop.step is not None):
        loop.model.train(training)


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


@contextmanager
def schedules_that_go_on() -> Iterator[None]:
    """Keep a ``OneCycleLR`` at its last rate where it would refuse a step beyond its end; no other schedule refuses."""
    original: Any = OneCycleLR.get_lr

    def get_lr(schedule: Any) -> Any:
        if schedule.last_epoch <= schedule.total_steps:
            return original(schedule)
        return [group["lr"] for group in schedule.optimizer.param_groups]

    with replaced(OneCycleLR, "get_lr", get_lr):
        yield
