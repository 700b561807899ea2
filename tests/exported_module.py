"""An exported file as a module, and a small model with its plain losses."""

import sys
from contextlib import nullcontext
from types import ModuleType

import torch
from torch import nn

from advisor.python.file import WrittenFor, python_source
from advisor.recipe.catalog import Catalog
from advisor.records import Value


def module_of(
    catalog: Catalog, settings: dict[str, Value], mode: str, workload: WrittenFor | None = None
) -> ModuleType:
    source = python_source(catalog, settings, mode, workload or WrittenFor())
    module = ModuleType("tuned")
    sys.modules["tuned"] = module  # compilers import the module of a function that they compile
    exec(compile(source, "tuned.py", "exec"), vars(module))
    return module


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))


def batches(count: int = 6, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(size, 3, 8, 8), torch.randint(0, 5, (size,))) for _ in range(count)]


def plain_losses(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data,
    dtype: torch.dtype | None = None,
    *,
    norm: float | None = None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> list[float]:
    """The losses of a plain loop over batches of inputs and classes; ``norm`` is what gradients are clipped to."""
    device, losses = next(model.parameters()).device, []
    for batch in data:
        inputs, targets = (part.to(device) for part in batch)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype) if dtype else nullcontext():
            loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        if norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses
