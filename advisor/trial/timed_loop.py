"""The loop that a trial times: its parts under the settings, its data, and a function that runs its steps."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import OneCycleLR

from advisor.inlined.masks import without_empty_masks
from advisor.process.meanwhile import replaced
from advisor.recipe import Components
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, TrialSpec, Value
from advisor.step.batch import mover
from advisor.step.device_loader import loop_loader
from advisor.step.loss import LossCall, LossError, LossForm, describe_loss, form_of
from advisor.step.step import InferStep, TrainStep, mover_of
from advisor.step.tuning import apply_settings
from advisor.trial.measurement.clock import batch_samples
from advisor.trial.measurement.draws import Feed, probe_batches
from advisor.workloads.loop import Loop, resize_batch


def components_of(loop: Loop, device: torch.device, catalog: Catalog, settings: Mapping[str, Value]) -> Components:
    """The parts of a workload on ``device`` under its own and these settings; generated batches have their size."""
    plan = StepPlan(mode=loop.mode, device=str(device), clip_norm=loop.clip_grad)
    components = loop.components(plan, loop.make_batch or loop.data)
    apply_settings(catalog, components, {**loop.current, **settings})
    if not components.has_loader:
        components.data = data_of(loop, {**loop.current, **settings, "data.batch_size": components.batch_size})
    return components


def data_of(loop: Loop, settings: Mapping[str, Any]) -> Any:
    """The loop's data. Without a loader it is a batch like its owner's, with the size and masks of the settings."""
    size, data = settings.get("data.batch_size"), loop.data
    if loop.loader is None and size and size != loop.batch_size:
        data = loop.make_batch(size) if loop.make_batch else resize_batch(data, size)
    drops = loop.loader is None and settings.get("attention.empty_masks") == "dropped"
    return without_empty_masks(data) if drops else data


def set_mode(loop: Loop) -> None:
    """Put a model into the mode of its loop. If it is in that mode already, its frozen layers keep theirs."""
    training = loop.mode is Mode.TRAIN
    # Some users' own steps train in evaluation mode.
    if loop.model.training is not training and not (training and loop.step is not None):
        loop.model.train(training)


def feed_of(components: Components, seed: int) -> Feed:
    """The source of batches: the DataLoader, whose first epoch begins under the seed, or one batch, moved once."""
    if components.has_loader:
        return Feed(loop_loader(components.data, components.plan), seed)
    return Feed(mover(torch.device(components.plan.device))(components.data))


def stepper(step: Callable[[Any], Any], feed: Feed, batch_size: int) -> Callable[[int], int]:
    """A function that runs steps of the timed loop and returns their samples. A resident batch is not moved again."""
    run = step
    if feed.resident and isinstance(step, TrainStep | InferStep) and not step.plan.converts_batches:
        run = step.run

    def run_steps(steps: int) -> int:
        samples = 0
        for _ in range(steps):
            batch = feed.next()
            run(batch)
            samples += batch_samples(batch, batch_size)
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


def form_of_loss(loop: Loop, components: Components, spec: TrialSpec) -> LossForm:
    """The form of the loop's loss: the one that the inspection recorded, that of its signature, or one that works."""
    if spec.loss_form:
        return LossForm(spec.loss_form)
    if loop.step is not None:
        return LossForm.STEP
    form = form_of(loop.loss) if loop.mode is Mode.TRAIN else LossForm.OWN
    if form is not None:
        return form
    assert loop.loss is not None, "without a loss the form is the model's own"
    batch = probe_batches(components.data, spec.seed, components.plan)[0]
    form = form_that_works(loop.loss, loop.model, mover_of(components.plan)(batch))
    loop.notes.append(f"the loss is called as {form.call}: its signature leaves that open, and this works")
    return form


def form_that_works(loss: Callable[..., Any], model: torch.nn.Module, batch: Any) -> LossForm:
    """The first form of a loss that gives a number on a copy of the model; ``batch`` is on the model's device.

    Raises LossError if neither form works.
    """
    try:
        copied = copy.deepcopy(model)
    except Exception:  # a model may hold anything; if the copy fails, the usual form is taken
        return LossForm.OUTPUT_TARGET
    failures: dict[LossForm, Exception] = {}
    output = None
    for form in (LossForm.OUTPUT_TARGET, LossForm.MODEL_BATCH):
        call = LossCall(copied, loss, form)
        try:
            with torch.random.fork_rng():
                output = call.forward(batch)
                call.loss(output, batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # anything that the user's code raises
            failures[form] = error
        else:
            return form
    if output is None:  # the model itself fails, and the first step will say why
        return LossForm.OUTPUT_TARGET
    told = [f"{form.call}: {type(one).__name__}: {' '.join(str(one).split())[:120]}" for form, one in failures.items()]
    raise LossError(f"the loss {describe_loss(loss)} works in neither form ({'; '.join(told)}).")


@contextmanager
def schedules_that_go_on() -> Iterator[None]:
    """Keep a ``OneCycleLR`` at its last rate after its end, instead of its error. No other schedule raises one."""
    original: Any = OneCycleLR.get_lr

    def get_lr(schedule: Any) -> Any:
        if schedule.last_epoch <= schedule.total_steps:
            return original(schedule)
        return [group["lr"] for group in schedule.optimizer.param_groups]

    with replaced(OneCycleLR, "get_lr", get_lr):
        yield
