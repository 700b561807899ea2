"""Trials that time nothing: the reference, and a score.

The reference runs the probe's steps in a higher precision. How much of a difference is rounding depends on the
workload: its depth, its conditioning, and what a few updates make of an error. The distance of the user's own steps
from the same steps in float64 shows it.

A score is the number that the user's function gives for the model. A training runs some steps first: as many for every
score, from the same seed and on the same batches.
"""

import contextlib
import math
import time
from dataclasses import replace

import torch

from advisor.errors import TargetError
from advisor.machine.device import backend_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, Outcome, Score, TrialResult, TrialSpec
from advisor.step.batch import map_tensors
from advisor.step.compile import Models, call_through
from advisor.step.graph import captured, refuse_graph
from advisor.step.step import OwnStep, make_step
from advisor.step.tuning import apply_settings
from advisor.step.watch import objects_near
from advisor.trial.measurement.draws import Feed, probe_batches, seed_all
from advisor.trial.measurement.probe import probe_inference, probe_training
from advisor.trial.timed_loop import components_of, form_of_loss, resident_data
from advisor.workloads.entrypoint import in_user_code, load_function
from advisor.workloads.loop import Loop, describe

_HALF = (torch.float16, torch.bfloat16)
# Share of the trial's time for the steps; one step at most runs beyond it. Unitless.
_SHARE_OF_TIME = 0.4


def reference_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """The losses and outputs of a loop, whose model is on ``device``, in a higher precision; no blocks.

    Skipped, with the reason, if the steps draw random numbers, which depend on the number type.
    Raises what the user's code raises when it does not work in that precision.
    """
    started = time.perf_counter()
    if any(tensor.is_complex() for tensor in (*loop.model.parameters(), *loop.model.buffers())):
        return TrialResult(Outcome.SKIPPED, "the model holds complex numbers")
    precision = _raise_precision(loop)
    plan = StepPlan(mode=loop.mode, device=str(device), clip_norm=loop.clip_grad)
    components = loop.components(plan, loop.data)
    # The user's declared settings without those that round, and without compilation, which only takes time here.
    kept = {key: value for key, value in loop.current.items() if not catalog.by_key(key).expensive}
    kept = {key: value for key, value in kept.items() if not catalog.rounding({key: value})}
    apply_settings(catalog, components, kept)
    components.plan = replace(components.plan, cuda_graph=False)
    step = make_step(components, loop.loss, form=form_of_loss(loop, components, spec))
    batches = [
        map_tensors(lambda tensor: tensor.to(precision) if tensor.is_floating_point() else tensor, batch)
        for batch in probe_batches(components.data, spec.seed, components.plan)
    ]
    torch.manual_seed(spec.stream_seed)
    untouched = backend_of(device).random_states()
    probing = time.perf_counter()
    if loop.mode is Mode.TRAIN:
        limit_s = _SHARE_OF_TIME * (spec.timeout_s - (probing - started))
        probe = probe_training(step, batches, spec.stream_seed, limit_s=limit_s, fewest=1)
    else:
        probe = probe_inference(step, batches, spec.stream_seed, steps=1)
    if not all(map(torch.equal, untouched, backend_of(device).random_states())):
        return TrialResult(Outcome.SKIPPED, "the steps draw random numbers, which are others in another precision")
    return TrialResult(
        outcome=Outcome.MEASURED,
        batch_size=components.batch_size,
        losses=probe.losses,
        outputs=probe.outputs,
        measuring_s=time.perf_counter() - probing,
        notes=(str(precision).removeprefix("torch."),),
    )


def _raise_precision(loop: Loop) -> torch.dtype:
    """Bring the loop to float64, or to plain float32 when its parameters are in half precision."""
    half = any(parameter.dtype in _HALF for parameter in loop.model.parameters())
    precision = torch.float32 if half else torch.float64
    loop.model.to(precision)
    for module in objects_near(torch.nn.Module, loop.loss):
        module.to(precision)
    for state in loop.optimizer.state.values() if loop.optimizer is not None else ():
        for name, value in state.items():
            # Step counts are scalars, in a type of their own.
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
                state[name] = value.to(precision)
    torch.set_default_dtype(precision)  # of tensors that the model and the loss create as they go
    with contextlib.suppress(RuntimeError):  # where the user set the newer switches, the older ones are refused
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    return precision


def scored_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Apply the settings, train ``spec.steps`` steps if the loop trains, and have ``spec.evaluate`` score the model.

    Raises TargetError for a function that is not there, that raises, or that gives no number.
    """
    evaluate = load_function(spec.evaluate, spec.target.directory)
    components = components_of(loop, device, catalog, spec.settings)
    steps = spec.steps if loop.mode is Mode.TRAIN else 0
    if steps:
        train = captured(make_step(components, loop.loss, form=form_of_loss(loop, components, spec)), refuse_graph)
        seed_all(spec.stream_seed)
        feed = Feed(resident_data(components), spec.seed)
        for _ in range(steps):
            train(feed.next())
    model = components.model
    models = list(model) if isinstance(model, Models) else [model]
    plan = replace(components.plan, mode=Mode.INFER, grad_mode="caller")
    for each in models:  # arguments of a call are moved and cast as in the step
        if each.training:
            each.eval()
        step = OwnStep(lambda call: call[0](*call[1], **call[2]), each, plan)
        call_through(each, step)
    seed_all(spec.seed)
    with torch.no_grad(), step.contexts():  # around all of it: a function may call a part of the model, or a copy
        value = in_user_code(spec.evaluate, lambda: evaluate(*models))
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several, None
        number, value = math.nan, describe(value)
    if not math.isfinite(number):
        hint = "Return one number, higher is better: an accuracy."
        raise TargetError(f"{spec.evaluate} returned {value}, no number.", hint)
    return TrialResult(Outcome.MEASURED, score=Score(number, steps))
