"""Workload: what ``build()`` may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from advisor.records import Value

if TYPE_CHECKING:
    from torch import nn


@dataclass(slots=True)
class Workload:
    """A model and what its loop needs.

    Args:
        model: the ``nn.Module``.
        data: a ``DataLoader``, one batch, or a callable ``batch_size -> batch``. A batch is a tensor, a tuple
            ``(inputs, target)``, or a dict of the model's keyword arguments.
        loss: ``loss(model, batch) -> scalar`` or ``loss(output, target) -> scalar``; a first parameter that is named
            ``model`` (or annotated as a module) tells them apart.
        optimizer: an instance, or a callable on parameters such as ``torch.optim.AdamW``.
        mode: ``train`` or ``infer``; by default train when there is a loss, an optimizer or a target in the batch.
        current: the settings that the loop has already, for example ``{"precision.autocast": "float16"}``.
        clip_grad: the norm that the loop clips its gradients to before each update, if it does.
    """

    model: nn.Module
    data: Any = None
    loss: Any = None
    optimizer: Any = None
    mode: str | None = None
    current: Mapping[str, Value] = field(default_factory=dict)
    clip_grad: float | None = None
