"""The numerics probe: the results of the first steps, with the same weights and batches in every trial."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.records.trials import MOST_SKIPPED_STEPS
from advisor.step.batch import signature_of, tensors_of
from advisor.trial.batch_form import place_of_loss
from advisor.trial.measurement.draws import PROBE_LIMIT_S, PROBE_STEPS, seed_all

_SAMPLED_OUTPUTS = 256
_CACHES = "transformers.cache_utils"
_HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class Probe:
    """The results of the first steps. Losses, outputs, skipped steps and operations are as in ``TrialResult``."""

    seconds: float = 0.0  # of the steps alone
    steps: int = 0
    losses: tuple[float, ...] = ()
    outputs: tuple[float, ...] = ()
    skipped_steps: int = 0
    usual_step_s: float = 0.0  # the mean time of a step without the longest one, which compiles
    operations: int = 0
    loss_at: str = ""  # the code that reads the model's own loss from its first output; empty for none


def probe_training(
    step: Callable[[Any], torch.Tensor],
    batches: list[Any],
    seed: int,
    *,
    limit_s: float = PROBE_LIMIT_S,
    fewest: int = 2,
) -> Probe:
    """The first training steps, one per batch; fewer, but at least ``fewest``, if they take longer than ``limit_s``.

    The longest step, which compiles, does not count towards the limit. Until a gradient scaler's scale fits, it skips
    steps. They change no weight and are run again, so the losses can be compared with those of a loop without a scaler.
    """
    model = getattr(getattr(step, "step", step), "model", None)  # a captured step holds the step that it captured
    seed_all(seed)
    probe, step_s, scaler = Probe(), list[float](), getattr(step, "scaler", None)
    sample_no_more = _sample_first_output(probe, model, step)
    for batch in batches:
        while True:
            scale, started = scaler.get_scale() if scaler is not None else 0.0, time.perf_counter()
            loss = float(step(batch))
            step_s.append(time.perf_counter() - started)
            # The scale falls exactly when an update is skipped.
            if scaler is None or scaler.get_scale() >= scale:
                break
            probe.skipped_steps += 1
            if probe.skipped_steps > MOST_SKIPPED_STEPS:  # in total; gradients are not finite at any useful scale
                break
        probe.losses += (loss,)
        sample_no_more()  # again, since an undone forward pass also undid the hook's removal
        usual_and_one_more_s = sum(step_s) - max(step_s) + step_s[-1]
        if usual_and_one_more_s > limit_s and len(probe.losses) >= fewest:
            break
    probe.seconds, probe.steps = sum(step_s), len(step_s)
    probe.usual_step_s = (probe.seconds - max(step_s)) / (probe.steps - 1) if probe.steps > 1 else probe.seconds
    return probe


def probe_inference(step: Callable[[Any], Any], batches: list[Any], seed: int, *, steps: int = PROBE_STEPS) -> Probe:
    """The sum of the outputs for the first batch, and a fixed sample of them.

    The step runs several times, and the last output counts. By then a captured step is only replayed and must read the
    new batch, so the step before the last gets another batch of the same shapes if there is one.
    """
    order = [batches[0]] * steps
    if steps > 1:
        form = signature_of(batches[0])
        order[-2] = next((batch for batch in batches[1:] if signature_of(batch) == form), batches[0])
    seed_all(seed)
    started = time.perf_counter()
    output = step(order[0])
    first_s = time.perf_counter() - started
    for batch in order[1:]:
        output = step(batch)
    sample = sample_of(output)  # waits for the device
    seconds = time.perf_counter() - started
    usual_step_s = (seconds - first_s) / (steps - 1) if steps > 1 else seconds
    return Probe(seconds, steps, outputs=sample, usual_step_s=usual_step_s)


@torch.no_grad()
def sample_of(output: Any) -> tuple[float, ...]:
    """The sum of all outputs and a fixed sample of them; empty if there are none. Allocates little memory.

    If there are floating-point tensors, only they count: class numbers or box counts would outweigh them.
    """
    plain = [tensor.detach() for tensor in tensors_of(output) if _plain(tensor) and tensor.numel()]
    real = [torch.atleast_1d(torch.view_as_real(tensor) if tensor.is_complex() else tensor) for tensor in plain]
    tensors = [tensor for tensor in real if tensor.is_floating_point()] or real
    if not tensors:
        return ()
    stride = max(1, sum(tensor.numel() for tensor in tensors) // _SAMPLED_OUTPUTS)
    sample, first = list[float](), 0
    for tensor in tensors:
        # On the host, since a process loads each kind of kernel at its first launch.
        places = torch.arange(first, max(first, tensor.numel()), stride)
        sample += tensor[torch.unravel_index(places, tensor.shape)].cpu().double().tolist()
        first = (first - tensor.numel()) % stride
    # Half precision is summed in float32 without a copy; the sum itself would overflow in float16.
    sums = (tensor.sum(dtype=torch.float32 if tensor.dtype in _HALF else None) for tensor in tensors)
    return (sum(map(float, sums)), *sample[:_SAMPLED_OUTPUTS])


def operations_behind(output: Any) -> int:
    """The number of operations behind an output through which gradients flow back; 0 without gradients."""
    waiting = [tensor.grad_fn for tensor in tensors_of(output) if tensor.grad_fn is not None]
    found = set(waiting)
    while waiting:
        for behind, _ in waiting.pop().next_functions:
            if behind is not None and behind not in found:
                found.add(behind)
                waiting.append(behind)
    return sum(bool(operation.next_functions) for operation in found)  # parameters have none behind them


def _sample_first_output(probe: Probe, model: nn.Module | None, step: Any) -> Callable[[], None]:
    """Sample the model's output in the first step, before a later one overwrites it; return a function to stop that."""
    plan = getattr(step, "plan", None)
    # A model that is compiled in place or in a larger whole would trace the hook; TorchScript accepts none.
    traced = (isinstance(plan, StepPlan) and plan.compiles_loss) or getattr(model, "_compiled_call_impl", None)
    if model is None or traced or isinstance(model, torch.jit.ScriptModule):
        return lambda: None

    def take(module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():  # the user's own compiler would trace the code below
            return
        with contextlib.suppress(RuntimeError):  # inside ``torch.func`` an output has no values
            parts = output.values() if isinstance(output, Mapping) else output
            if isinstance(output, Mapping | list | tuple):  # without Hugging Face caches, which a setting decides
                parts = [part for part in parts if type(part).__module__ != _CACHES]
            probe.outputs = sample_of(parts)
            probe.operations = operations_behind(output)
            probe.loss_at = place_of_loss(output)
        handle.remove()  # a captured step waits until no hook comes or goes

    handle = model.register_forward_hook(take)
    return handle.remove


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an ordinary local one: no shard of a distributed tensor, no wrapper around another."""
    ordinary = tensor.layout is torch.strided and not hasattr(tensor, "__tensor_flatten__")
    return ordinary and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
