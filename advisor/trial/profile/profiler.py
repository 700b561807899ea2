"""The profile: phases, operators, what the device did, FLOPs, and the verdict on what the step is bound by."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from advisor.figures.roof import step_roof_share
from advisor.machine.device import backend_of
from advisor.portable.nested import tensors_of
from advisor.portable.plan import StepPlan
from advisor.records import Bottleneck, Ceilings, Phase, Profile
from advisor.runtime.compilation import is_compiled
from advisor.runtime.step import InferStep, TrainStep
from advisor.trial.measurement.feed import Feed
from advisor.trial.profile.bottleneck import judge
from advisor.trial.profile.ceilings import convolutions_in_tf32, machine_ceilings, products_in_tf32
from advisor.trial.profile.phases import measure_phases
from advisor.trial.profile.recording import record_steps
from advisor.trial.profile.traffic import TrafficCounter, host_made_tensors

_RECORDED_STEPS = 3
_LONG_STEP_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Work:
    """The counted work of a step: None where the counter cannot follow the model.

    ``convolving`` when convolutions do most of the arithmetic.
    """

    flops: int | None
    convolving: bool
    moved_bytes: int | None


def profile_step(
    step: TrainStep | InferStep,
    feed: Feed,
    step_ms: float,
    *,
    limit_s: float,
    trace_path: str = "",
    deadline: float = math.inf,
) -> Profile:
    """The instrumented pass over an eager step. ``step_ms`` is the step's time as the timed loop measured it.

    ``limit_s`` is for the phases. A Chrome trace of some steps goes to ``trace_path``, when there is one. The machine's
    ceilings are not measured shortly before ``deadline``, of ``time.monotonic()``.
    """
    phases = measure_phases(step, feed, limit_s=limit_s)
    if feed.queued_batches:
        phases = _with_whole_wait(phases, step_ms)
    steps = _RECORDED_STEPS if step_ms < _LONG_STEP_MS else 1
    recording = record_steps(step, feed, steps, trace_path=trace_path)
    work = count_work(step, feed)
    device = recording.device
    measured = Profile(
        step_ms=step_ms,
        phases=phases,
        operators=recording.operators,
        by_shape=recording.by_shape,
        device_busy_share=min(1.0, device.busy_ms / step_ms) if device else None,
        device_phases=device.phases if device else {},
        kernels_per_step=device.kernels if device else None,
        tensor_core_share=device.tensor_core_share if device else None,
        flops_per_step=work.flops,
        moved_bytes_per_step=work.moved_bytes,
        calls_per_step=recording.calls,
        host_to_device_bytes=_host_to_device_bytes(step, feed),
        host_made_tensors=host_made_tensors(step, feed),
        trace_path=recording.trace_path,
        called=recording.called,
    )
    measured = _under_the_roof(measured, step, deadline, convolving=work.convolving)
    bottleneck, evidence = judge(measured)
    return replace(measured, bottleneck=bottleneck, evidence=evidence)


def phases_alone(step: TrainStep | InferStep, feed: Feed, step_ms: float, *, limit_s: float) -> Profile:
    """A profile of nothing but the phases; its bottleneck is named only where getting the data holds the step up."""
    phases = measure_phases(step, feed, limit_s=limit_s)
    if feed.queued_batches:
        phases = _with_whole_wait(phases, step_ms)
    measured = Profile(step_ms=step_ms, phases=phases, phases_alone=True)
    bottleneck, evidence = judge(measured)
    if bottleneck not in (Bottleneck.INPUT, Bottleneck.COPY):
        return measured
    return replace(measured, bottleneck=bottleneck, evidence=evidence)


def count_work(step: TrainStep | InferStep, feed: Feed) -> Work:
    """Floating-point operations of one step by PyTorch's counter, and the bytes that its operators read and write."""
    counter, traffic = FlopCounterMode(display=False), TrafficCounter()
    # The counters dispatch in Python and some custom operators refuse that: the profile is worth having without them.
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError, AttributeError), traffic, counter:
        step(feed.next())
        counts = counter.get_flop_counts().get("Global", {})
        total = counter.get_total_flops()
        convolving = sum(flops for operator, flops in counts.items() if "convolution" in str(operator))
        moved_bytes = None if _is_compiled(step) else traffic.moved_bytes
        return Work(total, 2 * convolving > total, moved_bytes)
    return Work(None, convolving=False, moved_bytes=None)


def _with_whole_wait(phases: dict[str, float], step_ms: float) -> dict[str, float]:
    """The phases with the wait for data that the timed loop had, where workers load the data.

    They get ahead while this pass waits for the device at each boundary, so it sees too little waiting. In the timed
    loop the wait was at least what the other phases leave of the step.
    """
    others_ms = sum(duration for phase, duration in phases.items() if phase != Phase.DATA_WAIT)
    return {**phases, Phase.DATA_WAIT: max(phases[Phase.DATA_WAIT], step_ms - others_ms)}


def _under_the_roof(measured: Profile, step: TrainStep | InferStep, deadline: float, *, convolving: bool) -> Profile:
    """The profile with the machine's ceilings, measured again when the step does better than a kept one."""
    dtype = _compute_dtype(step)
    tf32 = dtype is torch.float32 and _runs_tf32(step.device, convolving=convolving)
    name = "tf32" if tf32 else str(dtype).removeprefix("torch.")
    ceilings = machine_ceilings(step.device, dtype, left_s=deadline - time.monotonic())
    known = _with_ceilings(measured, ceilings, name)
    if (step_roof_share(known) or 0.0) <= 1:
        return known
    ceilings = machine_ceilings(step.device, dtype, anew=True, left_s=deadline - time.monotonic())
    return _with_ceilings(measured, ceilings, name)


def _with_ceilings(measured: Profile, ceilings: Ceilings, name: str) -> Profile:
    return replace(
        measured,
        ceilings=ceilings,
        ceiling_dtype=name,
        ceiling_flops_per_s=ceilings.matmul_flops_per_s.get(name),
        copy_bytes_per_s=ceilings.copy_bytes_per_s,
        call_overhead_s=ceilings.call_overhead_s,
    )


def _host_to_device_bytes(step: TrainStep | InferStep, feed: Feed) -> int | None:
    """The bytes of a batch that each step copies to the device: none of a resident one; None on the CPU."""
    if step.device.type == "cpu":
        return None
    if feed.resident:
        return 0
    return sum(tensor.nbytes for tensor in tensors_of(feed.next()) if tensor.device.type == "cpu")


def _is_compiled(step: TrainStep | InferStep) -> bool:
    """Whether the operators that run are not those of the model's code."""
    return step.plan.compiles_with != "none" or is_compiled(step.model)


def _runs_tf32(device: torch.device, *, convolving: bool) -> bool:
    """Whether the step's float32 arithmetic runs in TF32: by default convolutions do and matrix products do not."""
    if not backend_of(device).float32_in_tf32():
        return False
    return convolutions_in_tf32() if convolving else products_in_tf32()


def _compute_dtype(step: TrainStep | InferStep) -> torch.dtype:
    plan: StepPlan = step.plan
    if plan.autocast != "none":
        return getattr(torch, plan.autocast)  # type: ignore[no-any-return]
    return next((p.dtype for p in step.model.parameters() if p.is_floating_point()), torch.float32)
