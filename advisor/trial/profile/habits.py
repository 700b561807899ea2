"""Habits in the instrumented pass: ways of doing the same thing, timed beside each other in the baseline's trial.

A trial of its own times a whole training step. What is no part of it (validation), or a part too small to see in it
(clearing the gradients), is timed here.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from advisor.machine.device import backend_of
from advisor.records import HabitRow, Profile
from advisor.runtime.compilation import uncompiled
from advisor.runtime.step import InferStep, TrainStep, grad_mode
from advisor.trial.measurement.clock import seconds_of
from advisor.trial.measurement.feed import Feed
from advisor.trial.profile.syncs import sync_places

GRAD_MODES = ("grad", "no_grad", "inference_mode")
WAYS_TO_CLEAR = ("none", "zeros", "manual")
_CLEARING_LIMIT_S = 0.1
_VALIDATION_LIMIT_S = 0.3
_MOST_ROUNDS = 30


def with_habits(measured: Profile, step: TrainStep | InferStep, feed: Feed) -> Profile:
    """Return the profile with the cost of this loop's habits, and with the lines that make its host wait."""
    eager = _uncompiled(step)
    rows: tuple[HabitRow, ...] = ()
    if isinstance(eager, TrainStep):
        batch = eager.to_device(feed.next())
        rows = (
            *clearing_rows(eager, limit_s=_CLEARING_LIMIT_S),
            *validation_rows(eager, batch, limit_s=_VALIDATION_LIMIT_S),
        )
    return replace(measured, habits=rows, sync_places=sync_places(eager, feed))


def stop_debugging() -> None:
    """Switch off a profiler or NVTX ranges that were left on: the instrumented pass has a profiler of its own."""
    if torch._C._autograd._profiler_enabled():
        torch._C._autograd._disable_profiler()


def clearing_rows(step: TrainStep, *, limit_s: float) -> tuple[HabitRow, ...]:
    """The time of clearing the gradients in each way, over gradients of the size of those that the last step left."""
    gradients = [parameter.grad for parameter in step.parameters]
    if not any(gradient is not None for gradient in gradients):
        return ()
    ways = {way: _with_plan(step, zero_grad=way) for way in WAYS_TO_CLEAR}

    def cleared(way: str) -> float:
        for parameter, gradient in zip(step.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else torch.zeros_like(gradient)
        return seconds_of(ways[way].zero_grad, step.device)

    try:
        times_s = _in_rounds(cleared, WAYS_TO_CLEAR, limit_s)
    finally:
        for parameter, gradient in zip(step.parameters, gradients, strict=True):
            parameter.grad = gradient
    return tuple(HabitRow("zero_grad", way, phase_ms=1e3 * median(times_s[way])) for way in WAYS_TO_CLEAR)


def validation_rows(step: TrainStep, batch: Any, *, limit_s: float) -> tuple[HabitRow, ...]:
    """A validation step (forward and loss, in evaluation mode) in each grad mode: its time and peak memory.

    Empty when the model or its loss cannot be run in evaluation mode: some return something else there.
    """

    def validate(way: str) -> None:
        with grad_mode(way):
            step.loss(step.forward(batch), batch)

    with _evaluating(step.model):
        try:
            peaks = {way: peak_bytes(functools.partial(validate, way), step.device) for way in GRAD_MODES}
            times_s = _in_rounds(
                lambda way: seconds_of(functools.partial(validate, way), step.device), GRAD_MODES, limit_s
            )
        except Exception:  # the user's model, in a mode that this workload may never use
            return ()
    return tuple(
        HabitRow("eval_no_grad", way, step_ms=1e3 * median(times_s[way]), memory_bytes=peaks[way]) for way in GRAD_MODES
    )


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int | None:
    """The most bytes of tensors that a call holds at once, above what was allocated before it.

    By the device's own count where it has memory; on the CPU by the allocations that the profiler records, None
    without them.
    """
    backend = backend_of(device)
    if backend.has_memory:
        return backend.peak_of(call)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        call()
    with contextlib.suppress(AttributeError):  # the events as they came are no part of the profiler's public face
        return _highest(_allocations(recorded))
    return None


def _allocations(recorded: profile) -> list[int]:
    """Bytes allocated (or, below 0, freed) on the CPU, in the order of time."""
    raw: Any = recorded.profiler
    events = [event for event in raw.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def _highest(changes: Sequence[int]) -> int:
    level = highest = 0
    for change in changes:
        level += change
        highest = max(highest, level)
    return highest


def _in_rounds(run: Callable[[str], float], ways: Sequence[str], limit_s: float) -> dict[str, list[float]]:
    """Seconds of each way, all ways in every round, so that drift meets all of them alike."""
    times_s: dict[str, list[float]] = {way: [] for way in ways}
    started = time.perf_counter()
    for done in range(_MOST_ROUNDS):
        if done and time.perf_counter() - started > limit_s:
            break
        for way in ways:
            times_s[way].append(run(way))
    return times_s


def _uncompiled(step: TrainStep | InferStep) -> TrainStep | InferStep:
    """The step on the model as the user wrote it: the compiler would compile anew for each of the modes here."""
    other = copy.copy(step)
    other.model = uncompiled(step.model)
    if isinstance(other, TrainStep):
        other._whole = None
    return other


def _with_plan(step: TrainStep, **changes: Any) -> TrainStep:
    other = copy.copy(step)
    other.plan = replace(step.plan, **changes)
    return other


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards for each module the mode that it had: some may have been frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
