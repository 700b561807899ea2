"""The ten workloads, as the scripts of people who have not tuned them: a model, data, a loss, an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from small import module_of
from torch.utils.data import DataLoader

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SMALL = HERE / "small.py"
SMALL_BATCH, SMALL_BUDGET_S = 2, 25
TRAINING_ONLY = "it tunes training steps only"
NO_LOADER = "a loader is outside its reach, as its README says"


@dataclass(frozen=True)
class Workload:
    """A row of the table. ``target`` is what perf-advisor is given; ``batch_size`` is set where the model infers.

    ``budget_s`` is the session's by default; ``no_peer`` says why the peer cannot run it, empty where it can.
    """

    name: str
    title: str
    target: str
    budget_s: int
    batch_size: int | None = None
    no_peer: str = ""

    @property
    def trains(self) -> bool:
        return self.batch_size is None


def _workload(name: str, title: str, budget_s: int, file: str = "", **options: Any) -> Workload:
    return Workload(name, title, f"tests/gpu/workloads/{file or name}.py:build", budget_s, **options)


WORKLOADS = {
    workload.name: workload
    for workload in (
        _workload("resnet50", "ResNet-50, batch 64", 150),
        _workload("small_resnet18", "ResNet-18, 32x32, batch 128", 120),
        _workload("encoder", "transformer encoder", 120),
        _workload("gpt2", "GPT-2 with dropout", 150),
        _workload("mlp12", "12-block MLP", 150),
        _workload("recommender", "recommender", 90),
        _workload("autoencoder", "convolutional autoencoder", 120),
        _workload("jpeg", "ResNet-18 from JPEG files", 150, no_peer=NO_LOADER),
        _workload("infer1", "ResNet-50 inference, batch 1", 90, "resnet50", batch_size=1, no_peer=TRAINING_ONLY),
        _workload("infer128", "ResNet-50 inference, batch 128", 90, "resnet50", batch_size=128, no_peer=TRAINING_ONLY),
    )
}


def small(workload: Workload) -> Workload:
    """The same at a size for trying the benchmark out."""
    name = Path(workload.target.partition(":")[0]).stem
    batch_size = None if workload.trains else min(workload.batch_size, SMALL_BATCH)
    return replace(workload, target=f"{SMALL}:{name}", batch_size=batch_size, budget_s=SMALL_BUDGET_S)


@dataclass
class Script:
    """What a script holds before its loop. ``data`` is one batch on the device, or a DataLoader."""

    model: torch.nn.Module
    data: Any
    loss: Callable[..., torch.Tensor]
    make_optimizer: Callable[..., torch.optim.Optimizer]
    device: torch.device
    trains: bool


def load(workload: Workload, device: torch.device) -> Script:
    """The script of a workload: made anew, from the same random numbers each time."""
    torch.manual_seed(0)
    file, _, name = workload.target.partition(":")
    model, data, loss, make_optimizer = getattr(module_of(ROOT / file), name)()
    model.to(device).train(workload.trains)
    if not isinstance(data, DataLoader):
        data = on(device, data if workload.trains else _inputs(data, workload.batch_size))
    return Script(model, data, loss, make_optimizer, device, workload.trains)


def on(device: torch.device, batch: Any, *, non_blocking: bool = False) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(device, non_blocking=non_blocking) for tensor in batch)


def _inputs(batch: Any, batch_size: int) -> tuple[torch.Tensor]:
    """As many inputs as are asked for, repeated where there are fewer, without the target."""
    inputs, _target = batch
    return (inputs[torch.arange(batch_size) % len(inputs)],)
