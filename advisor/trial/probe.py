"""The numerics probe: the first losses, or a sample of the first outputs, on the same weights and batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from advisor.plan import StepPlan
from advisor.rebuild import loader_with
from advisor.runtime.batches import tensors_of
from advisor.runtime.loader import loop_loader

PROBE_STEPS = 5
PROBE_LIMIT_S = 10.0
_SAMPLED_OUTPUTS = 2048
_MOST_SKIPPED_STEPS = 24


def probe_batches(data: Any, seed: int, plan: StepPlan | None = None) -> list[Any]:
    """The batches that the probe runs on: the loader's first, drawn in this process: every trial sees the same.

    With a plan they come the way that the loop gets them: copied and transformed as the plan says.
    """
    if not isinstance(data, DataLoader):
        return [data] * PROBE_STEPS
    torch.manual_seed(seed)
    started = time.perf_counter()
    batches = []
    loader = loader_with(data, num_workers=0)
    for batch in itertools.islice(loop_loader(loader, plan) if plan else loader, PROBE_STEPS):
        batches.append(batch)
        if time.perf_counter() - started > PROBE_LIMIT_S:
            break
    return batches


def probe_losses(step: Callable[[Any], torch.Tensor], batches: list[Any], seed: int) -> tuple[float, ...]:
    """The losses of the first training steps, one a batch; fewer when they take long.

    A gradient scaler begins by skipping steps until its scale fits. A skipped step changes no weight: it is run again,
    so that the losses stay comparable, step for step, with those of a loop without a scaler.
    """
    torch.manual_seed(seed)
    started = time.perf_counter()
    losses: list[float] = []
    skipped_in_all = 0
    for batch in batches:
        loss, skipped = _scaled_step(step, batch)
        while skipped and skipped_in_all < _MOST_SKIPPED_STEPS:
            skipped_in_all += 1
            loss, skipped = _scaled_step(step, batch)
        losses.append(loss)
        if time.perf_counter() - started > PROBE_LIMIT_S and len(losses) > 1:
            break
    return tuple(losses)


def probe_outputs(step: Callable[[Any], Any], batches: list[Any], seed: int) -> tuple[float, ...]:
    """A fixed sample of the outputs for the first batch, preceded by the sum of all of them.

    The step runs several times and the last output counts: a captured step is only replayed by then.
    """
    torch.manual_seed(seed)
    output = None
    for _ in range(PROBE_STEPS):
        output = step(batches[0])
    outputs = [t.detach().double().flatten().cpu() for t in tensors_of(output) if t.numel()]
    if not outputs:
        return ()
    flat = torch.cat(outputs)
    stride = max(1, flat.numel() // _SAMPLED_OUTPUTS)
    return (float(flat.sum()), *flat[::stride][:_SAMPLED_OUTPUTS].tolist())


def _scaled_step(step: Callable[[Any], torch.Tensor], batch: Any) -> tuple[float, bool]:
    """One step's loss, and whether the gradient scaler skipped the update: its scale falls then."""
    scaler = getattr(step, "scaler", None)
    before = scaler.get_scale() if scaler is not None else 0.0
    loss = float(step(batch))
    return loss, scaler is not None and scaler.get_scale() < before
