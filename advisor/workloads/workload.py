"""Workload: the full form of a target, which ``build()`` may return."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from advisor.records import Value


@dataclass(slots=True)
class Workload:
    """A model and the parts of its loop.

    Args:
        model: the ``nn.Module``.
        data: a ``DataLoader`` or another iterable of batches, one batch, or a callable ``batch_size -> batch``.
            A batch is a tensor, a tuple ``(inputs, target)``, or a dict of the model's keyword arguments.
        loss: ``loss(model, batch) -> scalar`` or ``loss(output, target) -> scalar``; a first parameter that is named
            ``model`` (or annotated as a module) tells them apart. ``loss(output)`` for a model that gets its target in
            the batch, or has none; ``loss(output, batch)`` where the loss reads several things off the batch.
        optimizer: an instance, or a callable on parameters such as ``torch.optim.AdamW``.
        mode: ``train`` or ``infer``; by default train when there is a loss, an optimizer or a target in the batch.
        current: the settings that the loop has already, for example ``{"precision.autocast": "float16"}``.
        clip_grad: the norm that the loop clips its gradients to before each update, if it does.
        step: ``step(batch)``, a whole step of your own in place of ``loss`` and ``optimizer``: it updates the weights
            and returns the loss, or the output where ``mode`` is ``infer``. The batch is on the models' device.
        models: the models that ``step`` works with, where there are several.
        optimizers: the optimizers that ``step`` works with, so that settings about optimizers can be tried.
    """

    model: Any = None
    data: Any = None
    loss: Any = None
    optimizer: Any = None
    mode: str | None = None
    current: Mapping[str, Value] = field(default_factory=dict)
    clip_grad: float | None = None
    step: Callable[[Any], Any] | None = None
    models: Any = None
    optimizers: Any = None
