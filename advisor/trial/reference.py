"""The reference: the probe's steps in a higher precision. It measures nothing but how far the others are from it.

How much of a difference is rounding depends on the workload: its depth, its conditioning, and what a few updates make
of an error. The distance of the user's own steps from the same steps in float64 shows it.
"""

import contextlib
import time
from dataclasses import replace

import torch

from advisor.machine.device import backend_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, Outcome, TrialResult, TrialSpec
from advisor.step.batch import map_tensors
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings
from advisor.step.watch import objects_near
from advisor.trial.measurement.draws import probe_batches
from advisor.trial.measurement.probe import probe_inference, probe_training
from advisor.trial.timed_loop import form_of_loss
from advisor.workloads.loop import Loop

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
    plan = StepPlan(mode=loop.mode, device=str(device), clip_norm=loop.clip_norm)
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
