"""The profile: phases, top operators, GPU busy share, FLOPs, and the verdict on what the step is bound by."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from advisor.plan import StepPlan
from advisor.records import Bottleneck, OperatorRow, Phase, Profile
from advisor.runtime.step import InferStep, TrainStep
from advisor.trial.ceilings import call_overhead_s, copy_bytes_per_s, matmul_flops_per_s
from advisor.trial.feed import Feed
from advisor.trial.phases import measure_phases

_PROFILED_STEPS = 3
_OPERATORS_SHOWN = 15
_INPUT_BOUND_SHARE = 0.3
_LAUNCH_BOUND_BUSY = 0.7
_LAUNCH_BOUND_OVERHEAD = 0.3
_COMPUTE_BOUND_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class DeviceActivity:
    """What the device did in one profiled step: kernels and their summed time. None on the CPU."""

    kernels: float
    busy_ms: float


def profile_step(step: TrainStep | InferStep, feed: Feed, step_ms: float, *, limit_s: float) -> Profile:
    """The instrumented pass over an eager step. ``step_ms`` is the step's time as the timed loop measured it."""
    phases = measure_phases(step, feed, limit_s=limit_s)
    operators, calls, activity = _profiled(step, feed)
    flops, convolving = _count_flops(step, feed)
    dtype = _compute_dtype(step)
    tf32 = dtype is torch.float32 and _runs_tf32(step.device, convolving=convolving)
    ceiling = matmul_flops_per_s(step.device, dtype, tf32=tf32)
    copy = copy_bytes_per_s(step.device)
    busy = min(1.0, activity.busy_ms / step_ms) if activity else None
    measured = Profile(
        step_ms=step_ms,
        phases=phases,
        operators=operators,
        device_busy_share=busy,
        kernels_per_step=activity.kernels if activity else None,
        flops_per_step=flops,
        ceiling_flops_per_s=ceiling,
        ceiling_dtype="tf32" if tf32 else str(dtype).removeprefix("torch."),
        copy_bytes_per_s=copy,
        calls_per_step=calls,
        call_overhead_s=call_overhead_s(),
    )
    bottleneck, evidence = judge(measured)
    return replace(measured, bottleneck=bottleneck, evidence=evidence)


def judge(measured: Profile) -> tuple[Bottleneck, str]:
    """What the step is bound by, and the evidence in one sentence."""
    waiting = measured.share(Phase.DATA_WAIT, Phase.HOST_TO_DEVICE)
    if waiting > _INPUT_BOUND_SHARE:
        return Bottleneck.INPUT, f"waiting for data and copying it take {waiting:.0%} of the step"
    busy = measured.device_busy_share
    if busy is not None and busy < _LAUNCH_BOUND_BUSY:
        kernels = f" for {measured.kernels_per_step:.0f} kernels" if measured.kernels_per_step else ""
        return Bottleneck.LAUNCH, f"the GPU computes in {busy:.0%} of the step; the host launches{kernels} in the rest"
    overhead = overhead_share(measured)
    if busy is None and overhead is not None and overhead > _LAUNCH_BOUND_OVERHEAD:
        return Bottleneck.LAUNCH, (
            f"the step makes {measured.calls_per_step:.0f} operator calls, and calling alone costs {overhead:.0%} of it"
        )
    share = roof_share(measured)
    if share is not None and share >= _COMPUTE_BOUND_SHARE:
        return Bottleneck.COMPUTE, (
            f"the step reaches {share:.0%} of this machine's {measured.ceiling_dtype} matrix-product rate"
        )
    reached = f"{share:.0%}" if share is not None else "an unknown share"
    return Bottleneck.MEMORY, (
        f"the device is busy, yet reaches {reached} of its {measured.ceiling_dtype} matrix-product rate: it moves bytes"
    )


def roof_share(measured: Profile) -> float | None:
    """The arithmetic rate of the step over the machine's matrix-product rate, 0 to 1; None without FLOPs."""
    if not measured.flops_per_step or not measured.ceiling_flops_per_s:
        return None
    return measured.flops_per_step / (measured.step_ms / 1e3) / measured.ceiling_flops_per_s


def overhead_share(measured: Profile) -> float | None:
    """The share of the step that calling operators costs, whatever they compute, 0 to 1; None when not counted."""
    if measured.calls_per_step is None or measured.call_overhead_s is None:
        return None
    return min(1.0, measured.calls_per_step * measured.call_overhead_s / (measured.step_ms / 1e3))


def _profiled(step: TrainStep | InferStep, feed: Feed) -> tuple[tuple[OperatorRow, ...], float, DeviceActivity | None]:
    """The top operators, operator calls per step, and what the device did."""
    on_cuda = step.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_cuda else [])
    with profile(activities=activities, acc_events=True) as recorded:
        for _ in range(_PROFILED_STEPS):
            step(feed.next())
        if on_cuda:
            torch.cuda.synchronize(step.device)
    averages = recorded.key_averages()
    calls = sum(row.count for row in averages if row.key.startswith("aten::")) / _PROFILED_STEPS
    rows = _operator_rows(averages, on_cuda=on_cuda)
    return rows, calls, _activity(recorded.events() or []) if on_cuda else None


def _operator_rows(averages: Iterable[Any], *, on_cuda: bool) -> tuple[OperatorRow, ...]:
    rows = [
        OperatorRow(
            name=row.key,
            calls=row.count / _PROFILED_STEPS,
            host_ms=row.self_cpu_time_total / 1e3 / _PROFILED_STEPS,
            device_ms=row.self_device_time_total / 1e3 / _PROFILED_STEPS,
        )
        for row in averages
        if row.device_type == DeviceType.CPU
    ]
    rows.sort(key=lambda row: row.device_ms if on_cuda else row.host_ms, reverse=True)
    return tuple(rows[:_OPERATORS_SHOWN])


def _activity(events: Iterable[Any]) -> DeviceActivity:
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    busy_us = sum(event.self_device_time_total for event in kernels)
    return DeviceActivity(len(kernels) / _PROFILED_STEPS, busy_us / 1e3 / _PROFILED_STEPS)


def _count_flops(step: Callable[[Any], Any], feed: Feed) -> tuple[int | None, bool]:
    """Floating-point operations of one step by PyTorch's counter, and whether convolutions do most of them.

    None where the counter cannot follow the model.
    """
    counter = FlopCounterMode(display=False)
    # The counter dispatches in Python and some custom operators refuse that: the profile is worth having without it.
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError, AttributeError), counter:
        step(feed.next())
        counts = counter.get_flop_counts().get("Global", {})
        total = counter.get_total_flops()
        convolving = sum(flops for operator, flops in counts.items() if "convolution" in str(operator))
        return total, 2 * convolving > total
    return None, False


def _runs_tf32(device: torch.device, *, convolving: bool) -> bool:
    """Whether the step's float32 arithmetic runs in TF32: by default convolutions do and matrix products do not."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return torch.backends.cudnn.allow_tf32 if convolving else torch.get_float32_matmul_precision() != "highest"


def _compute_dtype(step: TrainStep | InferStep) -> torch.dtype:
    plan: StepPlan = step.plan
    if plan.autocast != "none":
        return getattr(torch, plan.autocast)  # type: ignore[no-any-return]
    return next((p.dtype for p in step.model.parameters() if p.is_floating_point()), torch.float32)
