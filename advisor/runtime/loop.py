"""Loop: a normalised workload, every part in its final form. Made by ``adapters.normalise``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

from advisor.portable.losses import modules_of_loss
from advisor.portable.plan import StepPlan
from advisor.recipe import Components
from advisor.records import Mode, Value


@dataclass(slots=True)
class Loop:
    """The user's loop before any setting: model, data, loss, optimizer, mode.

    ``data`` is a DataLoader or one batch; ``make_batch`` makes a batch of another size when the user gave a callable.
    ``current`` are the settings that the user declared. ``notes`` say what was assumed on the user's behalf.
    ``clip_norm`` is what the user clips the norm of all gradients to, None without clipping. ``hint`` says what to do
    when the model does not take the batch; empty where the user gave the batch. ``step`` is a step that the user wrote:
    ``step(batch)``, which does all that a step does; with it there is no loss apart, and the optimizer may be None.
    """

    model: nn.Module
    data: Any
    loss: Callable[..., Any] | None
    optimizer: Any
    mode: Mode
    batch_size: int | None
    make_batch: Callable[[int], Any] | None = None
    loss_text: str = ""
    current: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    clip_norm: float | None = None
    hint: str = ""
    step: Callable[[Any], Any] | None = None

    def components(self, plan: StepPlan, data: Any) -> Components:
        """The parts that recipes may change; ``data`` feeds them."""
        return Components(self.model, self.optimizer, data, plan, self.batch_size, self.step)

    def to(self, device: torch.device) -> None:
        """Move the model to a device, and the modules that the loss is or holds, such as class weights or a teacher."""
        for module in (self.model, *modules_of_loss(self.loss)):
            module.to(device)

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The DataLoader, if the data comes from one."""
        return self.data if isinstance(self.data, DataLoader) else None

    @property
    def spread_already(self) -> str:
        """The part that is spread over several processes or GPUs already, in words; empty where none is."""
        if isinstance(self.model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            return f"the model is wrapped in {type(self.model).__name__} already"
        if hasattr(self.model, "set_requires_gradient_sync"):
            return "the model is sharded by fully_shard already"
        if hasattr(getattr(self.loader, "sampler", None), "num_replicas"):
            return "the loader has a DistributedSampler already"
        if distributed.is_available() and distributed.is_initialized():
            return "the target starts a process group itself (init_process_group)"
        return ""
